"""A run's gradings in the forms that others read: JSON lines, Parquet, and the official harness's reports.

Each form holds the gradings that count, one per key, in the order in which they ended; the ledger keeps the rest.
Gradings are taken from the ledger one at a time, so a run may be larger than memory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from grader import report as official
from grader.errors import UsageError
from grader.ledger import Key, Ledger, key_of
from grader.record import Grading

Format = Literal["jsonl", "parquet", "swebench"]
_ROWS_AT_ONCE = 256
_NAME_MAX = 255
"""Bytes that Linux lets a file's name have."""


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
    """The official layout: `logs/run_evaluation/RUN/MODEL/TASK/` with patch.diff, test_output.txt and report.json, and
    one `MODEL.RUN.json` beside it for each model.

    The official harness knows one patch per model and task: the second one asked for is under `MODEL+2`, and so on.
    """
    run = ledger.run_dir.name
    patches = {expected.key: expected.patch for expected in ledger.expected()}
    models = _official_models(list(patches))
    ended: dict[str, list[Grading]] = {model: [] for model in models.values()}
    _refuse_long_names([*ended, *(key.task_id for key in models), *(official.run_report_name(m, run) for m in ended)])
    for grading in ledger.current_gradings():
        model = models.get(key_of(grading))
        if model is None:
            continue
        place = directory / "logs" / "run_evaluation" / run / official.report_path(model, grading.task_id).parent
        _write_instance(grading, patches[key_of(grading)], ledger.run_dir, place)
        ended[model].append(grading.model_copy(update={"statuses": {}, "fail_to_pass": {}, "pass_to_pass": {}}))
    tasks = {key.task_id for key in patches}
    for model, gradings in ended.items():
        submitted = {key.task_id for key in models if models[key] == model}
        told = official.run_report(gradings, task_ids=tasks, submitted_ids=submitted)
        _write_json(directory / official.run_report_name(model, run), told)
    return directory


def _write_instance(grading: Grading, patch: bytes, run_dir: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "patch.diff").write_bytes(patch)
    told = official.instance_report(grading)
    if told is not None:
        _write_json(place / "report.json", told)
    if grading.evidence.log_path is not None and (run_dir / grading.evidence.log_path).is_file():
        shutil.copyfile(run_dir / grading.evidence.log_path, place / "test_output.txt")


def _official_models(keys: Sequence[Key]) -> dict[Key, str]:
    """The model name that each key's files go under. No two keys share a name and a task."""
    asked: Counter[tuple[str, str]] = Counter()
    models: dict[Key, str] = {}
    for key in keys:
        place = official.path_component(key.model), official.path_component(key.task_id)
        asked[place] += 1
        models[key] = place[0] if asked[place] == 1 else f"{place[0]}+{asked[place]}"
    return models


def _refuse_long_names(names: Iterable[str]) -> None:
    """Raise `UsageError`, before anything is written, for a name that no file can have."""
    for name in map(official.path_component, names):
        length = len(os.fsencode(name))
        if length > _NAME_MAX:
            raise UsageError(
                f"{name[:60]}...: is too long for a name of the official layout ({length} bytes, {_NAME_MAX} at most);"
                " export with --format jsonl or parquet"
            )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=4) + "\n", encoding="utf-8")
