"""A run's gradings in the forms that others read: JSON lines, Parquet, and the official harness's reports.

Each form holds the gradings that count, one per key, in the order in which they ended; the ledger keeps the rest.
Gradings are taken from the ledger one at a time, so a run may be larger than memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from grader.errors import UsageError
from grader.ledger import Key, Ledger, key_of
from grader.record import Grading
from grader.verdict import Outcome

Format = Literal["jsonl", "parquet", "swebench"]
_ROWS_AT_ONCE = 256


def export(ledger: Ledger, form: Format, directory: Path) -> Path:
    """Write the run's gradings into `directory`, made if need be; gives the file or directory that was written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writers: dict[Format, Callable[[Ledger, Path], Path]] = {
            "jsonl": to_jsonl,
            "parquet": to_parquet,
            "swebench": to_swebench,
        }
        return writers[form](ledger, directory)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be written ({error.strerror}); name another directory") from error


def to_jsonl(ledger: Ledger, directory: Path) -> Path:
    """`gradings.jsonl`: one whole `Grading` per line, the same as `grader grade --json` prints."""
    target = directory / "gradings.jsonl"
    with target.open("w", encoding="utf-8") as file:
        for grading in ledger.current_gradings():
            file.write(grading.model_dump_json() + "\n")
    return target


def to_parquet(ledger: Ledger, directory: Path) -> Path:
    """`gradings.parquet`: a column for each fact that tables ask for, and the whole record as JSON in `grading`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    strings = pa.list_(pa.string())
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("task_id", "model_name_or_path", "patch_sha256", "task_digest")),
            *((name, pa.string()) for name in ("outcome", "cause", "started_at", "image_digest", "sandbox_id")),
            *((name, pa.string()) for name in ("apply_rung", "log_path", "log_sha256", "code_revision", "grading")),
            *((name, pa.float64()) for name in ("reward", "seconds")),
            *((name, strings) for name in ("reasons", "flags")),
            ("never_used", pa.bool_()),
            ("attempts", pa.int32()),
            ("suite_exit_code", pa.int32()),
        ]
    )
    target = directory / "gradings.parquet"
    rows = (_parquet_row(grading) for grading in ledger.current_gradings())
    with pq.ParquetWriter(target, schema) as writer:
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, schema=schema))
    return target


def _parquet_row(grading: Grading) -> dict[str, Any]:
    evidence = grading.evidence.model_dump()
    own = grading.model_dump(mode="json", exclude={"evidence"})
    return {**evidence, **own, "grading": grading.model_dump_json()}


def to_swebench(ledger: Ledger, directory: Path) -> Path:
    """The official layout: `logs/run_evaluation/RUN/MODEL/TASK/` with report.json, patch.diff and test_output.txt, and
    one `MODEL.RUN.json` beside it for each model.

    The official harness knows one patch per model and task; each further one is under `MODEL+HASH`, the first eight
    digits of the patch's SHA-256.
    """
    run = ledger.run_dir.name
    patches = {expected.key: expected.patch for expected in ledger.expected()}
    names = _official_names(list(patches))
    tasks = len({key.task_id for key in patches})
    reports: dict[str, RunReport] = {name: RunReport(tasks) for name in names.values()}
    for key, name in names.items():
        reports[name].submitted.append(key.task_id)
        if not patches[key].strip():
            reports[name].empty_patch.append(key.task_id)
    for grading in ledger.current_gradings():
        key = key_of(grading)
        if key not in names:
            continue
        reports[names[key]].add(grading)
        place = directory / "logs" / "run_evaluation" / run / names[key] / _file_name(grading.task_id)
        place.mkdir(parents=True, exist_ok=True)
        (place / "patch.diff").write_bytes(patches[key])
        if grading.outcome is not Outcome.NO_VERDICT:
            _write_json(place / "report.json", instance_report(grading))
        log = ledger.run_dir / grading.evidence.log_path if grading.evidence.log_path else None
        if log is not None and log.is_file():
            shutil.copyfile(log, place / "test_output.txt")
    for name, told in reports.items():
        _write_json(directory / f"{name}.{run}.json", told.as_json())
    return directory


def instance_report(grading: Grading) -> dict[str, Any]:
    """The official `report.json` of one grading that has a verdict."""
    nothing: dict[str, list[str]] = {"success": [], "failure": []}
    applied = grading.outcome is not Outcome.PATCH_REJECTED
    told: dict[str, Any] = {
        "patch_is_None": False,
        "patch_exists": True,
        "patch_successfully_applied": applied,
        "resolved": grading.outcome is Outcome.RESOLVED,
    }
    if applied and grading.outcome is not Outcome.TIMED_OUT:
        told["tests_status"] = {
            "FAIL_TO_PASS": nothing | {name: list(tests) for name, tests in grading.fail_to_pass.items()},
            "PASS_TO_PASS": nothing | {name: list(tests) for name, tests in grading.pass_to_pass.items()},
            "FAIL_TO_FAIL": nothing,
            "PASS_TO_FAIL": nothing,
        }
    return {grading.task_id: told}


@dataclass
class RunReport:
    """One model's row of the official run report (schema version 2), as it is gathered."""

    total: int
    submitted: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    error: list[str] = field(default_factory=list)
    empty_patch: list[str] = field(default_factory=list)

    def add(self, grading: Grading) -> None:
        """Put one grading where the official harness would: what did not run to its end is an error there, and an
        empty patch, which it never runs, is only counted."""
        task_id = grading.task_id
        if task_id in self.empty_patch:
            return
        if grading.outcome in {Outcome.RESOLVED, Outcome.UNRESOLVED}:
            self.completed.append(task_id)
            (self.resolved if grading.outcome is Outcome.RESOLVED else self.unresolved).append(task_id)
        else:
            self.error.append(task_id)

    def as_json(self) -> dict[str, Any]:
        ended = {*self.completed, *self.error, *self.empty_patch}
        lists = {
            "completed_ids": sorted(self.completed),
            "incomplete_ids": sorted(set(self.submitted) - ended),
            "empty_patch_ids": sorted(self.empty_patch),
            "submitted_ids": sorted(self.submitted),
            "resolved_ids": sorted(self.resolved),
            "unresolved_ids": sorted(self.unresolved),
            "error_ids": sorted(self.error),
        }
        counted = {
            "total_instances": self.total,
            "submitted_instances": len(self.submitted),
            "completed_instances": len(self.completed),
            "resolved_instances": len(self.resolved),
            "unresolved_instances": len(self.unresolved),
            "empty_patch_instances": len(self.empty_patch),
            "error_instances": len(self.error),
        }
        return {**counted, **lists, "schema_version": 2}


def _official_names(keys: Sequence[Key]) -> dict[Key, str]:
    """The directory of each key's model. No two keys share a directory and a task."""
    taken: set[tuple[str, str]] = set()
    names: dict[Key, str] = {}
    for key in keys:
        name = _file_name(key.model)
        if (name, key.task_id) in taken:
            name = f"{name}+{key.patch_sha256[:8]}"
        taken.add((name, key.task_id))
        names[key] = name
    return names


def _file_name(text: str) -> str:
    """`text` as one component of a path, as the official harness spells it; never one that leads elsewhere."""
    name = text.replace("/", "__").replace("\0", "")
    return name if name.strip(".") else f"_{name}"


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=4) + "\n", encoding="utf-8")
