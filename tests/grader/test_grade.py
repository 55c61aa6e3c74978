"""Claims about `grader.grade_one`: real submissions in real sandboxes, and what is made of trouble."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from grader.campaign import Conditions, Limits, RewardPolicy
from grader.errors import LedgerUnwritable
from grader.grade import grade_one
from grader.probe import Canary
from grader.record import Grading, Submission
from grader.verdict import Cause, Outcome
from sandbox import Provider, Sandbox, SandboxError, SandboxSpec
from sandbox.errors import CreateError, ImageError
from tasksets.task import Task
from tests.grader.tasks import make_repo, make_task, toy

pytestmark = pytest.mark.anyio

LIMITS = Limits(attempts=2, acquire_timeout_s=30, grading_timeout_s=60)
CONDITIONS = Conditions(test_time_limit_s=20, hash_seed=0, time_zone="UTC", locale="C.UTF-8")


async def graded(
    task: Task,
    patch: bytes,
    provider: Provider,
    *,
    conditions: Conditions = CONDITIONS,
    limits: Limits = LIMITS,
    rewards: RewardPolicy | None = None,
    logs_dir: Path | None = None,
) -> Grading:
    async with Canary() as canary:
        return await grade_one(
            task,
            Submission(task.task_id, "a-model", patch, "tests"),
            provider=provider,
            conditions=conditions,
            limits=limits,
            rewards=rewards or RewardPolicy(),
            logs_dir=logs_dir,
            canary=canary,
            code_revision="test",
        )


@dataclass
class Nothing:
    """A provider that must not be asked."""

    name: str = "nothing"

    def sandbox(self, spec: SandboxSpec, *, acquire_timeout_s: float = 120.0) -> AbstractAsyncContextManager[Sandbox]:
        raise AssertionError("a sandbox was asked for")


@dataclass
class Troubled:
    """A provider that hands real sandboxes to `trouble` before it gives them out."""

    provider: Provider
    trouble: Callable[[int, Sandbox], Awaitable[None]]
    name: str = "troubled"
    made: int = 0

    @asynccontextmanager
    async def sandbox(self, spec: SandboxSpec, *, acquire_timeout_s: float = 120.0) -> AsyncIterator[Sandbox]:
        self.made += 1
        async with self.provider.sandbox(spec, acquire_timeout_s=acquire_timeout_s) as box:
            await self.trouble(self.made, box)
            yield box


async def test_the_reference_is_resolved(tmp_path: Path) -> None:
    """The reference patch is resolved, with reward, lists, log and the whole evidence."""
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo)
        grading = await graded(task, task.reference_patch, provider, logs_dir=tmp_path / "run/logs")
    assert (Outcome.RESOLVED, None, 1.0) == (grading.outcome, grading.cause, grading.reward)
    assert grading.fail_to_pass == {"success": ("tests/test_sums.py::test_total",), "failure": ()}
    assert grading.statuses == {"tests/test_sums.py::test_first": "PASSED", "tests/test_sums.py::test_total": "PASSED"}
    seen = grading.evidence
    log = b"PASSED tests/test_sums.py::test_first\nPASSED tests/test_sums.py::test_total\n"
    assert seen.log_path is not None
    assert log == (tmp_path / "run" / seen.log_path).read_bytes()
    assert (hashlib.sha256(log).hexdigest(), len(log), False) == (seen.log_sha256, seen.log_bytes, seen.log_truncated)
    assert (True, 0, 1, 1) == (seen.never_used, seen.execs_before, seen.handovers, seen.attempts)
    assert ("git apply", 0, False) == (seen.apply_rung, seen.suite_exit_code, seen.suite_timed_out)
    assert seen.restored_files == ("tests/test_other.py", "tests/test_sums.py")
    assert seen.patch_sha256 == hashlib.sha256(task.reference_patch).hexdigest()
    assert set(seen.agreed) >= {"egress", "test_time_limit_s", "hash_seed", "time_zone", "locale"}
    assert list(seen.phases_s)[-5:] == ["probe", "apply", "suite", "judge", "stop"]
    assert sum(seen.phases_s.values()) <= grading.seconds
    assert Grading.model_validate_json(grading.model_dump_json()) == grading


async def test_the_empty_patch_is_unresolved(tmp_path: Path) -> None:
    """The empty patch is graded like any other and fails the tests that the reference is there for."""
    async with toy(tmp_path) as (repo, provider):
        grading = await graded(make_task(repo), b"", provider)
    assert (Outcome.UNRESOLVED, 0.0, "empty") == (grading.outcome, grading.reward, grading.evidence.apply_rung)
    assert grading.fail_to_pass == {"success": (), "failure": ("tests/test_sums.py::test_total",)}
    assert grading.pass_to_pass == {"success": ("tests/test_sums.py::test_first",), "failure": ()}


async def test_a_patch_that_does_not_apply_is_rejected(tmp_path: Path) -> None:
    """A patch that no rung takes is rejected with git's words, and no suite runs."""
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo)
        grading = await graded(task, task.reference_patch.replace(b"result", b"outcome"), provider)
    assert (Outcome.PATCH_REJECTED, 0.0) == (grading.outcome, grading.reward)
    assert "does not apply" in grading.reasons[0]
    assert grading.evidence.suite_exit_code is None


