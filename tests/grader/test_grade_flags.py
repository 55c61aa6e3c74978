"""`grader grade` as it is typed: the flags for many gradings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grader.cli import main
from tests.grader.rows import task_row
from tests.grader.test_run import write_lines


def graded(place: Path, capfd: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[list[str]], str]:
    """Grade two models' same patch for two tasks that no row says how to run: what came of each, and the story."""
    write_lines(place / "tasks.jsonl", [task_row("demo__one-1"), task_row("demo__two-2")])
    rows = [
        {"instance_id": task_id, "model_name_or_path": model, "model_patch": task_row(task_id)["patch"]}
        for task_id in ("demo__one-1", "demo__two-2")
        for model in ("a", "b")
    ]
    where = ["--taskset", place / "tasks.jsonl", "--patches", write_lines(place / "p.jsonl", rows)]
    where += ["--run", "r", "--runs-dir", place / "runs", "--state-dir", place / "state", "--concurrency", "1"]
    status = main(["grade", *map(str, where), "--json", *flags])
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    return status, [[g["task_id"], g["model_name_or_path"], *[f.split(":")[0] for f in g["flags"]]] for g in lines], err


def test_the_same_patch_is_graded_once_unless_it_is_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every submission has its line; `--no-dedupe` grades each."""
    (tmp_path / "each").mkdir()
    status, once, _ = graded(tmp_path, capfd)
    _, each, err = graded(tmp_path / "each", capfd, "--no-dedupe")

    assert 3 == status
    first, second = "demo__one-1", "demo__two-2"
    assert [[first, "a"], [first, "b", "graded_once"], [second, "a"], [second, "b", "graded_once"]] == once
    assert [[first, "a"], [first, "b"], [second, "a"], [second, "b"]] == each
    assert "4 expected = 0 resolved" in err
    assert "+ 4 refused (4 task refused) + 0 no verdict + 0 not run" in err


def test_fail_fast_says_where_it_stopped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first that is not resolved is the last that is graded, and the count says what was not."""
    status, ended, err = graded(tmp_path, capfd, "--fail-fast", "--no-dedupe")

    assert (3, [["demo__one-1", "a"]]) == (status, ended)
    assert "stopped at the first that is not resolved, demo__one-1" in err
    assert "+ 3 not run" in err
