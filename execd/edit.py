"""Edits for agents: view, create, replace exactly one match, insert, undo. Every byte outside an edit stays as it was.

Laws:
- A line feed in what the caller gives stands for the line end that the file has at that place, so CRLF and mixed ends
  stay; a CRLF in it is a CRLF. A BOM stays in front and is never part of a text. A missing final newline stays missing.
- A text matches where its bytes are, once; overlapping matches count. Two matches, or none, change nothing.
- What is not UTF-8 text without NUL bytes is refused: what an agent saw of it is not what the file holds.
- A request carries an id; a repeat of one that was carried out gets its answer.
- With `expect_sha256` a file that has changed meanwhile is refused.
- The disk's part runs in a child and is as atomic as a write. Undo steps are kept here, bounded, and only undo a file
  that is still as the edit left it.
"""

import os
import re
import stat

from .files import Replacement, answer_told, path_of, shown, tell
from .protocol import FRAME_OUTPUT, FRAME_RESULT, Refusal, decode, encode, frame, refusal_of, sha256
from .workers import collect

FILE_LIMIT = 16 << 20
TEXT_LIMIT = 1 << 20
UNDO_LIMIT = 16 << 20
WAIT_S = 120.0
MAX_WAITING = 64
KEPT_ANSWERS = 1000
BOM = b"\xef\xbb\xbf"
LINE_END = rb"(?:\r\n|(?<!\r)\n)"


class Text:
    """A file's text: `bom`, and `body` without it."""

    def __init__(self, data, name):
        self.bom = BOM if data.startswith(BOM) else b""
        self.body = data[len(self.bom) :]
        self.sha256 = sha256(data).hexdigest()
        try:
            self.body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refusal("not_text", "%s, byte %d" % (name, error.start)) from None
        if b"\0" in data:
            raise Refusal("not_text", name)

    def lines(self):
        """The lines with their ends."""
        *ended, rest = self.body.split(b"\n")
        return [line + b"\n" for line in ended] + ([rest] if rest else [])


def _end_of(line):
    return b"\r\n" if line.endswith(b"\r\n") else b"\n" if line.endswith(b"\n") else b""


def _end_near(body, start, end):
    """The line end in use at a place: that of its line, else of the line before, else LF."""
    after = body.find(b"\n", end)
    place = after if after >= 0 else body.rfind(b"\n", 0, start)
    return b"\r\n" if place > 0 and body[place - 1 : place] == b"\r" else b"\n"


def find_once(body, text):
    """(start, end) of the only place where `text` stands. Raises Refusal."""
    if not text:
        raise Refusal("bad_argument", "the text to replace is empty; insert instead")
    pieces = text.replace(b"\r\n", b"\n").split(b"\n")
    pattern = LINE_END.join(re.escape(piece) for piece in pieces)
    found = [match.span(1) for match in re.finditer(b"(?=(" + pattern + b"))", body)]
    if not found:
        raise Refusal("no_match")
    if len(found) > 1:
        numbers = ", ".join(str(body.count(b"\n", 0, start) + 1) for start, _end in found[:10])
        raise Refusal("many_matches", "%d matches, in lines %s" % (len(found), numbers))
    return found[0]


def with_ends(new, old, default):
    """`new` with the line ends of the bytes that it replaces: line by line where both are alike, from the top and from
    the bottom; in between those of the line that stood there; `default` where `old` had none."""
    ends = [match.group() for match in re.finditer(LINE_END, old)]
    old_lines = re.split(LINE_END, old)
    pieces = re.split(rb"(\r\n|\n)", new)
    lines, given = pieces[::2], pieces[1::2]
    top = 0
    while top < min(len(lines), len(old_lines)) and lines[top] == old_lines[top]:
        top += 1
    bottom = 0
    while bottom < min(len(lines), len(old_lines)) - top and lines[-1 - bottom] == old_lines[-1 - bottom]:
        bottom += 1
    out = [lines[0]]
    for number, line in enumerate(lines[1:]):
        from_bottom = len(given) - number
        if given[number] == b"\r\n":
            end = b"\r\n"
        elif not ends:
            end = default
        elif number < top or from_bottom > min(bottom, len(ends)):
            end = ends[min(number, len(ends) - 1)]
        else:
            end = ends[-from_bottom]
        out += [end, line]
    return b"".join(out)


