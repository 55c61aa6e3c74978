"""A ticket for a sandbox on this machine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.box import DaemonSandbox
from sandbox.local.image import StoredImage
from sandbox.ticket import Ticket


@dataclass(eq=False)
class LocalTicket(Ticket[DaemonSandbox]):
    """Of an acquire, or of an image build."""

    image: StoredImage | None = None
    """Given by an image build; otherwise the owner resolves the spec's reference."""
    keep_upper: Path | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing runs in it any more; for an image build, nothing but the kept upper directory is left."""