@pytest.mark.parametrize(
    ("patch", "name"),
    [
        (b"Here is my fix.\n", "not_a_diff"),
        (b"\0\1\2", "not_text"),
        (b"--- a/x\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n", "path_escapes"),
        (b"--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n x\n", "truncated_hunk"),
    ],
)
async def test_an_unusable_patch_is_rejected_by_name(tmp_path: Path, patch: bytes, name: str) -> None:
    """A patch that cannot be used is rejected under its name, and no sandbox is asked for."""
    grading = await graded(make_task(make_repo(tmp_path / "r")), patch, Nothing())
    assert (Outcome.PATCH_REJECTED, 0.0) == (grading.outcome, grading.reward)
    assert name in grading.reasons[0]


async def test_a_binary_change_without_data_is_skipped_and_flagged(tmp_path: Path) -> None:
    """As by the official ladder, the rest of the patch counts; that something was left out is flagged."""
    bare = b"diff --git a/logo b/logo\nnew file mode 100644\nindex 0..2\nBinary files /dev/null and b/logo differ\n"
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo)
        grading = await graded(task, task.reference_patch + bare, provider)
    assert Outcome.RESOLVED == grading.outcome
    assert "patch --fuzz=5" == grading.evidence.apply_rung
    assert any(flag.startswith("binary_without_data") for flag in grading.flags)


async def test_a_hanging_patch_times_out(tmp_path: Path) -> None:
    """A suite that outlives the declared limit is timed out, with the log that it had written."""
    async with toy(tmp_path) as (repo, provider):
        hanging = "import time\nprint('here', flush=True)\ntime.sleep(99)\n"
        patch = repo.diff(lambda root: (root / "sums.py").write_text(hanging))
        grading = await graded(
            make_task(repo),
            patch,
            provider,
            conditions=Conditions(test_time_limit_s=1),
            rewards=RewardPolicy(timed_out=None),
            logs_dir=tmp_path / "logs",
        )
    assert (Outcome.TIMED_OUT, None) == (grading.outcome, grading.reward)
    assert grading.evidence.suite_timed_out
    assert (tmp_path / "logs" / Path(str(grading.evidence.log_path)).name).read_bytes().startswith(b"here\n")


async def test_a_log_that_cannot_be_kept_stops_the_run_and_is_no_verdict(tmp_path: Path) -> None:
    """Nothing is recorded without its log, nor as trouble of the grader: the run ends, to be resumed."""
    (tmp_path / "logs").write_text("in the way")
    async with toy(tmp_path) as (repo, provider):
        with pytest.raises(LedgerUnwritable, match=r"/logs: the log of .* cannot be kept \(File exists\)"):
            await graded(make_task(repo), b"", provider, logs_dir=tmp_path / "logs")


async def test_a_hanging_patch_has_no_verdict_where_the_reference_comes_near_the_limit(tmp_path: Path) -> None:
    """A limit of which the reference needs more than half cannot tell a slow patch from a slow machine."""
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo)
        assert task.plan is not None
        slow = dataclasses.replace(task, plan=dataclasses.replace(task.plan, reference_s=0.6))
        patch = repo.diff(lambda root: (root / "sums.py").write_text("import time\ntime.sleep(99)\n"))
        grading = await graded(slow, patch, provider, conditions=Conditions(test_time_limit_s=1))
    assert (Outcome.NO_VERDICT, Cause.TASK_REFUSED, None) == (grading.outcome, grading.cause, grading.reward)
    assert "raise the time limit" in grading.reasons[0]


async def test_contradicted_conditions_run_no_test(tmp_path: Path) -> None:
    """A declared condition that does not hold refuses before any test, with a sentence and no reward."""
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo, setup="export TZ=Europe/Berlin\n")
        grading = await graded(task, task.reference_patch, provider)
    assert (Outcome.NO_VERDICT, Cause.CONDITIONS_CONTRADICTED, None) == (grading.outcome, grading.cause, grading.reward)
    assert "Europe/Berlin" in grading.reasons[0]
    assert grading.reasons == grading.evidence.contradicted
    assert not {"apply", "suite"} & set(grading.evidence.phases_s)


