"""What execd's answers mean: JSON objects, frames, and its error codes as typed errors.

An error's class is chosen by a table of our own, never by what the sandbox sends.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sandbox.errors import CommandRefused, DaemonError, FileRefused
from sandbox.job import split_frames
from sandbox.wire import Answer, Broken

_FILE_CODES = frozenset(
    {"not_found", "not_a_file", "is_directory", "denied", "no_space", "not_verified", "os_error", "unsafe_member"}
    | {"tree_too_large", "not_text", "exists", "no_match", "many_matches", "changed", "nothing_to_undo"}
)
_COMMAND_CODES = frozenset({"bad_argument", "id_reused", "too_many", "no_shell", "cannot_fork", "too_large"})


def object_of(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; a daemon that sends anything else is not ours."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DaemonError("execd's answer is not its own; is another server there?", code="unknown")
    return value


async def frames(answer: Answer) -> AsyncIterator[tuple[bytes, bytes]]:
    """The frames (kind, payload) of an answer as they come."""
    buffer = bytearray()
    async for data in answer.pieces():
        buffer += data
        for whole in split_frames(buffer):
            yield whole


def frames_of(body: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """The frames of a whole body, none of their payloads copied."""
    view, start = memoryview(body), 0
    while start + 5 <= len(body):
        end = start + 5 + int.from_bytes(view[start + 1 : start + 5], "big")
        yield body[start : start + 1], view[start + 5 : end]
        start = end


def refused(body: bytes) -> DaemonError | Broken:
    """The typed error of the daemon's answer. A daemon that is ending is as good as gone: why is for others to say."""
    try:
        raw = json.loads(body)
        code, message = str(raw["error"]), str(raw["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return DaemonError("execd answered with an error that is not its own; is another server there?", code="unknown")
    if code == "shutting_down":
        return Broken("the sandbox is ending")
    kind = FileRefused if code in _FILE_CODES else CommandRefused if code in _COMMAND_CODES else DaemonError
    return kind(message, code=code)
