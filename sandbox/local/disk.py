"""Whether the disk that all sandboxes of a provider share was ever full, so that what their tests met may be its doing.

It is looked at from outside, often, and by one look for all sandboxes: somebody may fill it and make room again while
tests run. What is shorter than a look apart goes unseen.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from pathlib import Path

LOOK_EVERY_S = 0.1
ROOM_BYTES = 1 << 20
"""With less than this the disk is full."""


class DiskWatch:
    """Of the file system on which `path` lies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._full_at = -math.inf

    def look(self) -> None:
        """Look once. A disk that cannot be asked tells nothing."""
        try:
            status = os.statvfs(self._path)
        except OSError:
            return
        blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail  # a part may be kept for root
        if blocks * status.f_frsize < ROOM_BYTES or (status.f_files and not status.f_ffree):
            self._full_at = time.monotonic()

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def was_full_since(self, at: float) -> bool:
        """Whether it was full at some moment from `at` (`time.monotonic()`) on."""
        return self._full_at >= at
