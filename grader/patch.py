"""Parse a patch: bytes in, a `Patch` or a `Rejected` out. Pure.

The parser finds which files a patch touches and refuses, by name, what no rung of the apply ladder could or should
take. Whether a patch fits a tree is not decided here: git decides that. Bytes are kept exactly as submitted, and read
in one pass of which a few lines are in memory. Formats: git's extended unified diff (git-apply(1), git-diff(1)
"Generating patch text with -p") and plain unified diffs.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from grader.patchtext import Lines, PatchText


class ChangeKind(StrEnum):
    """What a patch does to one file."""

    ADD = "add"
    DELETE = "delete"
    MODIFY = "modify"
    RENAME = "rename"
    COPY = "copy"
    MODE = "mode"
    BINARY = "binary"


class RejectReason(StrEnum):
    """Why a patch is refused before any sandbox is asked for."""

    TOO_LARGE = "too_large"
    NOT_A_DIFF = "not_a_diff"
    NOT_TEXT = "not_text"
    PATH_ESCAPES = "path_escapes"
    TRUNCATED_HUNK = "truncated_hunk"


@dataclass(frozen=True)
class FileChange:
    """One file's part of a patch. Paths are relative to the repository; None stands for /dev/null."""

    old_path: bytes | None
    new_path: bytes | None
    kind: ChangeKind


@dataclass(frozen=True)
class Patch:
    """A patch that may be tried. `text` is exactly what was submitted; no changes at all is the empty patch."""

    text: PatchText
    changes: tuple[FileChange, ...]
    without_data: tuple[int, ...] = ()
    """Lines (from 1) of binary changes that carry no data. git refuses such a patch, GNU patch skips them in silence:
    the ladder of `grader.apply` decides as the official one does, and the verdict is flagged."""

    @property
    def data(self) -> bytes:
        """The text, all of it in memory."""
        return self.text.read()

    @property
    def touched(self) -> tuple[bytes, ...]:
        """Every path that is read or written, once, in order."""
        paths = (path for change in self.changes for path in (change.old_path, change.new_path))
        return tuple(dict.fromkeys(path for path in paths if path is not None))


@dataclass(frozen=True)
class Rejected:
    """A patch that is refused, with one sentence for a person."""

    reason: RejectReason
    detail: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


MAX_BYTES = 32 * 1024 * 1024
"""A larger patch is refused whole, never cut."""

MAX_INFLATED_BYTES = 256 * 1024 * 1024
"""What the binary hunks of a patch may hold in all, by their own word. git stops at a hunk that holds more."""


EMPTY = Patch(PatchText(b""), ())
"""The patch that changes nothing."""


def parse(data: bytes | PatchText) -> Patch | Rejected:
    """The patch's changes, or why it is refused. White space alone is the empty patch."""
    text = PatchText(data) if isinstance(data, bytes) else data
    if all(piece.isspace() for piece in text.pieces()):
        return Patch(text, ())
    if text.size > MAX_BYTES:
        return Rejected(RejectReason.TOO_LARGE, f"it has {text.size} bytes and may have {MAX_BYTES}")
    if (line := _line_of_nul(text)) is not None:
        return Rejected(RejectReason.NOT_TEXT, f"line {line} holds a NUL byte; use git diff --binary")
    reader = _Reader(text)
    try:
        changes = tuple(reader.changes())
    except _Refusal as refusal:
        return refusal.rejected
    if not changes:
        return Rejected(RejectReason.NOT_A_DIFF, "no file header of a unified diff was found")
    return Patch(text, changes, tuple(reader.without_data))


def _line_of_nul(text: PatchText) -> int | None:
    """The line (from 1) of the first NUL byte."""
    line = 1
    for piece in text.pieces():
        if (at := piece.find(b"\0")) >= 0:
            return line + piece.count(b"\n", 0, at)
        line += piece.count(b"\n")
    return None


def without(patch: Patch, paths: Collection[bytes]) -> Patch:
    """The patch without the parts that touch any of `paths`. What is left is byte for byte as submitted."""
    if not paths:
        return patch
    reader = _Reader(patch.text)
    kept, kept_to = io.BytesIO(), 0
    for change in reader.changes():
        if change.old_path in paths or change.new_path in paths:
            start, stop = reader.section
            kept.writelines(patch.text.pieces(kept_to, start))
            kept_to = stop
    kept.writelines(patch.text.pieces(kept_to))
    changes = tuple(one for one in patch.changes if one.old_path not in paths and one.new_path not in paths)
    return replace(patch, text=PatchText(kept.getvalue()) if changes else EMPTY.text, changes=changes)


class _Refusal(Exception):
    def __init__(self, reason: RejectReason, detail: str) -> None:
        self.rejected = Rejected(reason, detail)


