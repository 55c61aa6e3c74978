"""The sandbox in a pod: what any sandbox is, and where its execd is reached."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.box import DaemonSandbox


@dataclass(frozen=True)
class KubeSandbox(DaemonSandbox):
    """A `Sandbox` in a pod."""

    node: str
    """Where it runs."""
    address: tuple[str, int]
    """Of its execd."""
