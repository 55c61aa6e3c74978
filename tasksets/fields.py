"""Reading typed fields out of one raw row. Every complaint names the row, the field and what was found. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasksets.errors import TaskSetError
from tasksets.jsontext import JsonFault, load

_PLAIN_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]{0,199}")


@dataclass(frozen=True)
class Row:
    """One row as its file gives it. `where` says file and line, or data set and split, for messages."""

    fields: Mapping[str, Any]
    where: str

    @property
    def name(self) -> str:
        """What messages call it: its id where it has a readable one, and where it stands."""
        task_id = self.fields.get("instance_id")
        return f"{task_id} ({self.where})" if isinstance(task_id, str) else self.where

    def task_id(self) -> str:
        """The row's id. It names files and sandboxes later, so it must be one plain word."""
        task_id = self.text("instance_id")
        if not _PLAIN_WORD.fullmatch(task_id):
            raise TaskSetError(
                f"{self.where}: field 'instance_id' is {task_id[:80]!r}; it must be one word of letters, digits and "
                "._+@- that starts with a letter or digit, at most 200 characters"
            )
        return task_id

    def text(self, field: str) -> str:
        """A string that must be there and must be encodable as UTF-8."""
        value = self.fields.get(field)
        if not isinstance(value, str):
            raise TaskSetError(f"{self.name}: field {field!r} must be a string and is {_kind(value)}; correct the row")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise TaskSetError(
                f"{self.name}: field {field!r} holds a lone surrogate at character {error.start}, which no file can "
                "hold as UTF-8; fetch the row again"
            ) from error
        return value

    def optional_text(self, field: str) -> str | None:
        """A string, or None where the field is missing, null or empty."""
        if self.fields.get(field) is None:
            return None
        return self.text(field) or None

    def plain_text(self, field: str) -> str:
        """A string that decides nothing: empty where the field is anything else."""
        value = self.fields.get(field)
        return value if isinstance(value, str) and _encodable(value) else ""

    def patch(self, field: str) -> bytes:
        """A patch, as the bytes of its UTF-8 text."""
        return self.text(field).encode()

    def ids(self, field: str) -> tuple[str, ...]:
        """Test ids: a list of strings, or a string that holds such a list as JSON."""
        value = self.fields.get(field)
        if isinstance(value, str):
            try:
                value = load(value)
            except JsonFault as fault:
                raise TaskSetError(f"{self.name}: field {field!r} must be a list of test ids, and {fault}") from fault
        return self.strings(field, value)

    def strings(self, field: str, value: object) -> tuple[str, ...]:
        """`value`, which was found in `field`, as a list of encodable strings."""
        if not isinstance(value, list | tuple):
            raise TaskSetError(f"{self.name}: field {field!r} must be a list of strings and is {_kind(value)}")
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise TaskSetError(
                    f"{self.name}: item {index} of field {field!r} must be a string and is {_kind(item)}"
                )
            if not _encodable(item):
                raise TaskSetError(f"{self.name}: item {index} of field {field!r} holds a lone surrogate")
        return tuple(value)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    names = {type(None): "missing", str: "a string", list: "a list", dict: "an object", bool: "true or false"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
