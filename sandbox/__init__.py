"""Sandboxes: running environments from an image, owned by a provider until they are gone."""

from sandbox.config import KubernetesConfig, LocalConfig, ProviderConfig, open_provider
from sandbox.errors import SandboxError
from sandbox.provider import Provider, Sandbox
from sandbox.spec import Chunk, ExecResult, Facts, Identity, PhaseTimes, SandboxSpec

__all__ = [
    "Chunk",
    "ExecResult",
    "Facts",
    "Identity",
    "KubernetesConfig",
    "LocalConfig",
    "PhaseTimes",
    "Provider",
    "ProviderConfig",
    "Sandbox",
    "SandboxError",
    "SandboxSpec",
    "open_provider",
]
