"""Which provider to open, as a frozen config, and the one function that opens it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.provider import Provider


class LocalConfig(BaseModel):
    """Sandboxes on this machine, by bubblewrap and user namespaces. No root needed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["local"] = "local"
    state_dir: Path | None = None
    """Holds the image store and the sandboxes' scratch. None: `sandman-grader` under `$XDG_CACHE_HOME`, else under
    `~/.cache`."""
    max_live: int = Field(default=64, gt=0)
    """Sandboxes alive at once; a further acquire waits in the queue phase."""


ProviderConfig = LocalConfig
"""The union of provider configs, discriminated on `type`."""


def open_provider(config: ProviderConfig) -> AbstractAsyncContextManager[Provider]:
    """Open the provider that `config` describes. Leaving the context deletes every sandbox that it still owns.

    Raises `ProviderUnavailable` when this machine lacks what the provider needs.
    """
    from sandbox.local.provider import LocalProvider

    return LocalProvider(config)
