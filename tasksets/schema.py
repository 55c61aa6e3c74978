"""Which schema a row is of, told by its fields, and the row as a `Task`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tasksets import rebench, swebench, swegym, swesmith
from tasksets.errors import TaskSetError
from tasksets.fields import Row
from tasksets.task import Task


@dataclass(frozen=True)
class Schema:
    """A kind of row: the fields by which it is recognised, and how it becomes a Task."""

    name: str
    required: tuple[str, ...]
    marks: Callable[[Mapping[str, Any]], bool]
    """Tells it from its kin, given that all of `required` are there."""
    task_of: Callable[[Row, str], Task]


def _always(_: Mapping[str, Any]) -> bool:
    return True


def _has_lists(fields: Mapping[str, Any]) -> bool:
    return isinstance(fields.get("FAIL_TO_PASS"), list)


_PLANNED = (*swebench.REQUIRED, "eval_script", "log_parser", "image")

# From the most telling fields to the least: the first that fits is taken.
SCHEMAS: tuple[Schema, ...] = (
    Schema("swe-rebench-v2", rebench.REQUIRED, _always, rebench.task_of),
    Schema("swebench-multilingual", (*_PLANNED, "eval_type"), _has_lists, swebench.task_of),
    Schema("swebench-2026", _PLANNED, _always, swebench.task_of),
    Schema("swebench-2024", (*swebench.REQUIRED, "environment_setup_commit"), _always, swebench.task_of),
    Schema("swe-gym", swebench.REQUIRED, _always, swegym.task_of),
    Schema("swe-smith", swesmith.REQUIRED, lambda fields: "test_patch" not in fields, swesmith.task_of),
)


def recognise(row: Row) -> Schema:
    """The schema of `row`. Raises TaskSetError that says which fields the nearest schema misses."""
    for schema in SCHEMAS:
        if all(field in row.fields for field in schema.required) and schema.marks(row.fields):
            return schema
    nearest = max(reversed(SCHEMAS), key=lambda schema: len(schema.required) - 2 * len(_missing(schema, row)))
    raise TaskSetError(
        f"{row.name}: is of no known schema; the nearest is {nearest.name}, of which it lacks "
        f"{', '.join(_missing(nearest, row)) or 'nothing but the right kinds of values'}; add these fields"
    )


def task_of(row: Row) -> Task:
    """`row` as a Task. Raises TaskSetError that names row and field."""
    schema = recognise(row)
    return schema.task_of(row, schema.name)


def _missing(schema: Schema, row: Row) -> list[str]:
    return [field for field in schema.required if field not in row.fields]
