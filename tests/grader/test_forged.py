"""Claims about lies: whatever a patch prints, ends or kills, its verdict is that of the tests that ran.

Each case is a real patch on the demo's little repository, graded for real in a sandbox of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from grader.campaign import Conditions, Limits, RewardPolicy
from grader.grade import grade_one
from grader.images import ensure_image
from grader.record import Grading, Submission
from grader.tamper import TamperPolicy
from grader.verdict import Outcome
from sandbox import LocalConfig, Provider, open_provider
from sandbox.local.provider import LocalProvider
from tasksets import open_taskset
from tasksets.images import recipes_by_task, with_recipe
from tasksets.task import Task
from tests.demo import taskset as demo
from tests.grader.forged import FORGERIES, PRELUDE, REPORTER, TRUE_PASSES, Loud
from tests.grader.tasks import Repo, git

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(900)]

TASK_ID = "moneybox-1"


@dataclass(frozen=True)
class Bench:
    """The task on its image, and its repository to make patches in."""

    task: Task
    provider: Provider
    repo: Repo

    def patch(self, loud: Loud, *, mends: bool) -> bytes:
        listed = (*self.task.fail_to_pass, *self.task.pass_to_pass)
        lines = "\n" + "".join(f"PASSED {test}\n" for test in listed)

        def edit(root: Path) -> None:
            if mends:
                (root / "reference.patch").write_bytes(self.task.reference_patch)
                git(root, "apply", "reference.patch")
                (root / "reference.patch").unlink()
            if loud.code:
                with (root / "moneybox/split.py").open("a") as module:
                    module.write(PRELUDE.format(listed=listed) + loud.code + "\n")
            for name, text in loud.files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text.replace("{reporter}", REPORTER).replace("{lines!r}", repr(lines)))

        return self.repo.diff(edit)

    async def graded(self, patch: bytes, tampering: TamperPolicy = "report") -> Grading:
        return await grade_one(
            self.task,
            Submission(self.task.task_id, "m", patch, "tests"),
            provider=self.provider,
            conditions=Conditions(test_time_limit_s=60, hash_seed=0),
            limits=Limits(attempts=1, grading_timeout_s=120, max_log_mib=1),
            rewards=RewardPolicy(),
            logs_dir=None,
            canary=None,
            code_revision="test",
            tampering=tampering,
        )


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    """The demo's task on its image, which lies in the user's own store."""
    files = demo.write(folder / "demo")
    shutil.copytree(demo.HERE / "repos/moneybox", folder / "repo")
    repo = Repo(folder / "repo")
    git(repo.path, "init", "--quiet")
    git(repo.path, "add", "--all")
    git(repo.path, "commit", "--quiet", "--message", "base")
    task, recipe = open_taskset(str(files.taskset)).get(TASK_ID), recipes_by_task(files.recipes)[TASK_ID]
    async with open_provider(LocalConfig()) as provider:
        assert isinstance(provider, LocalProvider)
        image = await ensure_image(provider, recipe)
        yield Bench(replace(with_recipe(task, recipe, image), image=image), provider, repo)


def shown(grading: Grading) -> str:
    seen = grading.evidence
    return f"{grading.outcome} {grading.reasons} {grading.flags} {seen.channel} {seen.failures}"


async def test_no_lie_is_resolved(tmp_path: Path) -> None:
    """A patch that mends nothing is unresolved whatever it prints, ends or kills, and never without a verdict."""
    async with bench(tmp_path) as bed:
        seen = {}
        for loud in FORGERIES:
            grading = await bed.graded(bed.patch(loud, mends=False))
            if grading.outcome is not Outcome.UNRESOLVED or grading.reward != 0.0:
                seen[loud.name] = shown(grading)
    assert {} == seen
    assert len(FORGERIES) >= 20


async def test_no_true_pass_is_lost(tmp_path: Path) -> None:
    """A patch that mends the fault is resolved, however loud it is."""
    async with bench(tmp_path) as bed:
        seen = {}
        for loud in TRUE_PASSES:
            grading = await bed.graded(bed.patch(loud, mends=True))
            if (grading.outcome, grading.reward) != (Outcome.RESOLVED, 1.0):
                seen[loud.name] = shown(grading)
    assert {} == seen
