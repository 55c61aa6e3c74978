"""What a tree in a sandbox holds, by execd's own walk and hash: values, their parser, and how two trees differ.

What the sandbox sends is parsed with distrust: an entry that is not of the protocol is `Broken`, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sandbox.wire import Broken

_LIMIT = 1 << 20
"""Bytes that one entry may take: a path of 200 names, and more."""
MAX_ENTRIES, MAX_BYTES = 1_000_000, 256 << 20
"""What execd walks at most. More is not taken, whatever the sandbox sends."""


class Kind(StrEnum):
    """What lies at a path."""

    DIRECTORY = "d"
    FILE = "f"
    LINK = "l"
    FIFO = "p"
    SOCKET = "s"
    CHARACTER_DEVICE = "c"
    BLOCK_DEVICE = "b"
    GIT = "g"
    """Whatever is named `.git`, in any case of letters. It is not entered."""
    MOUNT = "m"
    """A directory of another file system. It is not entered."""
    UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree."""

    kind: Kind
    mode: int
    """Permission bits, with set-id and sticky."""
    owner: tuple[int, int]
    """User and group."""
    links: int
    """How many names the inode has."""
    inode: tuple[int, int]
    """Device and number: the same for two names of one file."""
    size: int
    digest: str
    """SHA-256 (hex) of a regular file's bytes. Otherwise why there is none: `-` (no regular file), `unread` (it may
    not be read), `large`, `moving` (it did not hold still), `deep` (a directory deeper than is walked). For a
    `.git` that is no regular file, the letter of its kind."""
    target: bytes = b""
    """Where a link points."""

    @property
    def content(self) -> tuple[Kind, str, bytes]:
        """What decides whether two entries hold the same."""
        return self.kind, self.digest, self.target


Manifest = Mapping[bytes, Entry]
"""The entries of a tree by path relative to its root, which itself is the empty path. In the order of the walk."""


def check(baseline: Manifest, now: Manifest) -> dict[bytes, tuple[Entry | None, Entry | None]]:
    """Every path at which two manifests differ in kind, bytes, target, mode or owner, with what was and what is there.

    Sizes of directories, inodes and link counts are no difference.
    """
    differing = {}
    for path in {**baseline, **now}:
        old, new = baseline.get(path), now.get(path)
        if old is None or new is None or _facts(old) != _facts(new):
            differing[path] = (old, new)
    return differing


def _facts(entry: Entry) -> tuple[object, ...]:
    return entry.kind, entry.digest, entry.target, entry.mode, entry.owner


class ManifestParser:
    """Collects the entries of a manifest as they come. Memory is bounded, whatever a tree or a daemon is like."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self._buffer = bytearray()
        self._bytes = 0

    def feed(self, data: bytes) -> None:
        """Take a part of the stream. Raises `Broken`."""
        self._buffer += data
        self._bytes += len(data)
        self.entries.update(take_entries(self._buffer))
        if self._bytes > MAX_BYTES or len(self.entries) > MAX_ENTRIES:
            raise Broken("a manifest is larger than execd makes them")


def take_entries(buffer: bytearray) -> Iterator[tuple[bytes, Entry]]:
    """Take the whole entries off the front of a buffer. Raises `Broken`."""
    at = 0
    try:
        while True:
            ends = []
            end = at
            for _ in range(3):
                end = buffer.find(b"\0", end)
                if end < 0:
                    break
                ends.append(end)
                end += 1
            if end < 0:
                break
            head, path, target = (bytes(buffer[a:b]) for a, b in zip((at, ends[0] + 1, ends[1] + 1), ends, strict=True))
            yield path, _entry(head, target)
            at = end
    except (ValueError, UnicodeDecodeError) as error:
        raise Broken(f"an entry of a manifest is not of the protocol: {error}") from error
    del buffer[:at]
    if len(buffer) > _LIMIT:
        raise Broken("an entry of a manifest is too long")


def _entry(head: bytes, target: bytes) -> Entry:
    kind, mode, uid, gid, links, device, inode, size, digest = head.decode("ascii").split(" ")
    return Entry(
        Kind(kind), int(mode, 8), (int(uid), int(gid)), int(links), (int(device), int(inode)), int(size), digest, target
    )


class ContentParser:
    """Splits the stream of several files' contents. `feed` gives `(file, piece)` as they come: the file's place in the
    request, and bytes; `b""` is its end, None that it could not be read whole. No file has more than its size."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._file = 0
        self._taken = 0
        self._left = 0
        self._buffer = bytearray()

    @property
    def whole(self) -> bool:
        """Whether every file has come to its end."""
        return self._file == len(self._sizes) and not self._buffer

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Take a part of the stream. Raises `Broken`."""
        self._buffer += data
        while self._buffer:
            if self._file >= len(self._sizes):
                raise Broken("more files came than were asked for")
            if self._left:
                piece = bytes(self._buffer[: self._left])
                del self._buffer[: self._left]
                self._left -= len(piece)
                yield self._file, piece
            elif len(self._buffer) < 4:
                return
            else:
                length = int.from_bytes(self._buffer[:4], "big")
                del self._buffer[:4]
                if length in (0, 0xFFFFFFFF):
                    self._file += 1
                    self._taken = 0
                    yield self._file - 1, b"" if length == 0 else None
                else:
                    self._left = length
                    self._taken += length
                    if self._taken > self._sizes[self._file]:
                        raise Broken("more of a file came than was asked for")