async def test_a_budget_below_the_declared_limit_contradicts(tmp_path: Path) -> None:
    """A time limit that the grading's own budget would cut short is not the declared one."""
    async with toy(tmp_path) as (repo, provider):
        grading = await graded(make_task(repo), b"", provider, limits=Limits(grading_timeout_s=15))
    assert grading.cause == Cause.CONDITIONS_CONTRADICTED
    assert "time limit" in grading.reasons[0]


async def test_tests_that_the_patch_rewrites_are_restored(tmp_path: Path) -> None:
    """A patch that makes the tests pass by rewriting them is unresolved, and flagged."""

    def cheat(root: Path) -> None:
        (root / "tests/test_sums.py").write_text("def test_first():\n    pass\n\n\ndef test_total():\n    pass\n")
        (root / "conftest.py").write_text("")

    async with toy(tmp_path) as (repo, provider):
        grading = await graded(make_task(repo), repo.diff(cheat), provider)
    assert grading.outcome == Outcome.UNRESOLVED
    assert [flag.split(":")[0] for flag in grading.flags] == ["patch_touches_tests", "patch_steers_tests"]


async def test_a_failing_set_up_is_flagged(tmp_path: Path) -> None:
    """As in official runs, tests run after a failing set-up; that it failed stands beside the verdict."""
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo, setup="python3 -c 'raise SystemExit(4)'\n")
        grading = await graded(task, task.reference_patch, provider)
    assert grading.outcome == Outcome.RESOLVED
    assert any(flag.startswith("set_up_failed") and "4" in flag for flag in grading.flags)


def _no_plan(task: Task) -> Task:
    return dataclasses.replace(task, plan=None)


def _no_image(task: Task) -> Task:
    return dataclasses.replace(task, image=None)


def _no_tests(task: Task) -> Task:
    return dataclasses.replace(task, fail_to_pass=())


def _no_parser(task: Task) -> Task:
    assert task.plan is not None
    return dataclasses.replace(task, plan=dataclasses.replace(task.plan, parser="parse_log_cobol"))


def _bad_test_patch(task: Task) -> Task:
    return dataclasses.replace(task, test_patch=b"see attachment")


@pytest.mark.parametrize("spoil", [_no_plan, _no_image, _no_tests, _no_parser, _bad_test_patch])
async def test_a_task_that_cannot_be_graded_is_refused(tmp_path: Path, spoil: Callable[[Task], Task]) -> None:
    """A task that lacks what grading needs is refused before a sandbox is asked for, naming its row."""
    task = spoil(make_task(make_repo(tmp_path / "r")))
    grading = await graded(task, task.reference_patch, Nothing())
    assert (Outcome.NO_VERDICT, Cause.TASK_REFUSED, None) == (grading.outcome, grading.cause, grading.reward)
    assert task.source in grading.reasons[0]
    assert grading.evidence.attempts == 0


async def test_a_test_patch_that_does_not_fit_refuses_the_task(tmp_path: Path) -> None:
    """A test patch that the image's base does not take is the task's fault, whatever the submission."""
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo)
        task = dataclasses.replace(task, test_patch=task.test_patch.replace(b"import first", b"import last"))
        grading = await graded(task, task.reference_patch, provider)
    assert (Outcome.NO_VERDICT, Cause.TASK_REFUSED) == (grading.outcome, grading.cause)


async def test_a_sandbox_killed_in_mid_suite_gives_no_verdict(tmp_path: Path) -> None:
    """When every sandbox is killed in mid-suite there is no verdict and no reward, and each attempt is on record."""
    mark = f"31.{secrets.randbelow(10**9):09}"
    async with toy(tmp_path) as (repo, provider), anyio.create_task_group() as killers:
        killers.start_soon(_kill_sandboxes_that_sleep, mark, 2)
        grading = await graded(make_task(repo, command=f"sleep {mark}"), b"", provider)
    assert (Outcome.NO_VERDICT, Cause.INFRASTRUCTURE, None) == (grading.outcome, grading.cause, grading.reward)
    assert (2, 2) == (grading.evidence.attempts, provider.made)
    assert len(grading.evidence.failures) == 2
    assert all(line.startswith("SandboxLost") for line in grading.evidence.failures)


async def _kill_sandboxes_that_sleep(mark: str, count: int) -> None:
    """Kill PID 1 of `count` sandboxes, one after the other, each once it runs `sleep <mark>`."""
    for _ in range(count):
        while not (victims := first_processes_beside(f"sleep\0{mark}\0".encode())):
            await anyio.sleep(0.02)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        while first_processes_beside(f"sleep\0{mark}\0".encode()):
            await anyio.sleep(0.02)


