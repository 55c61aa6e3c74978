"""Rows of a JSONL file, found without parsing them: one pass notes where each line is and what its id is.

Law: opening keeps a few words per row in memory, whatever the file's size; a row is parsed when it is asked for. What
one pass can see is refused at once (not a file, not text, a line that is no object, an id twice); the rest when its
row is read.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasksets.errors import TaskSetError
from tasksets.fields import Row
from tasksets.jsontext import JsonFault, load

_HEAD = 4096
"""Bytes of a file by which it is told from a binary one."""
_ID_KEY = b'"instance_id"'
# An unescaped quote never stands inside a JSON string, so that this text before a colon is a key.
_ID = re.compile(rb'(?<!\\)"instance_id"\s*:\s*"([^"\\]*)"')


@dataclass(frozen=True)
class _Line:
    number: int
    offset: int
    length: int


@dataclass(frozen=True)
class JsonlRows:
    """The rows of one JSONL file, by id, in the file's order."""

    path: Path
    ids: tuple[str, ...]
    revision: str
    """SHA-256 (hex) of the file's bytes."""
    lines: tuple[_Line, ...]
    stamp: tuple[int, int]
    """Size and modification time when it was opened: a row is not read out of a file that has changed since."""

    def row(self, index: int) -> Row:
        """Row `index`. Raises TaskSetError where the line is not a JSON object or the file has changed."""
        line = self.lines[index]
        where = f"{self.path}, line {line.number}"
        try:
            with self.path.open("rb") as file:
                if _stamp(self.path) != self.stamp:
                    raise TaskSetError(f"{self.path}: has changed since it was opened; start again")
                file.seek(line.offset)
                text = file.read(line.length)
        except OSError as error:
            raise TaskSetError(f"{self.path}: cannot be read: {error.strerror}") from error
        return Row(parse_object(text, where), where)


def open_jsonl(path: Path) -> JsonlRows:
    """Index `path`. Raises TaskSetError that names file and line."""
    ids: dict[str, int] = {}
    lines: list[_Line] = []
    digest = hashlib.sha256()
    stamp = _stamp(path)
    for number, offset, raw in _numbered(path):
        digest.update(raw)
        text = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        if not text.strip():
            continue
        task_id = _id_of(text, f"{path}, line {number}")
        if task_id in ids:
            raise TaskSetError(
                f"{path}, line {number}: instance_id {task_id!r} is already on line {ids[task_id]}; keep one of them"
            )
        ids[task_id] = number
        lines.append(_Line(number, offset + len(raw) - len(text), len(text)))
    if not lines:
        raise TaskSetError(f"{path}: holds no rows; give a JSONL file with one task per line")
    return JsonlRows(path, tuple(ids), digest.hexdigest(), tuple(lines), stamp)


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """One JSON object. Raises TaskSetError that says where it breaks."""
    try:
        value = load(text)
    except JsonFault as fault:
        raise TaskSetError(f"{where}: {fault}") from fault
    if not isinstance(value, dict):
        raise TaskSetError(f"{where}: is JSON, but not an object with a task's fields; write one object per line")
    return value


def refuse_binary(head: bytes, path: Path) -> None:
    """Raise TaskSetError where the start of a file shows that it is not UTF-8 text."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise TaskSetError(f"{path}: is UTF-16 text; save it as UTF-8")
    if b"\0" in head[:_HEAD] or head.startswith((b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")):
        raise TaskSetError(f"{path}: is a binary file, not JSONL; unpack it, or name a Parquet file *.parquet")


def _numbered(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Each line's number from 1, its offset and its bytes. Lines end at newlines only, not at Unicode's others."""
    offset = 0
    try:
        with path.open("rb") as file:
            refuse_binary(file.peek(_HEAD), path)
            for number, raw in enumerate(file, start=1):
                yield number, offset, raw
                offset += len(raw)
    except OSError as error:
        raise TaskSetError(f"{path}: cannot be read: {error.strerror}") from error


def _id_of(text: bytes, where: str) -> str:
    """The line's id, without parsing the line where its bytes leave no doubt."""
    body = text.strip()
    if body.startswith(b"{") and body.endswith(b"}") and body.count(_ID_KEY) == 1:
        match = _ID.search(body)
        if match is not None:
            return match[1].decode("utf-8", "replace")
    task_id = parse_object(text, where).get("instance_id")
    if not isinstance(task_id, str):
        raise TaskSetError(f"{where}: has no instance_id of text; every row needs one")
    return task_id


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
