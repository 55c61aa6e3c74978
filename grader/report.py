"""Gradings in the words of the official harness (5.0.2): one report per task, one report per run, and their names.

Pure. Law: an official report exists for a suite that ran to its end, and for nothing else. A patch that does not apply,
a suite that outlived its limit and a grading without a verdict are errors there, so none of them is unresolved here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from grader.record import Grading
from grader.verdict import Cause, Outcome

_COMPLETED = frozenset({Outcome.RESOLVED, Outcome.UNRESOLVED})
_EMPTY_PATCH = hashlib.sha256(b"").hexdigest()


def instance_report(grading: Grading) -> dict[str, Any] | None:
    """The content of a task's `report.json`; None where the official harness writes none.

    Where no test result could be read from the log, official reports say that the patch was not applied, and list no
    test. The grading's reasons tell what it was.
    """
    if grading.outcome not in _COMPLETED:
        return None
    told: dict[str, Any] = {
        "patch_is_None": False,
        "patch_exists": True,
        "patch_successfully_applied": _results_were_read(grading),
        "resolved": grading.outcome is Outcome.RESOLVED,
    }
    if _results_were_read(grading):
        told["tests_status"] = {
            "FAIL_TO_PASS": _list(grading.fail_to_pass),
            "PASS_TO_PASS": _list(grading.pass_to_pass),
            "FAIL_TO_FAIL": _list({}),
            "PASS_TO_FAIL": _list({}),
        }
    return {grading.task_id: told}


class _Ended(NamedTuple):
    """What a run report needs of a grading, so that a run may be larger than memory."""

    outcome: Outcome
    cause: Cause | None
    empty_patch: bool

    @classmethod
    def of(cls, grading: Grading) -> _Ended:
        return cls(grading.outcome, grading.cause, grading.evidence.patch_sha256 == _EMPTY_PATCH)


def run_report(
    gradings: Iterable[Grading], *, task_ids: Collection[str], submitted_ids: Collection[str]
) -> dict[str, Any]:
    """The content of one model's run report, schema version 2. At most one grading per task: the one that counts.

    `task_ids` is the whole task set, `submitted_ids` those that the model has a patch for. What was submitted and has
    not ended is incomplete, as is what was never submitted: total = completed + empty patch + error + incomplete.
    """
    submitted = frozenset(submitted_ids)
    ended = {grading.task_id: _Ended.of(grading) for grading in gradings if grading.task_id in submitted}
    # The official harness never runs an empty patch, whatever a run of ours made of it.
    ran = {task_id: end for task_id, end in ended.items() if not end.empty_patch}
    completed = {task_id for task_id, end in ran.items() if end.outcome in _COMPLETED}
    resolved = {task_id for task_id, end in ran.items() if end.outcome is Outcome.RESOLVED}
    ids = {
        "completed": completed,
        "incomplete": {*task_ids, *submitted} - ended.keys(),
        "empty_patch": ended.keys() - ran.keys(),
        "submitted": submitted,
        "resolved": resolved,
        "unresolved": completed - resolved,
        "infra_failure": {task_id for task_id, end in ran.items() if end.cause is Cause.INFRASTRUCTURE},
        "ambiguous_failure": set[str](),  # the official harness guesses these from words in logs; we have causes
        "error": ran.keys() - completed,
    }
    errors = {task_id: str(ran[task_id].cause or ran[task_id].outcome) for task_id in sorted(ids["error"])}
    return {
        "total_instances": len({*task_ids, *submitted}),
        **{f"{name}_instances": len(found) for name, found in ids.items() if name != "incomplete"},
        **{f"{name}_ids": sorted(found) for name, found in ids.items()},
        "failure_reasons": errors,
        "schema_version": 2,
    }


def report_path(model: str, task_id: str) -> PurePosixPath:
    """Where a task's report lies below the run's directory: `MODEL/TASK/report.json`."""
    return PurePosixPath(path_component(model), path_component(task_id), "report.json")


def run_report_name(model: str, run_id: str) -> str:
    """The file name of a model's run report: `MODEL.RUN.json`."""
    return f"{path_component(model)}.{path_component(run_id)}.json"


def path_component(name: str) -> str:
    """`name` as one component of a path, spelt as the official harness does; never one that leads elsewhere."""
    spelt = name.replace("/", "__").replace("\0", "")
    return spelt if spelt.strip(".") else f"_{spelt}"


def _results_were_read(grading: Grading) -> bool:
    """Whether the judge could sort any listed test. It leaves both lists empty where official rules read no result."""
    return any(grading.fail_to_pass.values()) or any(grading.pass_to_pass.values())


def _list(split: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    return {name: list(split.get(name, ())) for name in ("success", "failure")}
