"""118 real logs of the official harness, over the 12 repositories of SWE-bench Verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grader.parsers import known_parsers, parse_log
from grader.verdict import Judgement, Outcome, TestLists, judge

pytestmark = pytest.mark.real


Row = Mapping[str, Any]


@pytest.fixture(scope="module")
def rows(real_data: Path) -> Mapping[str, Row]:
    """The 500 rows of Verified, as of 2026."""
    return rows_by_id(real_data / "swebench_verified.jsonl")


@pytest.fixture(scope="module")
def rows_of_2024(real_data: Path) -> Mapping[str, Row]:
    """A few rows as of 2024. The list of django-10097 had five tests more when its run was reported."""
    return rows_by_id(real_data / "samples" / "swebench_verified_2024_schema.jsonl")


def rows_by_id(path: Path) -> Mapping[str, Row]:
    return {row["instance_id"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def listed(row: Row, name: str) -> list[str]:
    ids: list[str] = json.loads(row[name])
    return ids


def regraded(row: Row, lists: Row, log: bytes) -> Judgement:
    results = parse_log(row["log_parser"], log, framing="official")
    return judge(listed(lists, "FAIL_TO_PASS"), listed(lists, "PASS_TO_PASS"), results, eval_type=row["eval_type"])


def lists_of(reported: Mapping[str, list[str]]) -> TestLists:
    return TestLists(success=tuple(reported["success"]), failure=tuple(reported["failure"]))


def test_every_log_is_judged_as_its_report_says(
    real_data: Path, rows: Mapping[str, Row], rows_of_2024: Mapping[str, Row]
) -> None:
    """All 118 logs give their report's `resolved` and its lists of tests."""
    differing, on_older_lists = [], []
    directories = sorted((real_data / "logs").iterdir())
    for directory in directories:
        ((task_id, report),) = json.loads((directory / "report.json").read_text()).items()
        fail_to_pass, pass_to_pass = (lists_of(report["tests_status"][n]) for n in ("FAIL_TO_PASS", "PASS_TO_PASS"))
        lists = row = rows[task_id]
        if set(listed(row, "PASS_TO_PASS")) != {*pass_to_pass.success, *pass_to_pass.failure}:
            on_older_lists.append(task_id)
            lists = rows_of_2024[task_id]
        log = (directory / "test_output.txt").read_bytes()
        judgement = regraded(row, lists, log)
        got = (judgement.outcome is Outcome.RESOLVED, judgement.fail_to_pass, judgement.pass_to_pass)
        if (
            got != (report["resolved"], fail_to_pass, pass_to_pass)
            or judgement.outcome != regraded(row, row, log).outcome
        ):
            differing.append(directory.name)
    assert (118, [], ["django__django-10097"]) == (len(directories), differing, on_older_lists)


def test_every_row_names_a_parser_we_have(rows: Mapping[str, Row]) -> None:
    """Each of the 500 tasks names a parser that exists."""
    assert set() == {row["log_parser"] for row in rows.values()} - set(known_parsers())