def replaced(body, old, new):
    """(offset, bytes to remove, bytes to put there)."""
    start, end = find_once(body, old)
    return start, body[start:end], with_ends(new, body[start:end], _end_near(body, start, end))


def inserted(text, line, new):
    """As `replaced`, for whole lines behind line number `line`; 0 is the top."""
    if not new:
        raise Refusal("bad_argument", "there is nothing to insert")
    lines = text.lines()
    if line > len(lines):
        raise Refusal("bad_argument", "the file has %d lines" % len(lines))
    offset = sum(map(len, lines[:line]))
    near = [_end_of(each) for each in lines[max(line - 1, 0) : line + 1] + lines[:1]]
    end = next((each for each in near if each), b"\n")
    ended = new.endswith(b"\n")
    new = with_ends(new, b"", end)
    if offset and not _end_of(lines[line - 1]):  # behind a last line that has no end: the file goes on having none
        return offset, b"", end + (new[: -len(_end_of(new))] if ended else new)
    return offset, b"", new if ended else new + end


def view(_daemon, request, connection):
    """Answer with the lines `first` to `last` (1 is the first) and what the file is."""
    path = path_of(request)
    text = Text(_read(path), shown(path))
    lines = text.lines()
    first = request.number("first", 1, 1, 1 << 40)
    last = min(request.number("last", len(lines), 0, 1 << 40), len(lines))
    ends = {_end_of(line) for line in lines} - {b""}
    names = {0: "none", 1: "crlf" if b"\r\n" in ends else "lf", 2: "mixed"}
    about = {
        "lines": len(lines),
        "first": first,
        "last": last,
        "ends": names[len(ends)],
        "bom": bool(text.bom),
        "final_newline": text.body.endswith(b"\n"),
        "sha256": text.sha256,
    }
    shown_bytes = b"".join(lines[first - 1 : last])
    body = frame(FRAME_OUTPUT, bytes(8) + shown_bytes) + frame(FRAME_RESULT, encode(about))
    connection.answer(200, body, kind="application/octet-stream")


