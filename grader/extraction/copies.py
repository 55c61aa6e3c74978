"""The bytes of changed paths, out of a sandbox and into files of ours, hashed again on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from grader.extraction.changes import Change, git_mode
from grader.extraction.objects import Side
from sandbox import Sandbox
from sandbox.manifest import Entry, Kind


async def copy_out(
    box: Sandbox, root: str, changes: Sequence[Change], side: Literal["old", "new"], folder: Path
) -> dict[bytes, Side | None]:
    """What the changed paths hold on one side, the bytes as files in `folder`, an empty directory, under names of ours.

    None: it could not be read as it was hashed. One file is in memory at a time, and of it a piece.
    """
    entries: dict[bytes, Entry] = {
        change.path: entry for change in changes if (entry := change.old if side == "old" else change.new) is not None
    }
    found: dict[bytes, Side | None] = {
        path: Side(git_mode(entry) or b"", entry.target, False)
        for path, entry in entries.items()
        if entry.kind is Kind.LINK
    }
    files = [(path, entry) for path, entry in entries.items() if entry.kind is Kind.FILE]
    if not files:
        return found
    copy = _Copy(folder / "0")
    try:
        async for at, piece in box.contents(root, [(path, entry.size) for path, entry in files]):
            if piece:
                copy.write(piece)
                continue
            path, entry = files[at]
            copy.close()
            whole = piece is not None and copy.sha256 == entry.digest
            found[path] = Side(git_mode(entry) or b"", copy.path, copy.has_nul) if whole else None
            copy = _Copy(folder / str(at + 1))
    finally:
        copy.close()
    return found


class _Copy:
    """A file of ours that takes pieces and knows their hash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_nul = False
        self._stream = path.open("xb")
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, piece: bytes) -> None:
        self._stream.write(piece)
        self._hash.update(piece)
        self.has_nul = self.has_nul or b"\0" in piece

    def close(self) -> None:
        self._stream.close()
