"""A task set: named, revisioned, and lazy. Rows become Tasks when they are asked for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from tasksets.errors import TaskSetError
from tasksets.fields import Row
from tasksets.jsonl import open_jsonl
from tasksets.schema import task_of
from tasksets.task import Task

Specs = Literal["row", "swebench"]
"""Where a plan comes from when a row has none: nowhere, or the official `swebench` package, if it is installed."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class Rows(Protocol):
    """Where rows come from: their ids at once, each row when it is asked for."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Every row's id, once, in order."""
        ...

    @property
    def revision(self) -> str:
        """What the content is known by."""
        ...

    def row(self, index: int) -> Row:
        """Row `index`, untyped."""
        ...


@dataclass(frozen=True)
class TaskSet:
    """Tasks by id. Opening it types no row; a row that cannot be typed raises when it is asked for."""

    source: str
    """The file or the hub's id, as the caller gave it."""
    rows: Rows
    specs: Specs = "row"

    @property
    def revision(self) -> str:
        """SHA-256 (hex) of the file, or the hub's revision."""
        return self.rows.revision

    def ids(self) -> tuple[str, ...]:
        """Every task's id, in the set's order."""
        return self.rows.ids

    def get(self, task_id: str) -> Task:
        """The task. Raises TaskSetError for an unknown id (naming near ones) and for a row that cannot be typed."""
        index = self._index.get(task_id)
        if index is None:
            raise self._unknown(task_id)
        task = task_of(self.rows.row(index))
        if task.task_id != task_id:
            raise TaskSetError(f"{task.source}: its instance_id is inside another field; put it at the top of the row")
        if self.specs == "row":
            return task
        from tasksets.official import with_official_plan

        return with_official_plan(task)

    def require(self, task_ids: Iterable[str]) -> tuple[str, ...]:
        """The ids, each once. Raises TaskSetError for none at all and for an unknown one, naming near ones."""
        wanted = tuple(dict.fromkeys(task_ids))
        if not wanted:
            raise TaskSetError(f"{self.source}: no task id was given; name one, or leave the choice out for all")
        for task_id in wanted:
            if task_id not in self:
                raise self._unknown(task_id)
        return wanted

    def near(self, task_id: str) -> tuple[str, ...]:
        """Up to five ids that look like `task_id`, the nearest first."""
        inside = [known for known in self.ids() if task_id and task_id.lower() in known.lower()]
        alike = difflib.get_close_matches(task_id, self.ids(), n=5, cutoff=0.6)
        return tuple(dict.fromkeys([*inside[:5], *alike]))[:5]

    def __iter__(self) -> Iterator[Task]:
        return (self.get(task_id) for task_id in self.ids())

    def __len__(self) -> int:
        return len(self.ids())

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._index

    def _unknown(self, task_id: str) -> TaskSetError:
        near = self.near(task_id)
        hint = f"near ones are {', '.join(near)}" if near else "`grader tasks list` shows them all"
        return TaskSetError(f"{self.source}: has no task {task_id!r}; {hint}")

    @cached_property
    def _index(self) -> dict[str, int]:
        return {task_id: index for index, task_id in enumerate(self.ids())}


def open_taskset(source: str, *, split: str | None = None, specs: Specs = "row") -> TaskSet:
    """Open a `.jsonl`, `.json` or `.parquet` file, or a data set on the hub by its id.

    `split` chooses among a hub data set's splits; None takes `test`, or the only one. `specs` says whether
    rows without a plan get one from the official package. Raises TaskSetError.
    """
    if specs == "swebench":
        from tasksets.official import require_official

        require_official()
    path = Path(source)
    if _is_there(path):
        if split is not None:
            raise TaskSetError(f"{source}: is a file, and a file has no split {split!r}; leave the split out")
        return TaskSet(source, _open_file(path), specs)
    if path.suffix in {".jsonl", ".json", ".parquet", ".ndjson"} or not _HUB_ID.fullmatch(source):
        raise TaskSetError(
            f"{source}: there is no such file; check the path, or name a data set of the hub as OWNER/NAME"
        )
    from tasksets.hub import open_hub

    return TaskSet(source, open_hub(source, split), specs)


def _is_there(path: Path) -> bool:
    """Whether `path` is a file. Raises TaskSetError for a directory, a pipe, and a name the system cannot look up."""
    try:
        if path.is_dir():
            raise TaskSetError(f"{path}: is a directory; name one .jsonl, .json or .parquet file in it")
        if path.exists() and not path.is_file():
            raise TaskSetError(f"{path}: is no plain file, and rows are read out of order; save it to a file first")
        return path.exists()
    except OSError as error:
        raise TaskSetError(f"{path}: cannot be looked up: {error.strerror}; check the path") from error


def _open_file(path: Path) -> Rows:
    if path.suffix == ".parquet":
        from tasksets.parquet import open_parquet

        return open_parquet(path)
    if path.suffix == ".json":
        from tasksets.jsondoc import open_json

        return open_json(path)
    return open_jsonl(path)
