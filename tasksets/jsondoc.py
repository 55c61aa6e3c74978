"""A `.json` file: one row, or a list of rows. It is parsed whole, since JSON has no lines to seek to."""

from __future__ import annotations

import codecs
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasksets.errors import TaskSetError
from tasksets.fields import Row
from tasksets.jsonl import JsonlRows, open_jsonl, refuse_binary
from tasksets.jsontext import JsonFault, load
from tasksets.listing import index_ids


@dataclass(frozen=True)
class ListedRows:
    """Rows that are already in memory."""

    name: str
    ids: tuple[str, ...]
    revision: str
    fields: tuple[dict[str, Any], ...]

    def row(self, index: int) -> Row:
        """Row `index`, counted from 0; messages count from 1."""
        return Row(self.fields[index], f"{self.name}, row {index + 1}")


def open_json(path: Path) -> ListedRows | JsonlRows:
    """Read `path`. A `.json` file that holds JSON lines is read as such. Raises TaskSetError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TaskSetError(f"{path}: cannot be read: {error.strerror}") from error
    refuse_binary(raw, path)
    text = raw.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        raise TaskSetError(f"{path}: holds no rows; give one task as an object, or a list of them")
    try:
        value = load(text)
    except JsonFault as fault:
        if "Extra data" in str(fault):
            return open_jsonl(path)
        raise TaskSetError(f"{path}: {fault}") from fault
    rows = value if isinstance(value, list) else [value]
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise TaskSetError(
                f"{path}, row {number}: is not an object with a task's fields; write one object per task"
            )
    ids = index_ids([row.get("instance_id") for row in rows], str(path))
    return ListedRows(str(path), ids, hashlib.sha256(raw).hexdigest(), tuple(rows))
