"""`grader regrade`, as a person runs it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from grader.cli import main
from tests.tasksets.rows import verified_2024, verified_2026, write_jsonl

NEW, OLD = "tests/test_switch.py::test_on", "tests/test_switch.py::test_off"
LISTS = {"FAIL_TO_PASS": json.dumps([NEW]), "PASS_TO_PASS": json.dumps([OLD])}
LOG = f"+ : '>>>>> Start Test Output'\nPASSED {NEW}\nPASSED {OLD}\n+ : '>>>>> End Test Output'\n".encode()
TASK = "lamps__lamp-1"


@pytest.fixture
def taskset(tmp_path: Path) -> Path:
    """A task whose row names a parser, one whose row does not, and one without FAIL_TO_PASS."""
    rows = [
        verified_2026(instance_id=TASK, **LISTS),
        verified_2024(instance_id="lamps__lamp-2", **LISTS),
        verified_2026(instance_id="lamps__lamp-3", **LISTS | {"FAIL_TO_PASS": "[]"}),
    ]
    return write_jsonl(tmp_path / "tasks.jsonl", rows)


def command(taskset: Path, log: bytes | Path, *flags: str, task: str = TASK) -> list[str]:
    path = log if isinstance(log, Path) else taskset.with_name("test_output.txt")
    if isinstance(log, bytes):
        path.write_bytes(log)
    return ["regrade", "--taskset", str(taskset), "--task-id", task, "--log", str(path), *flags]


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (line,) = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_log_is_judged_in_one_line_of_json(taskset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the outcome, the lists, the counts, and which bytes they came from."""
    assert 0 == main(command(taskset, LOG, "--json"))
    expected: dict[str, Any] = {
        "task_id": TASK,
        "outcome": "resolved",
        "cause": None,
        "reasons": [],
        "flags": [],
        "fail_to_pass": {"success": [NEW], "failure": []},
        "pass_to_pass": {"success": [OLD], "failure": []},
        "missing": [],
        "statuses": {"PASSED": 2},
        "parser": "parse_log_pytest",
        "log_sha256": hashlib.sha256(LOG).hexdigest(),
    }
    assert expected == told(capsys)


def test_a_person_reads_a_table(taskset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--json` each fact, reason and flag has a line, and no control character of the log gets out."""
    log = LOG.replace(b"PASSED " + OLD.encode(), b"FAILED other.py::\x1b[2J")
    assert 0 == main(command(taskset, log))
    table = capsys.readouterr().out
    assert "outcome           unresolved" in table
    assert f"1 of 1 PASS_TO_PASS tests have no result in the log: {OLD}." in table
    assert "\x1b" not in table


@pytest.mark.parametrize(
    ("log", "flags", "outcome"),
    [
        (LOG, ["--exit-code", "1"], "unresolved"),
        (LOG, ["--exit-code", "0"], "resolved"),
        (b"PASSED " + NEW.encode() + b"\nPASSED " + OLD.encode() + b"\n", [], "resolved"),
        (b"PASSED " + NEW.encode() + b"\nPASSED " + OLD.encode() + b"\n", ["--framing", "official"], "unresolved"),
        (LOG + b"FAILED " + OLD.encode() + b"\n", [], "resolved"),
        (LOG + b"FAILED " + OLD.encode() + b"\n", ["--framing", "own"], "unresolved"),
        (b">>>>> Patch Apply Failed\n", [], "patch_rejected"),
        (LOG, ["--parser", "django"], "unresolved"),
        (b"", [], "unresolved"),
        (bytes(range(256)) * 64, [], "unresolved"),
    ],
)
def test_what_a_log_cannot_show_is_given_by_flags(
    taskset: Path, capsys: pytest.CaptureFixture[str], log: bytes, flags: list[str], outcome: str
) -> None:
    """Exit status, whose log it is and its parser change the judgement as said."""
    assert 0 == main(command(taskset, log, *flags, "--json"))
    assert outcome == told(capsys)["outcome"]


def test_a_row_without_a_parser_needs_one(taskset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row of 2024 names no parser: the message says which flag to add, and with it the log is judged."""
    assert 2 == main(command(taskset, LOG, task="lamps__lamp-2"))
    assert "give one with --parser" in capsys.readouterr().err
    assert 0 == main(command(taskset, LOG, "--parser", "pytest", "--json", task="lamps__lamp-2"))
    assert "resolved" == told(capsys)["outcome"]


def test_a_rows_eval_type_is_heeded(taskset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a row's logs name failures only, a listed test that the log does not name succeeded."""
    write_jsonl(taskset, [verified_2026(instance_id=TASK, eval_type="fail_only", **LISTS)])
    assert 0 == main(command(taskset, LOG.replace(f"PASSED {OLD}".encode(), b""), "--json"))
    assert "resolved" == told(capsys)["outcome"]


def test_a_task_that_any_patch_would_pass_is_refused(taskset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty FAIL_TO_PASS gives no verdict and exit status 3."""
    assert 3 == main(command(taskset, LOG, "--json", task="lamps__lamp-3"))
    judged = told(capsys)
    assert ("no_verdict", "task_refused") == (judged["outcome"], judged["cause"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--task-id": "lamps__lamp-11"}, "near ones are"),
        ({"--log": "absent.txt"}, "absent.txt: the log cannot be read (No such file or directory)"),
        ({"--log": "."}, "the log cannot be read (Is a directory)"),
        ({"--taskset": "absent.jsonl"}, "absent.jsonl"),
        ({"--parser": "djagno"}, "Did you mean parse_log_django? Known: parse_log_astroid"),
        ({"--exit-code": "many"}, "many"),
        ({"--framing": "none"}, "none"),
    ],
)
def test_bad_input_is_told_in_a_sentence(
    taskset: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], message: str
) -> None:
    """What cannot be used is named, with exit status 2 and without a traceback."""
    given = command(taskset, LOG)
    values = dict(zip(given[1::2], given[2::2], strict=True)) | changes
    assert 2 == main(["regrade", *(word for flag in values.items() for word in flag)])
    streams = capsys.readouterr()
    assert ("", True, False) == (streams.out, message in streams.err, "Traceback" in streams.err)


@pytest.mark.real
def test_a_real_log_is_regraded(real_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command judges a log of the official harness as its report does."""
    directory = real_data / "logs" / "07ffaf__django__django-11066"
    words = command(
        real_data / "swebench_verified.jsonl", directory / "test_output.txt", "--json", task="django__django-11066"
    )
    assert 0 == main(words)
    judged = told(capsys)
    report = json.loads((directory / "report.json").read_text())["django__django-11066"]["tests_status"]
    assert ("resolved", report["FAIL_TO_PASS"], report["PASS_TO_PASS"]) == (
        judged["outcome"],
        judged["fail_to_pass"],
        judged["pass_to_pass"],
    )
