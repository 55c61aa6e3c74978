"""A git patch turned around: what it adds is removed, what it removes is added. Pure, bytes in and bytes out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tasksets.errors import TaskSetError

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", re.DOTALL)
_DIFF = re.compile(rb"(diff --git )(\S+) (\S+)(\r?\n?)", re.DOTALL)
_INDEX = re.compile(rb"(index )([0-9a-f]+)\.\.([0-9a-f]+)(.*)", re.DOTALL)
_PAIRS = ((b"old mode ", b"new mode "), (b"rename from ", b"rename to "), (b"--- ", b"+++ "))
_UNTURNED = (b"GIT binary patch", b"Binary files ", b"copy from ")


def reverse_patch(patch: bytes, row: str) -> bytes:
    """The patch that undoes `patch`, which must be a git or unified diff of text.

    `row` names the row in messages. Raises TaskSetError for binary hunks, copies, and hunks that end early.
    """
    lines = re.findall(rb"[^\n]*\n|[^\n]+", patch)
    out: list[bytes] = []
    head: list[bytes] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        if hunk := _HUNK.match(line):
            end = _end_of_hunk(lines, position, hunk, row)
            out += [*_reverse_head(head), _reverse_header(hunk), *_reverse_body(lines[position + 1 : end])]
            head, position = [], end
        elif line.startswith(_UNTURNED):
            raise TaskSetError(
                f"{row}: its patch holds {line[:40]!r}, which cannot be turned around; leave the row out"
            )
        else:
            head.append(line)
            position += 1
    return b"".join([*out, *_reverse_head(head)])


def _reverse_head(head: list[bytes]) -> list[bytes]:
    """The lines before a hunk: old and new names, modes and blobs change places."""
    out = [_reverse_head_line(line) for line in head]
    for first, second in _PAIRS:
        for index, line in enumerate(out[:-1]):
            after = out[index + 1]
            if line.startswith(first) and after.startswith(second):
                out[index] = first + _other_side(after.removeprefix(second))
                out[index + 1] = second + _other_side(line.removeprefix(first))
    return out


def _reverse_head_line(line: bytes) -> bytes:
    if match := _DIFF.fullmatch(line):
        return b"%s%s %s%s" % (match[1], _other_side(match[3]), _other_side(match[2]), match[4])
    if match := _INDEX.fullmatch(line):
        return b"%s%s..%s%s" % (match[1], match[3], match[2], match[4])
    if line.startswith(b"new file mode "):
        return line.replace(b"new", b"deleted", 1)
    return line.replace(b"deleted", b"new", 1) if line.startswith(b"deleted file mode ") else line


def _other_side(name: bytes) -> bytes:
    """`a/x` for `b/x` and the other way round; `/dev/null` and plain text as they are."""
    swapped = {b"a/": b"b/", b"b/": b"a/"}
    return swapped.get(name[:2], name[:2]) + name[2:]


def _end_of_hunk(lines: list[bytes], start: int, hunk: re.Match[bytes], row: str) -> int:
    """Index after the hunk's last line, its `\\ No newline` mark included. The header's counts decide."""
    old, new = int(hunk[2] or 1), int(hunk[4] or 1)
    end = start + 1
    while end < len(lines) and (old > 0 or new > 0 or lines[end].startswith(b"\\")):
        kind = lines[end][:1]
        old -= kind in b" -\n\r"
        new -= kind in b" +\n\r"
        end += 1
    if old or new:
        raise TaskSetError(f"{row}: line {start + 1} of its patch opens a hunk that does not match its own line counts")
    return end


def _reverse_header(hunk: re.Match[bytes]) -> bytes:
    old = hunk[1] + (b"," + hunk[2] if hunk[2] else b"")
    new = hunk[3] + (b"," + hunk[4] if hunk[4] else b"")
    return b"@@ -%s +%s @@%s" % (new, old, hunk[5])


def _reverse_body(body: list[bytes]) -> Iterator[bytes]:
    """Each run of changes with its signs swapped, removals first, each line followed by its `\\ No newline` mark."""
    removed: list[bytes] = []
    added: list[bytes] = []
    last = removed
    for line in body:
        if line.startswith(b"+"):
            last = removed
            last.append(b"-" + line[1:])
        elif line.startswith(b"-"):
            last = added
            last.append(b"+" + line[1:])
        elif line.startswith(b"\\") and (removed or added):
            last.append(line)
        else:
            yield from (*removed, *added, line)
            removed.clear()
            added.clear()
    yield from (*removed, *added)
