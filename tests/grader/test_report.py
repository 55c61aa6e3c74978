"""Verdicts in the words of the official harness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grader.parsers import parse_log
from grader.record import Grading
from grader.report import instance_report, run_report, run_report_name
from grader.report import report_path as path_of
from grader.verdict import Outcome, judge
from tasksets import open_taskset
from tests.grader.gradings import grading

# The keys of a run report by the official harness 5.0.2, without those of its containers.
COUNTED = [
    "completed",
    "resolved",
    "unresolved",
    "infra_failure",
    "ambiguous_failure",
    "empty_patch",
    "error",
    "submitted",
]
KEYS = [f"{name}_{what}" for name in COUNTED for what in ("instances", "ids")]
KEYS += ["total_instances", "incomplete_ids", "failure_reasons", "schema_version"]


def test_a_resolved_task_has_the_official_report() -> None:
    """The report of a verdict holds the official keys and both lists."""
    nothing: dict[str, list[str]] = {"success": [], "failure": []}
    expected = {
        "demo__one-1": {
            "patch_is_None": False,
            "patch_exists": True,
            "patch_successfully_applied": True,
            "resolved": True,
            "tests_status": {
                "FAIL_TO_PASS": {"success": ["t::a"], "failure": []},
                "PASS_TO_PASS": nothing,
                "FAIL_TO_FAIL": nothing,
                "PASS_TO_FAIL": nothing,
            },
        }
    }
    assert expected == instance_report(grading())


def test_a_run_without_readable_results_has_no_list() -> None:
    """Official reports then say that the patch was not applied, and list no test."""
    unread = grading(outcome=Outcome.UNRESOLVED).model_copy(update={"fail_to_pass": {}, "pass_to_pass": {}})
    report = instance_report(unread)
    assert report is not None
    assert (False, False, False) == (
        report["demo__one-1"]["patch_successfully_applied"],
        report["demo__one-1"]["resolved"],
        "tests_status" in report["demo__one-1"],
    )


@pytest.mark.parametrize("outcome", [Outcome.NO_VERDICT, Outcome.TIMED_OUT, Outcome.PATCH_REJECTED])
def test_what_did_not_run_to_its_end_has_no_report(outcome: Outcome) -> None:
    """The official harness writes a report for a suite that ended, and for nothing else."""
    assert None is instance_report(grading(outcome=outcome))


def test_a_run_report_counts_every_task_once() -> None:
    """Each outcome is where the official harness puts it, and the denominators add up."""
    outcomes = {
        "a": Outcome.RESOLVED,
        "b": Outcome.UNRESOLVED,
        "c": Outcome.NO_VERDICT,
        "d": Outcome.TIMED_OUT,
        "e": Outcome.PATCH_REJECTED,
    }
    gradings: list[Grading] = [grading(task_id, outcome) for task_id, outcome in outcomes.items()]
    gradings.append(grading("f", Outcome.UNRESOLVED, patch=b""))
    report = run_report(gradings, task_ids="abcdefgh", submitted_ids="abcdefg")
    ids = {name: report[f"{name}_ids"] for name in ("resolved", "unresolved", "completed", "error", "incomplete")}
    assert {
        "resolved": ["a"],
        "unresolved": ["b"],
        "completed": ["a", "b"],
        "error": ["c", "d", "e"],
        "incomplete": ["g", "h"],
    } == ids
    assert (["c"], {"c": "infrastructure", "d": "timed_out", "e": "patch_rejected"}) == (
        report["infra_failure_ids"],
        report["failure_reasons"],
    )
    parts = ("completed_instances", "error_instances", "empty_patch_instances")
    assert report["total_instances"] == sum(report[part] for part in parts) + len(report["incomplete_ids"])
    assert (8, 7) == (report["total_instances"], report["submitted_instances"])


def test_a_run_report_has_the_official_keys() -> None:
    """Every key of schema version 2 is there, and every count is the length of its list."""
    report = run_report([grading()], task_ids=["demo__one-1"], submitted_ids=["demo__one-1"])
    assert (sorted(KEYS), 2) == (sorted(report), report["schema_version"])
    assert [] == [name for name in COUNTED if report[f"{name}_instances"] != len(report[f"{name}_ids"])]
    assert report == json.loads(json.dumps(report))


@pytest.mark.parametrize(
    ("model", "expected"),
    [("org/model-1", "org__model-1"), ("..", "_.."), ("../../x", "..__..__x"), (".", "_."), ("", "_")],
)
def test_a_models_name_is_one_component_of_a_path(model: str, expected: str) -> None:
    """A slash becomes two underscores, and no name leads out of the run's directory."""
    assert f"{expected}/t__t-1/report.json" == str(path_of(model, "t__t-1"))
    assert f"{expected}.run.json" == run_report_name(model, "run")


@pytest.mark.real
def test_real_runs_give_their_own_report(real_data: Path) -> None:
    """From log to report.json: what we write for a real run equals what the official harness wrote."""
    tasks = open_taskset(str(real_data / "swebench_verified.jsonl"))
    differing = []
    for directory in sorted((real_data / "logs").iterdir()):
        official = json.loads((directory / "report.json").read_text())
        (task_id,) = official
        task = tasks.get(task_id)
        assert task.plan is not None
        log = (directory / "test_output.txt").read_bytes()
        told = judge(task.fail_to_pass, task.pass_to_pass, parse_log(task.plan.parser, log, framing="official"))
        lists = {"fail_to_pass": told.fail_to_pass, "pass_to_pass": told.pass_to_pass}
        ours = grading(task_id, told.outcome).model_copy(
            update={name: {"success": split.success, "failure": split.failure} for name, split in lists.items()}
        )
        if instance_report(ours) != official:
            differing.append(task_id)
    # Its list had five tests more when that run was reported; tests/grader/test_regrade_real.py compares with these.
    assert ["django__django-10097"] == differing
