"""Every condition in a real sandbox of the local provider: it agrees, it contradicts and no test runs, it is unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grader import suite
from grader.campaign import Conditions, Limits
from grader.probe import Canary
from grader.record import Grading
from grader.verdict import Cause, Outcome
from sandbox import LocalConfig, Provider, Sandbox
from sandbox.local.provider import LocalProvider
from tasksets.task import Task, TestPlan
from tests.grader.declarations import (
    CLOCK,
    LIMITS,
    NEVER_UNREAD,
    WRONG,
    Bare,
    Giving,
    Wrong,
    graded_under,
    refused,
    right,
)
from tests.grader.tasks import COMMAND, Seeded, make_repo, make_task, toy

pytestmark = pytest.mark.anyio


async def graded(
    task: Task, provider: Provider, conditions: Conditions, *, limits: Limits = LIMITS, canary: bool = True
) -> Grading:
    async with Canary() as address:
        return await graded_under(task, provider, conditions, limits=limits, canary=address if canary else None)


def may_be_set(name: str, grading: Grading) -> None:
    if name in {"memory_mib", "cpu_quota", "processes"} and name in grading.evidence.unread:
        pytest.skip(f"no cgroup for {name} can be made here, and the verdict names it as unread")


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_declaration_is_refused_before_any_test(tmp_path: Path, name: str) -> None:
    """A declaration that the sandbox contradicts gives no verdict, no reward and no test, whatever the condition."""
    wrong: Wrong = WRONG[name]
    async with toy(tmp_path) as (repo, seeded):
        task = make_task(repo, setup=wrong.setup)
        (repo.path / "clock").mkdir()
        (repo.path / "clock/sitecustomize.py").write_text(CLOCK)
        provider = Giving(seeded, wrong.given)
        conditions = Conditions(**{"egress": None, "test_time_limit_s": 60, **wrong.declared})
        limits = Limits(**{**LIMITS.model_dump(), **wrong.limits})
        grading = await graded(task, provider, conditions, limits=limits)
    may_be_set(name, grading)
    refused(grading, provider, name)
    assert set(grading.evidence.agreed) >= {"test_time_limit_s"} - {name}


async def test_all_right_declarations_agree(tmp_path: Path) -> None:
    """Every condition declared as the local provider makes it: all agree by name, and the tests are judged."""
    repo = make_repo(tmp_path / "repo")
    async with LocalProvider(LocalConfig(state_dir=tmp_path / "state")) as local:
        conditions = right(local.host_image.digest)
        grading = await graded(make_task(repo), Seeded(local, repo.path), conditions)
    assert Outcome.RESOLVED == grading.outcome, grading.reasons
    evidence = grading.evidence
    assert set(evidence.unread) <= set(evidence.unenforced)
    assert {name for name, value in conditions if value is not None} == {*evidence.agreed, *evidence.unread}


async def test_what_cannot_be_read_is_unread_by_name(tmp_path: Path) -> None:
    """Without a Python in the tests' shell, facts or a canary, every condition is unread by name, and none refuses."""
    with_path = f"PATH=/usr/bin:/bin {COMMAND}"
    async with toy(tmp_path) as (repo, seeded):
        conditions = right("sha256:" + "0" * 64).model_copy(update={"image_digest": None, "cpu_quota": None})
        provider = Giving(seeded, wrap=Bare)
        task = make_task(repo, setup="export PATH=/nowhere\n", command=with_path)
        grading = await graded(task, provider, conditions, canary=False)
    assert Outcome.RESOLVED == grading.outcome, grading.reasons
    declared = {name for name, value in conditions if value is not None}
    assert declared - NEVER_UNREAD == set(grading.evidence.unread)
    assert declared & NEVER_UNREAD == set(grading.evidence.agreed)


async def test_a_declared_environment_in_which_no_python_runs_is_refused(tmp_path: Path) -> None:
    """Every test would fail in it, whatever the patch."""
    async with toy(tmp_path) as (repo, seeded):
        provider = Giving(seeded)
        broken = Conditions(environment={"PYTHONHOME": "/nowhere"}, test_time_limit_s=60)
        grading = await graded(make_task(repo), provider, broken)
    assert Cause.CONDITIONS_CONTRADICTED == grading.cause
    assert "does not run" in grading.reasons[0]
    assert not [command for command in provider.commands if COMMAND in command]


async def test_a_time_limit_that_is_not_sent_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grader that declares one limit and sends the tests with another sends no tests, and gives no verdict."""
    true_run = suite.run

    async def with_a_limit_of_its_own(box: Sandbox, plan: TestPlan, **how: Any) -> suite.SuiteRun:
        return await true_run(box, plan, **{**how, "time_limit_s": 3600.0})

    monkeypatch.setattr(suite, "run", with_a_limit_of_its_own)
    async with toy(tmp_path) as (repo, seeded):
        provider = Giving(seeded)
        grading = await graded(make_task(repo), provider, Conditions(test_time_limit_s=60))
    assert (Cause.CONDITIONS_CONTRADICTED, None) == (grading.cause, grading.reward)
    [told] = grading.evidence.contradicted
    assert "60" in told
    assert "3600" in told
    assert "test_time_limit_s" not in grading.evidence.agreed
    assert not [command for command in provider.commands if COMMAND in command]


async def test_a_hash_seed_that_is_not_set_is_caught(tmp_path: Path) -> None:
    """A provider that drops the seed, or a set-up that changes it, is told by hashes that the tests' Python makes."""
    async with toy(tmp_path) as (repo, seeded):
        dropped, changed = Giving(seeded, {"env": {}}), Giving(seeded)
        seed = Conditions(hash_seed=0, test_time_limit_s=60)
        refused(unset := await graded(make_task(repo), dropped, seed), dropped, "hash_seed")
        task = make_task(repo, setup="export PYTHONHASHSEED=1\n")
        refused(other := await graded(task, changed, seed), changed, "hash_seed")
    assert ("unset", 1) == (unset.evidence.observed["hash_seed"], other.evidence.observed["hash_seed"])


async def test_twice_the_declared_memory_is_caught(tmp_path: Path) -> None:
    """16 GiB under a declaration of 8 GiB gives no verdict: tests that need more than 8 would pass there."""
    async with toy(tmp_path) as (repo, seeded):
        provider = Giving(seeded, {"memory_mib": 16 * 1024})
        grading = await graded(make_task(repo), provider, Conditions(memory_mib=8 * 1024, test_time_limit_s=60))
    may_be_set("memory_mib", grading)
    refused(grading, provider, "memory_mib")
    assert 16 * 1024 == grading.evidence.observed["memory_mib"]
