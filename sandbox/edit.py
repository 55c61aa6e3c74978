"""Edits of text files in a sandbox, as agents make them: every byte outside an edit stays as it was.

A line feed in a text stands for the line end that the file has at that place. What cannot be edited faithfully (not
UTF-8, NUL bytes, over 16 MiB) raises `FileRefused` with a code, and the advice to use the shell.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from sandbox.job import Calls, split_frames


@dataclass(frozen=True)
class View:
    """Lines of a file, and what the file is."""

    text: str
    """The lines asked for, with their ends as they are, without a BOM."""
    first: int
    last: int
    """Numbers of the first and the last line in `text`; 1 is the file's first."""
    lines: int
    ends: Literal["none", "lf", "crlf", "mixed"]
    bom: bool
    final_newline: bool
    sha256: str
    """Of the whole file; to be given as `expect_sha256`."""


@dataclass(frozen=True)
class Edited:
    """A file after an edit."""

    sha256: str
    """Of the whole file; empty when an undone creation has removed it."""
    first_line: int
    last_line: int
    """The lines that are new; 0 when the file is gone."""


@dataclass(frozen=True)
class Edits:
    """The edits of one sandbox. Each is atomic, verified on disk, and one after the other. All raise `FileRefused`."""

    client: Calls

    async def view(self, path: str, *, first: int = 1, last: int | None = None) -> View:
        """The lines `first` to `last`, both included."""
        query = f"path={_quoted(path)}&first={first}" + ("" if last is None else f"&last={last}")
        frames = dict(split_frames(bytearray(await self.client.call("GET", "/edit?" + query))))
        about = json.loads(frames[b"r"])
        return View(text=frames[b"o"][8:].decode("utf-8"), **about)

    async def create(self, path: str, text: str) -> Edited:
        """Make a new file of exactly this text. Refuses `exists`."""
        return await self._edit(path, "create", text.encode())

    async def replace(self, path: str, old: str, new: str, *, expect_sha256: str = "") -> Edited:
        """Put `new` where `old` stands. Refuses `no_match` and `many_matches` (naming the lines), and `changed` when
        the file's hash is not the expected one."""
        data = old.encode()
        return await self._edit(path, f"replace&old_bytes={len(data)}", data + new.encode(), expect_sha256)

    async def insert(self, path: str, line: int, text: str, *, expect_sha256: str = "") -> Edited:
        """Put whole lines behind line `line`; 0 puts them at the top."""
        return await self._edit(path, f"insert&line={line}", text.encode(), expect_sha256)

    async def undo(self, path: str) -> Edited:
        """Take the last edit of this file back, byte for byte. Refuses `changed` when the file was changed since."""
        return await self._edit(path, "undo", b"")

    async def _edit(self, path: str, op: str, body: bytes, expect_sha256: str = "") -> Edited:
        expected = f"&expect_sha256={quote(expect_sha256)}" if expect_sha256 else ""
        raw = json.loads(
            await self.client.call(
                "POST", f"/edit?path={_quoted(path)}&op={op}{expected}&id={secrets.token_hex(16)}", body
            )
        )
        return Edited(raw["sha256"], raw["first_line"], raw["last_line"])


def _quoted(path: str) -> str:
    return quote(path.encode("utf-8", "surrogateescape"))
