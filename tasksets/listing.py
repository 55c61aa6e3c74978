"""The ids of rows whose file gives them as a column or a list. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tasksets.errors import TaskSetError


def index_ids(found: Sequence[object], name: str) -> tuple[str, ...]:
    """`found` as ids, row by row. Raises TaskSetError for none, for one that is not text, and for one given twice."""
    if not found:
        raise TaskSetError(f"{name}: holds no rows; give a set with at least one task")
    rows: dict[str, int] = {}
    for number, task_id in enumerate(found, start=1):
        if not isinstance(task_id, str):
            raise TaskSetError(f"{name}, row {number}: has no instance_id of text; every row needs one")
        if task_id in rows:
            raise TaskSetError(
                f"{name}, row {number}: instance_id {task_id!r} is already in row {rows[task_id]}; keep one of them"
            )
        rows[task_id] = number
    return tuple(rows)
