"""`grader tasks`, as a person or a script runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grader.cli import main
from tests.tasksets.rows import SCRIPT, verified_2024, verified_2026, write_jsonl

PINNED = "lamps/lamp@sha256:" + "0" * 64


@pytest.fixture
def taskset(tmp_path: Path) -> str:
    """Three tasks: a sound one, one with a warning, one that would be refused."""
    rows = [
        verified_2026(image=PINNED),
        verified_2026(instance_id="lamp__lamp-2", repo="lamp/shade", image="lamps/shade:latest"),
        verified_2024(instance_id="lamp__lamp-3", FAIL_TO_PASS="[]"),
    ]
    return str(write_jsonl(tmp_path / "set.jsonl", rows))


def test_list_prints_a_row_per_task(taskset: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Id, repository, version, counts, plan and image stand in one line each."""
    assert 0 == main(["tasks", "list", taskset])

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["TASK", "REPO", "VERSION", "F2P", "P2P", "PLAN", "IMAGE"] == lines[0]
    assert ["lamp__lamp-1", "lamp/lamp", "1.2", "1", "1", "yes", PINNED] == lines[2]
    assert ["lamp__lamp-3", "lamp/lamp", "1.2", "0", "1", "no", "-"] == lines[4]


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        (["--repo", "lamp/shade"], ["lamp__lamp-2"]),
        (["--only", "lamp__lamp-3, lamp__lamp-1"], ["lamp__lamp-3", "lamp__lamp-1"]),
        (["--only", "lamp__lamp-3,lamp__lamp-2", "--repo", "lamp/lamp"], ["lamp__lamp-3"]),
        (["--repo", "nobody/nothing"], []),
    ],
)
def test_list_filters(taskset: str, capsys: pytest.CaptureFixture[str], flags: list[str], ids: list[str]) -> None:
    """`--only` keeps the order given, `--repo` narrows it."""
    assert 0 == main(["tasks", "list", "--taskset", taskset, *flags, "--json"])

    assert ids == [json.loads(line)["task_id"] for line in capsys.readouterr().out.splitlines()]


def test_show_tells_all_that_matters(taskset: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Origin, plan, ids and patches are there for a reader, and every field for a script."""
    assert 0 == main(["tasks", "show", "lamp__lamp-1", taskset])
    text = capsys.readouterr().out
    assert 0 == main(["tasks", "show", "lamp__lamp-1", taskset, "--json"])
    task = json.loads(capsys.readouterr().out)

    for expected in (
        "line 1 (swebench-2026)",
        "parse_log_pytest",
        "make translations",
        "tests/test_switch.py::test_on",
    ):
        assert expected in text
    assert "/testbed" == task["plan"]["workdir"]
    assert verified_2024()["patch"] == task["reference_patch"]


def test_show_prints_no_control_characters_of_the_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row cannot move the reader's cursor."""
    path = write_jsonl(tmp_path / "set.jsonl", [verified_2024(problem_statement="\x1b[2Jgone")])

    assert 0 == main(["tasks", "show", "lamp__lamp-1", str(path)])

    assert "\\x1b[2Jgone" in capsys.readouterr().out


def test_check_counts_by_code_and_refuses(taskset: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors come first with their counts, the denominators add up, and the status is 3."""
    assert 3 == main(["tasks", "check", taskset])

    said = capsys.readouterr()
    rows = [line.split()[:3] for line in said.out.splitlines()[2:]]
    assert [
        ["no-fail-to-pass", "error", "1"],
        ["no-image", "error", "1"],
        ["no-plan", "error", "1"],
        ["unpinned-image", "warning", "1"],
    ] == rows
    assert "3 tasks checked, 1 would be refused, 2 admitted (1 of them with warnings)" in said.err


def test_check_is_content_with_warnings(taskset: str) -> None:
    """Without errors the status is 0."""
    assert 0 == main(["tasks", "check", taskset, "--only", "lamp__lamp-1,lamp__lamp-2"])


def test_check_prints_a_json_line_per_task(taskset: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Sound tasks have a line too, so that the lines are the denominator."""
    assert 3 == main(["tasks", "check", taskset, "--json"])

    tasks = {task["task_id"]: task for task in map(json.loads, capsys.readouterr().out.splitlines())}
    assert [False, False, True] == [task["refused"] for task in tasks.values()]
    assert [] == tasks["lamp__lamp-1"]["findings"]
    assert ["unpinned-image"] == [finding["code"] for finding in tasks["lamp__lamp-2"]["findings"]]


def test_check_goes_on_past_a_row_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row with a wrong field, and one whose script has an unknown line, are refused by name; the rest is checked."""
    rows = [
        verified_2026(image=PINNED),
        verified_2026(instance_id="lamp__lamp-2", patch=7),
        verified_2026(instance_id="lamp__lamp-3", eval_script=SCRIPT.replace("git status", "git bisect")),
    ]
    path = write_jsonl(tmp_path / "set.jsonl", rows)

    assert 3 == main(["tasks", "check", str(path), "--json"])

    tasks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    messages = [finding["message"] for task in tasks for finding in task["findings"]]
    assert "field 'patch' must be a string and is a number" in messages[0]
    assert "lamp__lamp-3 (" in messages[1]
    assert "line 10 of its eval_script" in messages[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["list", "nowhere.jsonl"], "nowhere.jsonl: there is no such file"),
        (["list", "."], "is a directory"),
        (["list", "SET", "--only", "lamp__lamp-9"], "has no task 'lamp__lamp-9'; near ones are lamp__lamp-"),
        (["show", "lamp_lamp-1", "SET"], "near ones are lamp__lamp-1"),
        (["check", "SET", "--only", "x"], "has no task 'x'"),
        (["check", "SET", "--split", "dev"], "a file has no split"),
        (["check", "SET", "--recipes", "nowhere.jsonl"], "nowhere.jsonl"),
        (["check"], "taskset"),
        (["check", "SET", "--specs", "elsewhere"], "specs"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_bad_usage_is_one_sentence_and_status_2(
    taskset: str, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    """Nothing on stdout, the reason on stderr, no traceback."""
    status = main(["tasks", *(taskset if word == "SET" else word for word in arguments)])

    said = capsys.readouterr()
    assert (2, "") == (status, said.out)
    assert complaint in said.err
    assert "Traceback" not in said.err