_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_BINARY_DIFFERS = re.compile(rb"Binary files .* differ\r?$")
_BINARY_BLOCK = re.compile(rb"(?:literal|delta) (\d+)\r?$")

# GNU patch takes a last hunk whose final blank context lines were chopped off, up to this many.
_CHOPPED_LINES = 3


@dataclass
class _Header:
    """What the header lines of one file section have said so far."""

    git_paths: tuple[bytes, bytes] | None = None
    old: bytes | None = None
    new: bytes | None = None
    has_old: bool = False
    has_new: bool = False
    flags: set[ChangeKind] = field(default_factory=set)

    def change(self) -> FileChange | None:
        old, new = self.git_paths or (None, None)
        if self.has_old:
            old = self.old
        if self.has_new:
            new = self.new
        if ChangeKind.ADD in self.flags or (self.has_old and self.old is None):
            return FileChange(None, new, ChangeKind.ADD) if new is not None else None
        if ChangeKind.DELETE in self.flags or (self.has_new and self.new is None):
            return FileChange(old, None, ChangeKind.DELETE) if old is not None else None
        for kind in (ChangeKind.RENAME, ChangeKind.COPY, ChangeKind.BINARY, ChangeKind.MODIFY, ChangeKind.MODE):
            if kind in self.flags and old is not None and new is not None:
                return FileChange(old, new, kind)
        return None


class _Reader:
    """One pass over the lines; each method consumes what it has recognised."""

    def __init__(self, text: PatchText) -> None:
        self.at = Lines(text)
        self.without_data: list[int] = []
        self.inflated = 0
        self.section = (0, 0)
        """Where the latest change starts in the text, and where it ends."""

    def changes(self) -> Iterator[FileChange]:
        """One change per file section. Text between sections (mail headers, prose) is skipped, as git does."""
        while (line := self.at.line) is not None:
            started = self.at.offset
            header = _Header()
            if line.startswith(b"diff --git "):
                self.at.consume()
                header.git_paths = _git_paths(line[len(b"diff --git ") :].rstrip(b"\r"))
                self._extended(header)
            elif not self._at_file_lines():
                self._note_bare_binary(line)
                self.at.consume()
                continue
            self._file_lines(header)
            self._hunks(header)
            self._binary(header)
            change = header.change()
            self.section = (started, self.at.offset)
            if change is not None:
                yield change

    def _at_file_lines(self) -> bool:
        """A `---`/`+++` pair that a hunk follows: anything less is prose."""
        if self.at.line is None or not self.at.line.startswith(b"--- "):
            return False
        here = self.at.next(3)
        return len(here) == 3 and here[1].startswith(b"+++ ") and _HUNK.match(here[2]) is not None

    def _extended(self, header: _Header) -> None:
        while self.at.line is not None:
            line = self.at.line.rstrip(b"\r")
            if line.startswith(b"new file mode "):
                header.flags.add(ChangeKind.ADD)
            elif line.startswith(b"deleted file mode "):
                header.flags.add(ChangeKind.DELETE)
            elif line.startswith((b"old mode ", b"new mode ")):
                header.flags.add(ChangeKind.MODE)
            elif line.startswith((b"rename from ", b"copy from ", b"rename to ", b"copy to ")):
                self._moved(header, line)
            elif not line.startswith((b"index ", b"similarity index ", b"dissimilarity index ")):
                return
            self.at.consume()

    def _moved(self, header: _Header, line: bytes) -> None:
        verb, end, name = line.split(b" ", 2)
        header.flags.add(ChangeKind.RENAME if verb == b"rename" else ChangeKind.COPY)
        path = _checked(_unquote(name), name)
        if end == b"from":
            header.old, header.has_old = path, True
        else:
            header.new, header.has_new = path, True

    def _file_lines(self, header: _Header) -> None:
        here = self.at.next(2)
        if len(here) == 2 and here[0].startswith(b"--- ") and here[1].startswith(b"+++ "):
            header.old, header.has_old = _file_name(here[0][4:]), True
            header.new, header.has_new = _file_name(here[1][4:]), True
            self.at.consume()
            self.at.consume()

    def _hunks(self, header: _Header) -> None:
        while self.at.line is not None:
            match = _HUNK.match(self.at.line)
            if match is None or not (header.has_old and header.has_new):
                return
            header.flags.add(ChangeKind.MODIFY)
            started = self.at.number
            self.at.consume()
            old = 1 if match[1] is None else int(match[1])
            new = 1 if match[2] is None else int(match[2])
            self._hunk_lines(old, new, started)

    def _hunk_lines(self, old: int, new: int, started: int) -> None:
        at = self.at
        while old > 0 or new > 0:
            if at.line is None:
                if old == new <= _CHOPPED_LINES:
                    return
                raise _Refusal(RejectReason.TRUNCATED_HUNK, f"the hunk of line {started} ends before its last line")
            mark = at.line[:1]
            if mark == b"+":
                new -= 1
            elif mark == b"-":
                old -= 1
            elif mark == b" " or not at.line.rstrip(b"\r"):
                old, new = old - 1, new - 1
            elif mark != b"\\":
                raise _Refusal(RejectReason.TRUNCATED_HUNK, f"the hunk of line {started} breaks off")
            if old < 0 or new < 0:
                raise _Refusal(RejectReason.TRUNCATED_HUNK, f"the hunk of line {started} miscounts its lines")
            at.consume()
        if at.line is not None and at.line.startswith(b"\\"):
            at.consume()

    def _binary(self, header: _Header) -> None:
        line = self.at.line
        if line is None:
            return
        if self._note_bare_binary(line):
            header.flags.add(ChangeKind.BINARY)
            self.at.consume()
            return
        if line.rstrip(b"\r") != b"GIT binary patch":
            return
        header.flags.add(ChangeKind.BINARY)
        started = self.at.number
        self.at.consume()
        blocks = 0
        while self.at.line is not None and (block := _BINARY_BLOCK.match(self.at.line)):
            blocks += 1
            self._count_inflated(block[1])
            self.at.consume()
            while self.at.line is not None and self.at.line.strip():
                self.at.consume()
            self.at.consume()  # the blank line that ends a block
        if not blocks:
            self.without_data.append(started)

    def _count_inflated(self, size: bytes) -> None:
        self.inflated += int(size) if len(size) < 12 else MAX_INFLATED_BYTES + 1
        if self.inflated > MAX_INFLATED_BYTES:
            raise _Refusal(
                RejectReason.TOO_LARGE, f"its binary hunks hold more than {MAX_INFLATED_BYTES >> 20} MiB once inflated"
            )

    def _note_bare_binary(self, line: bytes) -> bool:
        """Whether the line says that binary files differ, in place of their data."""
        bare = _BINARY_DIFFERS.match(line) is not None
        if bare:
            self.without_data.append(self.at.number)
        return bare


