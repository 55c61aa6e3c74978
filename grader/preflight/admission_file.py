"""The admission file: what preflight found, task by task, and the configuration for which it holds.

JSON lines: a header, then one line per task. `grader grade --admission FILE` grades only what is admitted in it. The
header's `covers` is the configuration; where the campaign's differs, the file is void and the message says in what.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from grader.errors import UsageError
from grader.ledger import differences, identity_hash
from grader.preflight.classes import Class

_SHOWN = 5


class Header(BaseModel):
    """What the file's admissions depend on, and where they come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    admission: Literal[1] = 1
    """Version of this format."""
    covers: Mapping[str, object]
    """The configuration under which the tasks ran."""
    covers_sha256: str
    taskset: str
    taskset_revision: str
    """Not compared: a task's own digest is."""
    run: str
    """Name of the run whose ledger holds the gradings; re-runs under changed conditions have names that begin so."""
    repeats: int
    """That the last preflight asked for; an entry's rows tell how many there are of its task."""
    slow_share: float
    created_at: str
    code_revision: str


class _SealedHeader(Header):
    """The header as it stands in the file."""

    content_sha256: str
    """Of everything else in the file. It tells an edit or a cut, and is no signature."""


class FlakyTest(BaseModel):
    """A listed test that did not always do the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    test: str
    patch: str
    passed: int
    runs: int


class Need(BaseModel):
    """A changed condition with which the reference passed every time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    condition: str
    value: str
    runs: int


class Entry(BaseModel):
    """One task."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    task_id: str
    kind: Class
    why: str = ""
    flaky: tuple[FlakyTest, ...] = ()
    needs: tuple[Need, ...] = ()
    """There may be others: preflight stops at the first that it finds."""
    hints: tuple[str, ...] = ()
    suite_s: float | None = None
    """The longest that the suite took with the reference, in seconds."""
    sandbox_hours: float = 0.0
    """What its preflight cost."""
    rows: tuple[str, ...] = ()
    """Evidence: `RUN#N` is row N of that run's ledger."""
    task_digest: str | None = None
    """None: the row could not be read."""
    origin: str | None = None
    """A hash of what decides the image: recipe, given digest, or both. None: the row's own image."""

    @model_validator(mode="after")
    def _is_of_one_version_of_the_task(self) -> Entry:
        if self.admitted and self.task_digest is None:
            raise ValueError("an admitted task has a task_digest")
        return self

    @property
    def admitted(self) -> bool:
        return self.kind is Class.ADMITTED


class Admissions(BaseModel):
    """A whole admission file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    header: Header
    entries: tuple[Entry, ...]


def covers(identity: Mapping[str, object]) -> dict[str, object]:
    """The part of a run's identity that decides what tests do. Rewards do not; a task answers for itself."""
    return {name: value for name, value in identity.items() if name not in {"rewards", "taskset_revision"}}


def write(path: Path, admissions: Admissions) -> None:
    """Write the file, whole or not at all. A link stays, and what it leads to is replaced; what is no regular file,
    such as a pipe or a device, is written to as it stands. Raises `UsageError` where it cannot be written."""
    entries = [entry.model_dump_json() for entry in admissions.entries]
    sealed = _SealedHeader(**admissions.header.model_dump(), content_sha256=_seal(admissions.header, entries))
    text = "".join(line + "\n" for line in [sealed.model_dump_json(), *entries])
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path.resolve(), text)
    except (OSError, RuntimeError) as error:  # up to Python 3.12 a loop of links is a RuntimeError
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be written ({why}); name another with --out") from error


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read(path: Path) -> Admissions:
    """Read an admission file. Raises `UsageError`, naming the row."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); `grader preflight` writes one") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text; make it anew with `grader preflight`") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise UsageError(f"{path}: is empty; make it anew with `grader preflight`")
    sealed = _parsed(_SealedHeader, path, *lines[0])
    header = Header.model_validate(sealed.model_dump(exclude={"content_sha256"}))
    if sealed.content_sha256 != _seal(header, [line for _, line in lines[1:]]):
        raise UsageError(f"{path}: was changed by hand or cut short; run `grader preflight` again")
    entries = tuple(_parsed(Entry, path, number, line) for number, line in lines[1:])
    if len({entry.task_id for entry in entries}) < len(entries):
        raise UsageError(f"{path}: names a task twice; make it anew with `grader preflight`")
    return Admissions(header=header, entries=entries)


def _seal(header: Header, entries: Sequence[str]) -> str:
    return identity_hash({"header": header.model_dump(mode="json"), "entries": [*entries]})


def kept_entries(path: Path, header: Header, asked: Iterable[str]) -> tuple[Entry, ...]:
    """The entries of the file at `path` that stay when one for the tasks `asked` is written there: all other tasks'.

    None where there is no file, or none that can be read as one: it admits nothing that would be lost. Raises
    `UsageError` where they were made under another configuration than the header's.
    """
    try:
        before = read(path) if path.is_file() else None
    except (UsageError, OSError):
        before = None
    others = {entry.task_id: entry for entry in before.entries} if before else {}
    for task_id in asked:
        others.pop(task_id, None)
    if before is not None and others:
        changes = [*differences(_decisive(before.header), _decisive(header))]
        if changes:
            raise UsageError(
                f"{path}: has {len(others)} tasks that this preflight leaves out, and holds for another configuration:"
                f" {_some(changes)}. Preflight all of them, or name another file with --out"
            )
    return tuple(others.values())


def _decisive(header: Header) -> dict[str, object]:
    return {**header.covers, "slow_share": header.slow_share}


M = TypeVar("M", bound=BaseModel)


def _parsed(model: type[M], path: Path, number: int, line: str) -> M:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the row"
        raise UsageError(
            f"{path}, row {number}: {place}: {first['msg']}; it is no admission file of this version, make it anew with"
            " `grader preflight`"
        ) from error


def refusals(
    path: Path, identity: Mapping[str, object], tasks: Iterable[tuple[str, str, str | None]]
) -> dict[str, str]:
    """Which of the tasks (id, digest, origin of the image) the file does not admit, each with one sentence why.

    Raises `UsageError` when the file is void: it was made under another configuration, or for other versions of tasks.
    """
    admissions = read(path)
    changes = [*differences(admissions.header.covers, covers(identity))]
    by_id = {entry.task_id: entry for entry in admissions.entries}
    refused: dict[str, str] = {}
    for task_id, digest, origin in tasks:
        entry = by_id.get(task_id)
        if entry is None:
            refused[task_id] = f"{path.name} does not have it; preflight it too"
        elif entry.task_digest is not None and (entry.task_digest, entry.origin) != (digest, origin):
            what = "task" if entry.task_digest != digest else "image of task"
            changes.append(f"{what} {task_id} has changed since")
        elif not entry.admitted:
            refused[task_id] = f"{path.name} says {entry.kind.replace('_', ' ')}" + (f": {entry.why}" * bool(entry.why))
    if changes:
        raise UsageError(
            f"{path}: is void: {_some(changes)}. Give the old settings back, or run `grader preflight` again"
        )
    return refused


def _some(changes: Sequence[str]) -> str:
    more = f"; and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return "; ".join(changes[:_SHOWN]) + more


def as_json(entry: Entry) -> str:
    """The entry as one line."""
    return json.dumps(entry.model_dump(mode="json"))
