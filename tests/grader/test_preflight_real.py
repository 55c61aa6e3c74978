"""Preflight in real sandboxes of this machine, over a little task of our own."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from grader.campaign import Campaign, load
from grader.grounds import ProviderGrounds
from grader.ledger import read_only, run_directory
from grader.preflight.admission_file import Entry
from grader.preflight.classes import Class
from grader.preflight.run import Request, run_preflight
from grader.progress import Progress
from grader.run import OpenGrounds
from tests.demo.taskset import EVAL_SCRIPT
from tests.grader.rows import task_row
from tests.grader.tasks import COMMAND, SOURCE, Repo, Seeded, toy

pytestmark = pytest.mark.anyio


def _mended(root: Path) -> None:
    text = SOURCE.replace("result -= number", "result += number").replace(
        "return numbers[0]", "return list(numbers)[0]"
    )
    (root / "sums.py").write_text(text)


def _row(repo: Repo) -> dict[str, object]:
    test_patch = repo.test_patch.decode()
    script = EVAL_SCRIPT.format(commit="0" * 40, files="tests/test_sums.py", test_patch=test_patch, command=COMMAND)
    return {
        **task_row("toy__sums-1"),
        "patch": repo.diff(_mended).decode(),
        "test_patch": test_patch,
        "FAIL_TO_PASS": json.dumps(["tests/test_sums.py::test_total"]),
        "PASS_TO_PASS": json.dumps(["tests/test_sums.py::test_first"]),
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "image": "host",
    }


async def test_each_repeat_had_a_sandbox_of_its_own_and_weak_tests_are_found(tmp_path: Path) -> None:
    """The task is admitted on sandboxes that were never used, and the change that no test guards is named."""
    entry, campaign = await _preflight(tmp_path, Request(repeats=2, mutants=5))

    assert Class.ADMITTED == entry.kind, entry
    assert ("weak_tests: 1 of 2 parts of the reference can go, and no listed test sees it: sums.py:13",) == entry.hints
    with read_only(run_directory(campaign.runs_dir, "p")) as ledger:
        evidence = [grading.evidence for grading in ledger.gradings()]
    assert 6 == len(evidence) == len({each.boot_id for each in evidence}) == len(entry.rows)
    assert all(each.never_used for each in evidence)
    assert entry.sandbox_hours > 0
    assert entry.suite_s is not None


async def test_a_condition_that_the_sandbox_contradicts_is_named(tmp_path: Path) -> None:
    """It is no trouble of the infrastructure's: the place lacks what is declared, and every such condition is told."""
    entry, _ = await _preflight(tmp_path, Request(repeats=1), locale="xx_YY.UTF-8", cpu_count=4000)

    assert Class.NEEDS_CONDITION == entry.kind
    assert entry.why.startswith("what is declared does not hold in its sandbox: ")
    assert "CPUs that Python counts is declared as 4000 and observed as " in entry.why
    assert "the locale is declared as xx_YY.UTF-8 and observed as C" in entry.why


async def _preflight(directory: Path, request: Request, **conditions: object) -> tuple[Entry, Campaign]:
    """The toy's one task, preflighted in real sandboxes."""
    async with toy(directory) as (repo, seeded):
        (directory / "tasks.jsonl").write_text(json.dumps(_row(repo)) + "\n")
        what = {"taskset": str(directory / "tasks.jsonl"), "conditions": conditions}
        campaign = load(None, {**what, "run": "p", "runs_dir": directory / "runs"})
        done = await run_preflight(
            campaign,
            request,
            open_grounds=partial(_on, seeded),
            code_revision="test",
            progress=partial(Progress, io.StringIO()),
            say=lambda _: None,
        )
    assert () == done.infrastructure
    (entry,) = done.admissions.entries
    return entry, campaign


def _on(provider: Seeded, campaign: Campaign) -> OpenGrounds:
    @asynccontextmanager
    async def grounds() -> AsyncIterator[ProviderGrounds]:
        yield ProviderGrounds(provider, campaign, None, "test")

    return grounds