def _file_name(raw: bytes) -> bytes | None:
    """The path of a `---` or `+++` line without its first component. None: /dev/null."""
    raw = raw.rstrip(b"\r")
    if raw.startswith(b'"'):
        name = _unquote(raw)
    else:  # git ends a name that holds blanks with a tab, so that a blank before it is the name's own
        name, tab, _ = raw.partition(b"\t")
        name = name if tab else name.rstrip()
    if name == b"/dev/null":
        return None
    if name.startswith((b"/", b"../")):
        _checked(name, raw)
    return _checked(_strip_one(name), raw)


def _git_paths(rest: bytes) -> tuple[bytes, bytes] | None:
    """Both paths of a `diff --git` line. Unquoted names with blanks are told apart by being the same twice."""
    quoted = re.match(rb'("(?:[^"\\]|\\.)*")', rest)
    if quoted:
        pairs = [(_unquote(quoted[1]), _unquote(rest[quoted.end() :].lstrip(b" ")))]
    elif rest.endswith(b'"') and b' "' in rest:
        left, _, right = rest.partition(b' "')
        pairs = [(left, _unquote(b'"' + right))]
    else:
        cuts = [match.start() for match in re.finditer(b" ", rest)]
        pairs = [(rest[:cut], rest[cut + 1 :]) for cut in cuts]
        same = [pair for pair in pairs if _strip_one(pair[0]) == _strip_one(pair[1])]
        pairs = same if same else pairs if len(cuts) == 1 else []
    if not pairs:
        return None  # a rename of names with blanks: its own header lines say both
    old, new = pairs[0]
    return _checked(_strip_one(old), rest), _checked(_strip_one(new), rest)


def _strip_one(name: bytes) -> bytes:
    head, slash, tail = name.partition(b"/")
    return tail if slash else head


def _checked(path: bytes, shown: bytes) -> bytes:
    """`path`, unless it leaves the work tree, enters git's own directory or names nothing."""
    parts = path.split(b"/")
    if any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts):
        name = shown.decode("utf-8", "backslashreplace")
        raise _Refusal(RejectReason.PATH_ESCAPES, f"{name!r} is no path inside the work tree")
    return path


_ESCAPES = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


def _unquote(name: bytes) -> bytes:
    """Undo git's C-style quoting, such as `"a/\\303\\244"`. A name that is not quoted stays as it is."""
    if not (len(name) >= 2 and name.startswith(b'"') and name.rstrip().endswith(b'"')):
        return name
    return re.sub(
        rb"\\([0-3][0-7]{2}|.)",
        lambda m: bytes([int(m[1], 8)]) if len(m[1]) == 3 else _ESCAPES.get(m[1], m[1]),
        name.rstrip()[1:-1],
        flags=re.DOTALL,
    )