def first_processes_beside(cmdline: bytes) -> list[int]:
    """The PID 1s of the pid namespaces in which a process with this command line runs."""
    spaces: dict[str, list[int]] = {}
    wanted = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            space = str((process / "ns/pid").readlink())
            ids = re.findall(r"^NSpid:(.*)$", (process / "status").read_text(), re.MULTILINE)[0].split()
            if len(ids) > 1 and ids[-1] == "1":
                spaces.setdefault(space, []).append(int(process.name))
            if (process / "cmdline").read_bytes() == cmdline:
                wanted.add(space)
    return [pid for space in wanted for pid in spaces.get(space, [])]


def _raises(*errors: Exception) -> Callable[[int, Sandbox], Awaitable[None]]:
    async def trouble(made: int, box: Sandbox) -> None:
        if made <= len(errors):
            raise errors[made - 1]

    return trouble


async def test_a_full_disk_is_never_a_score(tmp_path: Path) -> None:
    """Tests that fail on a full disk give no verdict and no reward; the same tests that pass on it are resolved."""
    async with toy(tmp_path) as (repo, provider):
        setup = (
            "mv /testbed /dev/shm/testbed; ln -s /dev/shm/testbed /testbed; cat /dev/zero >/dev/shm/fill\ncd /testbed\n"
        )
        task = make_task(repo, setup=setup)
        failing = await graded(task, b"", provider)
        passing = await graded(task, task.reference_patch, provider)
    assert (Outcome.NO_VERDICT, Cause.INFRASTRUCTURE, None) == (failing.outcome, failing.cause, failing.reward)
    assert "disk was full" in failing.reasons[0]
    assert Outcome.RESOLVED == passing.outcome


async def test_trouble_is_tried_again_in_a_new_sandbox(tmp_path: Path) -> None:
    """One failed sandbox costs an attempt, not the verdict, and its cause stays in the evidence."""
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo)
        trouble = _raises(CreateError("it did not start; look at its log", phase="start"))
        grading = await graded(task, task.reference_patch, Troubled(provider, trouble))
    assert (Outcome.RESOLVED, 2) == (grading.outcome, grading.evidence.attempts)
    assert grading.evidence.failures == ("CreateError: it did not start; look at its log",)


async def test_a_missing_image_is_not_tried_again(tmp_path: Path) -> None:
    """An image that cannot be had fails the grading at once, without a verdict."""
    async with toy(tmp_path) as (repo, provider):
        troubled = Troubled(provider, _raises(*[ImageError("no such image; build it")] * 9))
        grading = await graded(make_task(repo), b"", troubled)
    assert (Cause.INFRASTRUCTURE, 1) == (grading.cause, troubled.made)
    assert "no such image" in grading.reasons[0]


async def test_an_unknown_error_is_never_a_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A defect of ours gives no verdict and no reward, and is logged with its trace."""
    async with toy(tmp_path) as (repo, provider):
        grading = await graded(make_task(repo), b"", Troubled(provider, _raises(ZeroDivisionError("a defect"))))
    assert (Outcome.NO_VERDICT, Cause.INFRASTRUCTURE, None) == (grading.outcome, grading.cause, grading.reward)
    assert "ZeroDivisionError" in grading.reasons[0]
    captured = capsys.readouterr()
    assert "Traceback" in captured.out + captured.err


async def test_a_grading_has_a_budget(tmp_path: Path) -> None:
    """A grading that is stuck anywhere ends at its budget, without a verdict."""

    async def sticks(made: int, box: Sandbox) -> None:
        await anyio.sleep(60)

    async with toy(tmp_path) as (repo, provider):
        limits = Limits(grading_timeout_s=1.5)
        grading = await graded(
            make_task(repo), b"", Troubled(provider, sticks), limits=limits, conditions=Conditions(test_time_limit_s=1)
        )
    assert (Outcome.NO_VERDICT, Cause.INFRASTRUCTURE) == (grading.outcome, grading.cause)
    assert grading.seconds < 20


async def test_cancellation_is_not_swallowed(tmp_path: Path) -> None:
    """A caller that cancels a grading gets its cancellation, and no grading."""
    results: list[Grading] = []
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo, command="sleep 60")
        with anyio.move_on_after(1.5) as scope:
            results.append(await graded(task, b"", provider))
    assert scope.cancelled_caught
    assert results == []


async def test_a_failure_to_give_back_keeps_the_verdict(tmp_path: Path) -> None:
    """Trouble with giving a sandbox back neither loses a verdict nor runs the tests again."""

    @dataclass
    class Clinging:
        provider: Provider
        name: str = "clinging"

        @asynccontextmanager
        async def sandbox(self, spec: SandboxSpec, *, acquire_timeout_s: float = 120.0) -> AsyncIterator[Sandbox]:
            async with self.provider.sandbox(spec) as box:
                yield box
            raise SandboxError("it could not be deleted; look at the provider")

    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo)
        grading = await graded(task, task.reference_patch, Clinging(provider))
    assert (Outcome.RESOLVED, 1) == (grading.outcome, grading.evidence.attempts)
