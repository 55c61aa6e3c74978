"""Mutants of a reference patch: the same patch with one part taken out. Pure, bytes in and bytes out.

A part is a hunk, or, in a hunk of several, one run of changed lines. When the listed tests pass without a part, no
test guards it. Documentation is left alone, and so are changes of comments and blank lines: no test could see them.
Not covered: binary changes, renames without hunks, new faults (a mutant only undoes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", re.DOTALL)
_NO_CODE = re.compile(rb".*\.(?:rst|md|txt)|(?:.*/)?(?:AUTHORS|CHANGES?|CHANGELOG|NEWS)[^/]*|docs?/.*", re.IGNORECASE)
_NO_STATEMENT = re.compile(rb"[-+]\s*(?:#.*)?$", re.DOTALL)


@dataclass(frozen=True)
class Mutant:
    """The patch without one part."""

    name: str
    """Where the part is, such as `src/a.py:10-14`: lines of the patched file; of the old one where it only removes."""
    patch: bytes


@dataclass(frozen=True)
class _Hunk:
    old_start: int
    new_start: int
    tail: bytes
    """What follows the second `@@` of its header."""
    body: tuple[bytes, ...]


@dataclass(frozen=True)
class _File:
    head: bytes
    path: bytes
    hunks: tuple[_Hunk, ...]


@dataclass(frozen=True)
class _Part:
    """Lines of one hunk that belong together: all of its changes, or one run of them."""

    file: int
    hunk: int
    lines: range
    name: str


def mutants(patch: bytes, most: int) -> tuple[Mutant, ...]:
    """Up to `most` mutants of `patch`, spread evenly over its parts, in their order. A patch of one part has none."""
    files = _files(patch)
    parts = [
        part
        for index, file in enumerate(files)
        for part in (() if _NO_CODE.fullmatch(file.path) else _parts(index, file))
    ]
    found = [Mutant(part.name, _without(files, part)) for part in parts]
    found = [mutant for mutant in found if mutant.patch]  # without its only part it would be the empty patch
    return tuple(found if len(found) <= most else [found[i * len(found) // most] for i in range(most)])


def _files(patch: bytes) -> list[_File]:
    """The patch by file. A head is everything from the end of the last hunk to the next."""
    lines = re.findall(rb"[^\n]*\n|[^\n]+", patch)
    files: list[_File] = []
    head: list[bytes] = []
    hunks: list[_Hunk] = []
    at = 0
    while at < len(lines):
        match = _HUNK.match(lines[at])
        if match is None:
            if hunks:
                files.append(_file(head, hunks))
                head, hunks = [], []
            head.append(lines[at])
            at += 1
            continue
        end = _end(lines, at, match)
        hunks.append(_Hunk(int(match[1]), int(match[3]), match[5], tuple(lines[at + 1 : end])))
        at = end
    if head or hunks:
        files.append(_file(head, hunks))
    return files


def _end(lines: Sequence[bytes], start: int, hunk: re.Match[bytes]) -> int:
    old, new = (int(count) if count is not None else 1 for count in (hunk[2], hunk[4]))
    end = start + 1
    while end < len(lines) and (old > 0 or new > 0 or lines[end].startswith(b"\\")):
        kind = lines[end][:1]
        old -= kind in b"- \n\r"
        new -= kind in b"+ \n\r"
        end += 1
    return end


def _file(head: Sequence[bytes], hunks: Sequence[_Hunk]) -> _File:
    names = [line[6:].split(b"\t")[0].strip() for line in head if line.startswith((b"--- a/", b"+++ b/"))]
    return _File(b"".join(head), names[-1] if names else b"", tuple(hunks))


def _parts(index: int, file: _File) -> Iterator[_Part]:
    """The runs of each hunk, and the hunk whole where it has several."""
    for number, hunk in enumerate(file.hunks):
        runs = [run for run in _runs(hunk) if not all(_NO_STATEMENT.fullmatch(line) for line in _lines(hunk, run))]
        if len(runs) > 1:
            yield _Part(index, number, range(len(hunk.body)), _name(file, hunk, range(runs[0].start, runs[-1].stop)))
        for run in runs:
            yield _Part(index, number, run, _name(file, hunk, run))


def _lines(hunk: _Hunk, run: range) -> list[bytes]:
    return [line for line in hunk.body[run.start : run.stop] if not line.startswith(b"\\")]


def _runs(hunk: _Hunk) -> Iterator[range]:
    """Runs of changed lines between context lines, with the marks of a missing newline."""
    for changed, group in groupby(enumerate(hunk.body), key=lambda pair: pair[1][:1] in {b"-", b"+", b"\\"}):
        at = [index for index, _ in group]
        if changed and any(hunk.body[i][:1] in {b"-", b"+"} for i in at):
            yield range(at[0], at[-1] + 1)


def _name(file: _File, hunk: _Hunk, run: range) -> str:
    adds = any(hunk.body[i].startswith(b"+") for i in run)
    side, start = (b"-", hunk.new_start) if adds else (b"+", hunk.old_start)
    counted = [i for i, line in enumerate(hunk.body) if line[:1] not in {side, b"\\"}]
    inside = [start + place for place, i in enumerate(counted) if i in run]
    path = file.path.decode("utf-8", "backslashreplace")
    return f"{path}:{inside[0]}-{inside[-1]}" if len(inside) > 1 else f"{path}:{inside[0]}"


def _without(files: Sequence[_File], part: _Part) -> bytes:
    out: list[bytes] = []
    for index, file in enumerate(files):
        hunks = list(file.hunks)
        if index == part.file:
            hunks[part.hunk] = _reverted(hunks[part.hunk], part.lines)
        kept = [hunk for hunk in hunks if any(line[:1] in {b"-", b"+"} for line in hunk.body)]
        if kept or not file.hunks:
            out += [file.head, *_numbered(kept)]
    return b"".join(out)


def _reverted(hunk: _Hunk, lines: range) -> _Hunk:
    """The hunk with these lines as they were: what it added is not added, what it removed is context."""
    body: list[bytes] = []
    dropped = False
    for index, line in enumerate(hunk.body):
        if index not in lines:
            body.append(line)
        elif line.startswith(b"+"):
            dropped = True
            continue
        elif not (line.startswith(b"\\") and dropped):
            body.append(b" " + line[1:] if line.startswith(b"-") else line)
        dropped = False
    return _Hunk(hunk.old_start, hunk.new_start, hunk.tail, tuple(body))


def _numbered(hunks: Sequence[_Hunk]) -> Iterator[bytes]:
    """The hunks with headers that count what is left."""
    drift = 0
    for hunk in hunks:
        old = sum(line[:1] not in {b"+", b"\\"} for line in hunk.body)
        new = sum(line[:1] not in {b"-", b"\\"} for line in hunk.body)
        # An empty side is numbered by the line before it, hence the two corrections.
        start = hunk.old_start + drift + (old == 0) - (new == 0)
        yield b"@@ -%d,%d +%d,%d @@%s" % (hunk.old_start, old, start, new, hunk.tail)
        yield from hunk.body
        drift += new - old
