"""Which patches are graded: the tasks' own reference, nothing, or a file of predictions as the official harness reads.

A patch stays bytes. A prediction that cannot be one is refused with its file and row, before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.errors import UsageError
from grader.record import Submission
from tasksets.jsontext import JsonFault, load
from tasksets.taskset import TaskSet

REFERENCE = "reference"
EMPTY = "empty"
_SHOWN = 10
"""Ids that one message lists."""


@dataclass(frozen=True)
class Chosen:
    """What is graded, in order, and what a person should know about the choice."""

    submissions: tuple[Submission, ...]
    notes: tuple[str, ...]


def choose(patches: str, taskset: TaskSet, only: Sequence[str]) -> Chosen:
    """The submissions that `patches` means (`reference`, `empty`, or a file), for the tasks `only` (all when empty).

    The same patch by the same model for the same task is graded once. Raises `UsageError`.
    """
    _refuse_unknown([(task_id, "--only") for task_id in only], taskset)
    wanted = tuple(dict.fromkeys(only)) or taskset.ids()
    if patches == REFERENCE:
        return Chosen(tuple(Submission(i, REFERENCE, taskset.get(i).reference_patch, REFERENCE) for i in wanted), ())
    if patches == EMPTY:
        return Chosen(tuple(Submission(i, EMPTY, b"", EMPTY) for i in wanted), ())
    found = list(read_predictions(Path(patches)))
    if only:
        found = [submission for submission in found if submission.task_id in set(only)]
    _refuse_unknown([(submission.task_id, submission.source) for submission in found], taskset)
    return _once_each(found, patches, only)


def read_predictions(file: Path) -> Iterator[Submission]:
    """The predictions of a JSONL file, of a JSON list, or of a JSON object whose keys are the task ids.

    Each has `instance_id`, `model_name_or_path` and `model_patch` (text; null is the empty patch). Other fields are
    left alone. Raises `UsageError` naming file and row.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be read ({error.strerror}); --patches takes `reference`, `empty` or a file of predictions"
        ) from error
    rows = _json_rows(file, data) if _is_one_document(file, data) else _jsonl_rows(file, data)
    return (_submission(where, row, task_id) for where, row, task_id in rows)


def _is_one_document(file: Path, data: bytes) -> bool:
    if file.suffix == ".jsonl":
        return False
    return file.suffix == ".json" or data.lstrip()[:1] == b"["


def _jsonl_rows(file: Path, data: bytes) -> Iterator[tuple[str, Any, str | None]]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield f"{file}:{number}", _json(f"{file}:{number}", line), None


def _json_rows(file: Path, data: bytes) -> Iterator[tuple[str, Any, str | None]]:
    document = _json(str(file), data)
    if isinstance(document, list):
        yield from ((f"{file}, entry {number}", row, None) for number, row in enumerate(document, start=1))
    elif isinstance(document, dict) and "instance_id" in document:
        yield str(file), document, None
    elif isinstance(document, dict):
        yield from ((f"{file}, entry {task_id!r}", row, task_id) for task_id, row in document.items())
    else:
        raise UsageError(f"{file}: holds neither a list nor an object of predictions; write one prediction per line")


def _json(where: str, data: bytes) -> Any:
    try:
        return load(data)
    except JsonFault as fault:
        raise UsageError(f"{where}: {fault}") from fault


def _submission(where: str, row: Any, task_id: str | None) -> Submission:
    if not isinstance(row, dict):
        raise UsageError(f"{where}: is not an object; a prediction has instance_id, model_name_or_path and model_patch")
    named = _text(where, row, "instance_id", default=task_id)
    if task_id is not None and named != task_id:
        raise UsageError(f"{where}: stands under {task_id!r} and says instance_id {named!r}; make the two agree")
    return Submission(named, _text(where, row, "model_name_or_path"), _patch(where, row), where)


def _text(where: str, row: dict[str, Any], field: str, default: str | None = None) -> str:
    value = row.get(field, default)
    if value is None:
        raise UsageError(f"{where}: has no {field}; add it")
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise UsageError(f"{where}: {field} is {value!r}; it must be printable text")
    return value


def _patch(where: str, row: dict[str, Any]) -> bytes:
    if "model_patch" not in row:
        raise UsageError(f"{where}: has no model_patch; add it, as text, or null for the empty patch")
    patch = row["model_patch"]
    if patch is None:
        return b""
    if not isinstance(patch, str):
        raise UsageError(f"{where}: model_patch is {type(patch).__name__}, not text; write the diff as a string")
    try:
        # Python writes bytes that are not UTF-8 as U+DC80 to U+DCFF (`surrogateescape`); this gives them back.
        return patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{where}: model_patch is not text: a lone surrogate (U+{ord(patch[error.start]):04X}) stands at character"
            f" {error.start}; write the patch's own bytes as UTF-8"
        ) from error


def _refuse_unknown(asked: Iterable[tuple[str, str]], taskset: TaskSet) -> None:
    """Refuse ids that the task set lacks; `asked` pairs each id with where it was named."""
    where = {task_id: source for task_id, source in reversed(list(asked)) if task_id not in taskset}
    if not where:
        return
    unknown = list(reversed(where.items()))
    told = []
    for task_id, source in unknown[:_SHOWN]:
        near = taskset.near(task_id)
        told.append(f"{source}: {task_id!r}" + (f" (near: {', '.join(near[:3])})" if near else ""))
    more = f"; and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    raise UsageError(
        f"{'; '.join(told)}{more}: not in {taskset.source}; `grader tasks list {taskset.source}` shows the ids that are"
    )


def _once_each(found: list[Submission], patches: str, only: Sequence[str]) -> Chosen:
    once = {(s.task_id, s.model_name_or_path, s.patch_sha256): s for s in reversed(found)}
    kept = tuple(s for s in found if once[s.task_id, s.model_name_or_path, s.patch_sha256] is s)
    if not kept:
        asked = f" for {', '.join(only)}" if only else ""
        raise UsageError(f"{patches}: holds no prediction{asked}; name another file or other tasks")
    notes = []
    if len(kept) < len(found):
        notes.append(f"{patches}: {len(found) - len(kept)} repeated predictions are graded once")
    missing = [task_id for task_id in dict.fromkeys(only) if task_id not in {s.task_id for s in kept}]
    if missing:
        notes.append(f"{patches}: no prediction for {', '.join(missing)}; not graded, and not in the denominators")
    return Chosen(kept, tuple(notes))