def _read(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as stream:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise Refusal("is_directory" if stat.S_ISDIR(status.st_mode) else "not_a_file", shown(path))
            data = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        raise refusal_of(error, shown(path)) from error
    if len(data) > FILE_LIMIT:
        raise Refusal("too_large", "%s is over %d bytes; edit it with the shell" % (shown(path), FILE_LIMIT))
    return data


class Edits:
    """Carries edits out, one after the other, and remembers how to undo them."""

    def __init__(self, daemon):
        self._daemon = daemon
        self._waiting = []
        self._busy = False
        self._steps = {}  # path: [(sha256 after it, offset, bytes removed, count of bytes put; None: it was created)]
        self._kept = 0
        self._answers = {}  # id: answer, so that a repeat of a request edits nothing twice

    def apply(self, request, connection, body):
        """Edit as the request says and answer with the new file's hash and the lines that are new."""
        if len(self._waiting) >= MAX_WAITING:
            raise Refusal("too_many", "edits wait")
        self._waiting.append((request, connection, body))
        if not self._busy:
            self._next()

    def _next(self):
        while self._waiting and not self._busy:
            request, connection, body = self._waiting.pop(0)
            try:
                self._start(request, connection, body)
            except Refusal as refusal:
                if not connection.closed:
                    connection.answer(refusal.status, refusal.body())

    def _start(self, request, connection, body):
        path, op, edit_id = path_of(request), request.text("op"), request.text("id")
        if edit_id in self._answers:
            answer_told(connection, self._answers[edit_id], "")
            return
        work = self._work(path, op, request, body)

        def done(said):
            self._busy = False
            status, _, answer = (said or b"").partition(b" ")
            if status == b"200":
                value = decode(answer)
                self._remember(path, op, value)
                said = b"200 " + encode(value)
                self._answers[edit_id] = said
                if len(self._answers) > KEPT_ANSWERS:
                    del self._answers[next(iter(self._answers))]
            answer_told(connection, said, "the edit was not carried out")
            self._next()

        collect(self._daemon, lambda _in_fd, out_fd: tell(out_fd, work), done, WAIT_S)
        self._busy = True

    def _work(self, path, op, request, body):
        """What a child is to do: it returns the answer, with `offset`, `removed_hex` and `put` for a later undo."""
        expected, user = request.text("expect_sha256", ""), self._daemon.user
        if op == "create":
            return lambda: _create(path, body, user)
        if op == "replace":
            cut = request.number("old_bytes", None, 0, len(body))
            return lambda: _change(path, expected, lambda text: replaced(text.body, body[:cut], body[cut:]))
        if op == "insert":
            line = request.number("line", None, 0, 1 << 40)
            return lambda: _change(path, expected, lambda text: inserted(text, line, body))
        if op != "undo":
            raise Refusal("bad_argument", "`op` is none of create, replace, insert, undo")
        if not self._steps.get(path):
            raise Refusal("nothing_to_undo", shown(path))
        step = self._steps[path][-1]
        return lambda: _undo(path, step)

    def _remember(self, path, op, value):
        steps = self._steps.setdefault(path, [])
        offset, removed_hex, put = value.pop("offset"), value.pop("removed_hex"), value.pop("put")
        if op == "undo":
            self._kept -= _size(steps.pop())
            return
        steps.append((value["sha256"], offset, bytes.fromhex(removed_hex), put))
        self._kept += _size(steps[-1])
        while self._kept > UNDO_LIMIT:
            oldest = next(iter(self._steps))
            if self._steps[oldest]:
                self._kept -= _size(self._steps[oldest].pop(0))
            else:
                del self._steps[oldest]


def _size(step):
    return 512 + len(step[2])


def _create(path, data, user):
    if os.path.lexists(path):
        raise Refusal("exists", shown(path))
    Text(data, "the new text")
    value = _write(path, data, user)
    value.update(offset=0, removed_hex="", put=None, first_line=1, last_line=len(Text(data, "").lines()))
    return value


def _change(path, expected, change):
    text = Text(_read(path), shown(path))
    if expected and expected != text.sha256:
        raise Refusal("changed", shown(path))
    offset, removed, put = change(text)
    body = text.body[:offset] + put + text.body[offset + len(removed) :]
    value = _write(path, text.bom + body, None)
    first = body.count(b"\n", 0, offset) + 1
    value.update(offset=len(text.bom) + offset, removed_hex=removed.hex(), put=len(put), first_line=first)
    value["last_line"] = first + put.rstrip(b"\r\n").count(b"\n")
    return value


def _undo(path, step):
    after, offset, removed, put = step
    data = _read(path)
    if sha256(data).hexdigest() != after:
        raise Refusal("changed", "%s was changed since that edit" % shown(path))
    if put is None:
        try:
            os.unlink(path)
        except OSError as error:
            raise refusal_of(error, shown(path)) from error
        return {"bytes": 0, "sha256": "", "offset": 0, "removed_hex": "", "put": 0, "first_line": 0, "last_line": 0}
    value = _write(path, data[:offset] + removed + data[offset + put :], None)
    value.update(offset=0, removed_hex="", put=0, first_line=data.count(b"\n", 0, offset) + 1)
    value["last_line"] = value["first_line"] + removed.rstrip(b"\r\n").count(b"\n")
    return value


def _write(path, data, user):
    file = Replacement(path, None, user)
    try:
        file.write(data)
        return file.commit()
    finally:
        file.abort()
