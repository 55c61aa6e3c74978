"""From what a path held and holds to the patch between them: objects, trees and diff are of a git of our own.

The two sides are written as commits of a private repository that holds nothing but the changed paths, and git compares
these. What git would take for text although it holds NUL bytes (it looks at the first 8,000 only) is made binary, for a
patch with NUL bytes is no text and `grader.patch` refuses it.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from grader.extraction.git import TIMEOUT_S, GitFailed, environment, make_repository, run
from grader.patchtext import PatchText

_PIECE = 1 << 18
_DIFF = (
    *("diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff"),
    *("--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3", "--diff-algorithm=myers"),
)
_WHO = b"committer grader <grader> 0 +0000\ndata 0\n\n"


@dataclass(frozen=True)
class Side:
    """What a path holds: its mode as git writes it, and its bytes (a link's are its target)."""

    mode: bytes
    data: Path | bytes
    """A file on this host, or the bytes themselves."""
    has_nul: bool


@dataclass(frozen=True)
class Pair:
    """A path before and after. None: there is no file and no link."""

    path: bytes
    old: Side | None
    new: Side | None

    @property
    def is_binary(self) -> bool:
        return any(side is not None and side.has_nul for side in (self.old, self.new))


def make_patch(pairs: Sequence[Pair], folder: Path, max_bytes: int) -> PatchText | None:
    """The patch that turns every `old` into its `new`; None when it has more than `max_bytes`.

    Blocking. `folder` is an empty directory for the private repository, and is not needed afterwards.
    """
    make_repository(folder)
    groups = {"text": [p for p in pairs if not p.is_binary], "binary": [p for p in pairs if p.is_binary]}
    _import(folder, _stream(groups))
    (folder / "binary").write_text("* -diff\n")
    with contextlib.ExitStack() as until_it_is_whole:
        file = until_it_is_whole.enter_context(tempfile.TemporaryFile(dir=folder))
        for name, group in groups.items():
            if group:
                options = ("-c", f"core.attributesFile={folder / 'binary'}") if name == "binary" else ()
                run(folder, *options, *_DIFF, f"refs/{name}/old", f"refs/{name}/new", stdout=file)
        if file.tell() > max_bytes:
            return None
        until_it_is_whole.pop_all()
        return PatchText.written(file)


def _import(repository: Path, stream: Iterator[bytes]) -> None:
    """Feed `git fast-import`, which keeps no more than an object or two in memory. It seeks no deltas: what it writes
    is read once."""
    with tempfile.TemporaryFile() as words:
        command = ["git", "fast-import", "--quiet", "--depth=0", "--done", "--date-format=raw"]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=words,
                env=environment(repository),
                cwd=repository,
            )
        except OSError as error:
            raise GitFailed(f"git could not be run on this host ({error}); install git") from error
        try:
            assert process.stdin is not None
            _feed(process.stdin, stream)
            status = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise GitFailed(f"git fast-import did not end within {TIMEOUT_S:g} s; look at this host's load") from error
        finally:
            process.kill()
            process.wait()
        if status != 0:
            words.seek(0)
            told = words.read(2000).decode("utf-8", "backslashreplace")
            raise GitFailed(f"git fast-import ended with {status}: {told}; look at this host's git and disk")


def _feed(stdin: IO[bytes], stream: Iterator[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError), stdin:  # its status and words say why it ended
        for piece in stream:
            stdin.write(piece)


def _stream(groups: dict[str, list[Pair]]) -> Iterator[bytes]:
    for name, pairs in groups.items():
        for when in ("old", "new"):
            sides = [(pair.path, pair.old if when == "old" else pair.new) for pair in pairs]
            present = [(path, side) for path, side in sides if side is not None]
            for mark, (_, side) in enumerate(present, 1):
                yield b"blob\nmark :%d\n" % mark
                yield from _data(side.data)
            yield b"commit refs/%s/%s\n%s" % (name.encode(), when.encode(), _WHO)
            for mark, (path, side) in enumerate(present, 1):
                yield b"M %s :%d %s\n" % (side.mode, mark, _quoted(path))
            yield b"\n"
    yield b"done\n"


def _data(data: Path | bytes) -> Iterator[bytes]:
    if isinstance(data, bytes):
        yield b"data %d\n%s\n" % (len(data), data)
        return
    with data.open("rb") as stream:
        yield b"data %d\n" % data.stat().st_size
        yield from _pieces(stream)
        yield b"\n"


def _pieces(stream: IO[bytes]) -> Iterable[bytes]:
    while piece := stream.read(_PIECE):
        yield piece


def _quoted(path: bytes) -> bytes:
    """C-style quotes, as fast-import reads them."""
    return b'"' + path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
