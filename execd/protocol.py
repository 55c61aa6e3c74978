"""The words of the protocol: error codes, JSON, percent-encoding, the token, and the frames of an exec's answer.

Everything here is pure. `json`, `re`, `enum` and `hashlib` are not imported: together they cost more than the rest of
the daemon's start, and the C accelerators below them do the work alone. docs/execd.md describes the protocol.
"""

try:
    from _json import encode_basestring_ascii, make_scanner
except ImportError:  # an interpreter without the C accelerator
    make_scanner = None
try:
    from _sha256 import sha256  # up to 3.11
except ImportError:
    try:
        from _sha2 import sha256  # from 3.12
    except ImportError:
        from hashlib import sha256
from _operator import _compare_digest

# code: (HTTP status, what it means and what to do). The table is closed: no other code leaves the daemon.
CODES = {
    "malformed": (400, "the request is not valid HTTP/1.1; send a well-formed one"),
    "bad_argument": (400, "a parameter is missing or out of range; see docs/execd.md"),
    "unauthorized": (401, "the bearer token is missing or wrong"),
    "no_route": (404, "there is no such endpoint"),
    "wrong_method": (405, "the endpoint exists, but not with this method"),
    "slow_client": (408, "the request did not arrive in time; send it again"),
    "wrong_boot": (409, "another daemon than the expected one answers; this sandbox is not the one you had"),
    "id_reused": (409, "this exec id was used for another command; choose a fresh id"),
    "too_large": (413, "the body is over the limit of this endpoint; send it in pieces or as a file"),
    "tree_too_large": (413, "more lies there than is walked; remove what is not needed, or name a smaller directory"),
    "head_too_large": (431, "the request's head is over the limit; send fewer and shorter headers"),
    "result_dropped": (410, "this exec ended, but its record was dropped to bound memory; it was not run again"),
    "unknown_exec": (404, "no exec has this id"),
    "too_many": (429, "too many execs wait for this session or too many sessions are open; wait or reset one"),
    "no_shell": (500, "bash could not be started; the image must have bash 4 or newer"),
    "cannot_fork": (503, "the sandbox has no processes left; raise the limit or end some"),
    "not_found": (404, "no such file or directory"),
    "not_a_file": (409, "not a regular file"),
    "is_directory": (409, "it is a directory"),
    "denied": (403, "the sandbox's own permissions or a read-only file system forbid it"),
    "no_space": (507, "the disk or the quota is full; nothing was changed"),
    "not_verified": (500, "the bytes on disk are not the bytes sent; the old file was kept"),
    "os_error": (500, "the operating system refused; `message` says how"),
    "not_text": (409, "the file is not UTF-8 text without NUL bytes; edit it with the shell (sed, python) instead"),
    "exists": (409, "the file is there already; replace a part of it, or write it whole"),
    "no_match": (409, "the text to replace is not in the file; view the file and give it exactly"),
    "many_matches": (409, "the text to replace is in the file more than once; give more of the lines around it"),
    "changed": (409, "the file is not the expected one; view it again"),
    "nothing_to_undo": (409, "no edit of this file is remembered; restore it with the shell"),
    "unsafe_member": (409, "a member of the tree would leave its root; nothing more was unpacked"),
    "cancelled": (409, "the command was cancelled by its caller"),
    "shutting_down": (503, "the sandbox is ending"),
    "internal": (500, "a defect of execd; the daemon goes on"),
}

FRAME_OUTPUT = b"o"  # 8 bytes of offset, then bytes of output
FRAME_BEAT = b"h"  # empty: the daemon is alive and the command runs
FRAME_RESULT = b"r"  # JSON; the last frame
FRAME_ERROR = b"x"  # JSON {"error", "message"}; the last frame


class Refusal(Exception):
    """An error that the caller gets as JSON. `code` must be in CODES."""

    def __init__(self, code, message=None):
        Exception.__init__(self, code)
        self.code = code
        self.status, meaning = CODES[code]
        self.message = meaning if message is None else "%s: %s" % (message, meaning)

    def body(self):
        """The JSON body of the answer."""
        return encode({"error": self.code, "message": self.message})


def refusal_of(error, what):
    """The Refusal that says what an OSError means."""
    names = {2: "not_found", 20: "not_found", 21: "is_directory", 1: "denied", 13: "denied", 30: "denied"}
    names.update({28: "no_space", 122: "no_space", 27: "no_space", 39: "is_directory"})
    return Refusal(names.get(error.errno, "os_error"), "%s: %s" % (what, error.strerror or error))


def frame(kind, payload=b""):
    """One frame of an exec's answer: kind, length in 4 bytes, payload."""
    return frame_head(kind, len(payload)) + payload


def frame_head(kind, size):
    """What stands in front of a frame's payload of `size` bytes."""
    return kind + size.to_bytes(4, "big")


def encode(value):
    """JSON bytes of None, booleans, numbers, text, lists and dicts with text keys."""
    if make_scanner is None:
        import json

        return json.dumps(value).encode("ascii")
    return _text_of(value).encode("ascii")


def _text_of(value):  # noqa: PLR0911
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if value - value == 0 else "null"  # infinities and NaN are not JSON
    if isinstance(value, dict):
        return "{" + ",".join(encode_basestring_ascii(k) + ":" + _text_of(v) for k, v in value.items()) + "}"
    return "[" + ",".join(_text_of(v) for v in value) + "]"


class _ScannerContext:
    """What the C scanner asks of a decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo = {}


def decode(data):
    """The value of JSON bytes. Raises ValueError."""
    text = data.decode("utf-8").strip(" \t\r\n")
    if make_scanner is None:
        import json

        return json.loads(text)
    try:
        value, end = make_scanner(_ScannerContext)(text, 0)
    except StopIteration:
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def unquote(data):
    """Percent-decoded bytes. Raises Refusal on a broken escape."""
    if b"%" not in data:
        return data
    first, *rest = data.split(b"%")
    pieces = [first]
    try:
        for piece in rest:
            pieces.append(bytes((int(piece[:2], 16),)) if len(piece) >= 2 else bytes((int("bad"),)))
            pieces.append(piece[2:])
    except ValueError:
        raise Refusal("bad_argument", "a broken percent escape in the query") from None
    return b"".join(pieces)


def parse_query(data):
    """The dict (text names, bytes values) of a query string."""
    values = {}
    for pair in data.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name:
            values[unquote(name).decode("latin-1")] = unquote(value)
    return values


def token_matches(presented, expected_sha256_hex):
    """Whether the bearer token hashes to the expected value, in constant time."""
    return _compare_digest(sha256(presented).hexdigest(), expected_sha256_hex)
