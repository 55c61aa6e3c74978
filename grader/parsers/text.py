"""From the bytes of a log to its lines. The only place where a log is decoded.

Bytes become text here, and no earlier, because test ids in a task's row are text. Bytes that are not UTF-8 become
U+FFFD, as the official harness writes them, so an id compares equal to the one that the row's author saw.
(`surrogateescape` would keep the bytes, but such ids can be stored neither in SQLite nor as JSON.) CRLF and a lone CR
end a line, as they do when the official harness reads its log. The log itself stays bytes, and its hash is over these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE = re.compile(r"[^\n]+")


def decode(log: bytes) -> str:
    """The log as text whose lines end with a newline. Never raises."""
    return log.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def lines(text: str) -> Iterator[str]:
    """The lines that are not empty, one at a time, so that a log of 64 MiB is not held twice."""
    return (match.group() for match in _LINE.finditer(text))
