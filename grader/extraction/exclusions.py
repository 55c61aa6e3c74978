"""What an extraction leaves out by declaration: caches and build products, and nothing else. A frozen config."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Collection

from pydantic import BaseModel, ConfigDict, Field

CACHES = (
    *("__pycache__", "*.pyc", "*.pyo", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"),
    *(".venv", ".eggs", "*.egg-info", "node_modules", ".ipynb_checkpoints", ".coverage", ".coverage.*", "*.o"),
)


class Exclusions(BaseModel):
    """What stays behind in the agent's sandbox. Each path that does is counted and listed in the extraction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...] = CACHES
    """Shell patterns for one component of a path. What matches is left out with all below it, unless the image's git
    index names it: tracked files are always carried."""
    max_file_mib: int = Field(default=16, gt=0, le=24)
    """A larger file is not carried, never cut, and the extraction is then not faithful. At most 24: a patch may have
    32 MiB."""

    def pattern(self) -> re.Pattern[bytes]:
        """Matches a component of a path that is left out."""
        return re.compile(os.fsencode("|".join(map(fnmatch.translate, self.names)) or "(?!)"))


def excluded_at(path: bytes, pattern: re.Pattern[bytes], tracked: Collection[bytes]) -> bytes | None:
    """The directory or file by which `path` is left out; None for what is carried."""
    if path in tracked:
        return None
    end = -1
    for name in path.split(b"/"):
        end += len(name) + 1
        if pattern.match(name):
            return path[:end]
    return None
