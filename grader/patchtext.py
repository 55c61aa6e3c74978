"""The bytes of a patch, wherever they lie: in memory, or in a file of this host that has no name.

A patch may have as many bytes as a grading takes (32 MiB), and many are held at once. So what is over `PIECE` is read
in pieces or line by line, and whole only by who asks for it. The file goes with its last reader, also when this process
is killed. Nothing here changes after it was made, and any number of threads may read.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections import deque
from collections.abc import Iterator
from typing import IO

from grader.extraction.host import HostFailed

PIECE = 1 << 20
"""Bytes that are little enough to be held at once, and some times over."""
_LINES_OF = 1 << 16
"""Bytes whose lines are held at once: a short line takes many times its length."""


class PatchText:
    """Bytes that can be read again and again. Reading raises `HostFailed` when their file cannot be."""

    def __init__(self, data: bytes | IO[bytes]) -> None:
        """`data` is the bytes, or a binary file of which this object then is the owner."""
        self._data = data
        self.size = len(data) if isinstance(data, bytes) else os.fstat(data.fileno()).st_size
        if not isinstance(data, bytes):
            weakref.finalize(self, data.close)

    @classmethod
    def written(cls, file: IO[bytes]) -> PatchText:
        """What was written to a file without a name, which from now on is this object's: few bytes do not keep it."""
        text = cls(file)
        return text if text.size > PIECE else cls(text.read())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PatchText):
            return NotImplemented
        return self.size == other.size and all(a == b for a, b in zip(self.pieces(), other.pieces(), strict=True))

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __reduce__(self) -> tuple[type[PatchText], tuple[bytes]]:
        return PatchText, (self.read(),)  # to another process goes what the file holds

    def __repr__(self) -> str:
        return f"PatchText({self.size} bytes)"

    @property
    def sha256(self) -> str:
        """In hex."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()

    def read(self) -> bytes:
        """All of them."""
        return self._at(0, self.size)

    def pieces(self, start: int = 0, stop: int | None = None, *, size: int = PIECE) -> Iterator[bytes]:
        """Those from `start` to `stop` (None: the end), `size` at a time."""
        stop = self.size if stop is None else min(stop, self.size)
        for at in range(start, stop, size):
            yield self._at(at, min(size, stop - at))

    def lines(self) -> Iterator[bytes]:
        """The lines without their newlines. No more than a line and a small piece is in memory."""
        begun: list[bytes] = []
        for piece in self.pieces(size=_LINES_OF):
            first, *whole = piece.split(b"\n")
            begun.append(first)
            if whole:
                yield b"".join(begun)
                begun = [whole.pop()]
                yield from whole
        if last := b"".join(begun):
            yield last

    def _at(self, offset: int, count: int) -> bytes:
        if isinstance(self._data, bytes):
            return self._data[offset : offset + count]
        try:
            data = os.pread(self._data.fileno(), count, offset)
        except OSError as error:
            raise HostFailed(f"a patch could not be read from this host's disk ({error}); look at it") from error
        if len(data) != count:
            raise HostFailed("a patch has lost bytes on this host's disk; look at it")
        return data


class Lines:
    """A text's lines one after the other: the line at hand, and a look at those behind it."""

    def __init__(self, text: PatchText) -> None:
        self._rest = text.lines()
        self._ahead: deque[bytes] = deque()
        self.line = next(self._rest, None)
        """None: all have been consumed."""
        self.number = 1
        self.offset = 0
        """Where it starts in the text."""

    def consume(self) -> None:
        """Go on to the next line."""
        if self.line is not None:
            self.offset += len(self.line) + 1
            self.number += 1
            self.line = self._ahead.popleft() if self._ahead else next(self._rest, None)

    def next(self, count: int) -> list[bytes]:
        """The line at hand and those behind it, `count` in all where there are so many."""
        while len(self._ahead) < count - 1 and (line := next(self._rest, None)) is not None:
            self._ahead.append(line)
        return [] if self.line is None else [self.line, *self._ahead][:count]
