from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from grader.batch import Job, Stops, run_batch
from grader.errors import LedgerUnwritable
from grader.ledger import Ledger
from grader.pace import Reading
from grader.record import Grading, Submission
from grader.verdict import Cause, Outcome
from tasksets.task import Task
from tests.grader.gradings import grading
from tests.grader.test_ledger import opened

pytestmark = pytest.mark.anyio


def jobs(count: int) -> list[Job]:
    return [Job(task(str(n)), Submission(str(n), "m", b"p", "p.jsonl:1")) for n in range(count)]


def task(task_id: str) -> Task:
    return Task(task_id, "o/r", "0" * 40, "1", "host", b"", b"", ("t::a",), (), None, "", "t.jsonl:1", "test")


@dataclass
class Watcher:
    in_flight: int = 0
    most_in_flight: int = 0
    told: list[Grading] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)

    def began(self, job: Job) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def gave_back(self, job: Job) -> None:
        self.in_flight -= 1

    def paced(self, limit: int, why: Reading) -> None:
        self.limits.append(limit)

    def recorded(self, grading: Grading) -> None:
        self.told.append(grading)


async def quick(job: Job) -> Grading:
    await anyio.sleep(0)
    return grading(job.task.task_id)


async def stopped(some: Sequence[Job], ledger: Ledger, watcher: Watcher, **changed: object) -> str | None:
    """Run a batch; why it stopped early."""
    arguments: dict[str, object] = {
        "grade": quick,
        "append": ledger.append,
        "watcher": watcher,
        "concurrency": 3,
        "grading_timeout_s": 60.0,
        "code_revision": "test",
    }
    return await run_batch(some, **(arguments | changed))  # type: ignore[arg-type]


async def run(some: Sequence[Job], ledger: Ledger, watcher: Watcher, **changed: object) -> None:
    """Run a batch to its end."""
    assert await stopped(some, ledger, watcher, **changed) is None


async def test_every_job_is_recorded_once_and_then_told(tmp_path: Path) -> None:
    """What the watcher hears of is in the ledger, and nothing is in flight at the end."""
    watcher = Watcher()
    with opened(tmp_path / "r") as ledger:
        await run(jobs(50), ledger, watcher)

        assert sorted(str(n) for n in range(50)) == sorted(g.task_id for g in ledger.gradings())
        assert sorted(str(n) for n in range(50)) == sorted(g.task_id for g in watcher.told)
    assert 0 == watcher.in_flight


async def test_no_more_than_the_bound_are_in_flight(tmp_path: Path) -> None:
    """Concurrency is a bound that is reached and not passed."""
    watcher = Watcher()
    with opened(tmp_path / "r") as ledger:
        await run(jobs(20), ledger, watcher, concurrency=4)
    assert 4 == watcher.most_in_flight


async def test_a_defect_in_one_grading_is_no_verdict_and_the_others_go_on(tmp_path: Path) -> None:
    """An exception that nobody expected is never a score."""

    async def grade(job: Job) -> Grading:
        if job.task.task_id == "1":
            raise ZeroDivisionError("oops")
        return await quick(job)

    with opened(tmp_path / "r") as ledger:
        await run(jobs(3), ledger, Watcher(), grade=grade)
        found = {g.task_id: g for g in ledger.gradings()}

    assert {"0", "1", "2"} == found.keys()
    assert (Outcome.NO_VERDICT, Cause.INFRASTRUCTURE, None) == (found["1"].outcome, found["1"].cause, found["1"].reward)
    assert "ZeroDivisionError: oops" in found["1"].reasons[0]


async def test_a_grading_that_never_gives_back_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stuck grading does not hold up the run."""
    monkeypatch.setattr("grader.batch.GIVE_BACK_S", 0.05)

    async def grade(job: Job) -> Grading:
        if job.task.task_id == "0":
            await anyio.sleep_forever()
        return await quick(job)

    with opened(tmp_path / "r") as ledger:
        await run(jobs(3), ledger, Watcher(), grade=grade, grading_timeout_s=0.05, concurrency=1)
        found = {g.task_id: g for g in ledger.gradings()}

    assert [None, "resolved", "resolved"] == [found[i].outcome.value if i != "0" else found[i].reward for i in "012"]
    assert "outlived its budget" in found["0"].reasons[0]


async def test_a_cancel_loses_nothing_that_has_ended(tmp_path: Path) -> None:
    """Gradings that had ended while the disk was busy are recorded when the batch is cancelled at that moment."""
    ended: list[str] = []
    disk_is_busy, disk_may_go_on = threading.Event(), threading.Event()
    watcher = Watcher()

    async def grade(job: Job) -> Grading:
        if len(ended) >= 6:
            await anyio.sleep_forever()
        await anyio.sleep(0)
        ended.append(job.task.task_id)
        return grading(job.task.task_id)

    with opened(tmp_path / "r") as ledger:

        def append(gradings: Sequence[Grading]) -> None:
            disk_is_busy.set()
            disk_may_go_on.wait(timeout=10)
            ledger.append(gradings)

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run(jobs(20), ledger, watcher, grade=grade, append=append, concurrency=2))
            while not (disk_is_busy.is_set() and len(ended) >= 6):
                await anyio.sleep(0.001)
            group.cancel_scope.cancel()
            disk_may_go_on.set()

        assert sorted(ended) == sorted(g.task_id for g in ledger.gradings())
    assert sorted(ended) == sorted(g.task_id for g in watcher.told)
    assert 0 == watcher.in_flight


async def test_a_disk_that_takes_nothing_more_ends_the_batch(tmp_path: Path) -> None:
    """No sandbox is used for verdicts that cannot be kept."""
    begun = []

    async def grade(job: Job) -> Grading:
        begun.append(job)
        await anyio.sleep(0.01)
        return grading(job.task.task_id)

    def append(gradings: Sequence[Grading]) -> None:
        raise OSError("no space left")

    with opened(tmp_path / "r") as ledger, pytest.raises((OSError, ExceptionGroup)):
        await run(jobs(1000), ledger, Watcher(), grade=grade, append=append)
    assert len(begun) < 100


def twin(task_id: str, model: str, patch: bytes = b"p") -> Job:
    return Job(task(task_id), Submission(task_id, model, patch, "p.jsonl:1"))


async def test_a_log_that_cannot_be_kept_ends_the_batch_and_loses_nothing_that_has_ended(tmp_path: Path) -> None:
    """It is no grading without a verdict, of which a batch would make hundreds; what ended before it is recorded."""

    async def grade(job: Job) -> Grading:
        if job.task.task_id == "5":
            raise LedgerUnwritable("no space left")
        return await quick(job)

    with opened(tmp_path / "r") as ledger:
        with pytest.raises(ExceptionGroup) as caught:
            await run(jobs(30), ledger, Watcher(), grade=grade, concurrency=1)
        assert ["0", "1", "2", "3", "4"] == [one.task_id for one in ledger.gradings()]
    assert caught.group_contains(LedgerUnwritable)


async def test_the_same_patch_is_graded_once_and_each_submission_has_its_row(tmp_path: Path) -> None:
    """Another model's same patch gets the verdict, at no cost of its own, and a flag that says so."""
    some = [twin("0", "a"), twin("0", "b"), twin("1", "a"), twin("0", "c", b"other")]
    begun: list[str] = []

    async def grade(job: Job) -> Grading:
        begun.append(f"{job.task.task_id}{job.submission.model_name_or_path}")
        return grading(job.task.task_id, model=job.submission.model_name_or_path, patch=job.submission.patch)

    with opened(tmp_path / "r") as ledger:
        await run(some, ledger, Watcher(), grade=grade, dedupe=True)
        found = {(g.task_id, g.model_name_or_path): g for g in ledger.gradings()}

    assert ["0a", "0c", "1a"] == sorted(begun)
    assert {("0", "a"), ("0", "b"), ("1", "a"), ("0", "c")} == found.keys()
    assert (Outcome.RESOLVED, 1.0, 0.0) == (
        found["0", "b"].outcome,
        found["0", "b"].reward,
        found["0", "b"].seconds,
    )
    assert ["graded_once"] == [flag.split(":")[0] for flag in found["0", "b"].flags]
    with opened(tmp_path / "all") as ledger:
        await run(some, ledger, Watcher(), grade=grade)
        assert [()] * 4 == [g.flags for g in ledger.gradings()]


async def test_infrastructure_that_keeps_failing_stops_the_batch(tmp_path: Path) -> None:
    """The batch stops by itself, says why, gives back what is in flight, and keeps what has ended."""
    watcher = Watcher()

    async def grade(job: Job) -> Grading:
        number = int(job.task.task_id)
        if number == 25:
            await anyio.sleep_forever()
        await anyio.sleep(0)
        return grading(str(number), Outcome.NO_VERDICT if number >= 10 else Outcome.RESOLVED, reasons=("no nodes",))

    with opened(tmp_path / "r") as ledger:
        why = await stopped(jobs(1000), ledger, watcher, grade=grade, stops=Stops(breaker=True))
        ended = len(list(ledger.gradings()))

    assert why is not None and "no nodes" in why
    assert 20 <= ended < 40
    assert 0 == watcher.in_flight


async def test_fail_fast_stops_at_the_first_that_is_not_resolved(tmp_path: Path) -> None:
    """With it the first that is not resolved is the last that is graded; without it the batch goes on."""

    async def grade(job: Job) -> Grading:
        await anyio.sleep(0)
        return grading(job.task.task_id, Outcome.UNRESOLVED if job.task.task_id == "5" else Outcome.RESOLVED)

    with opened(tmp_path / "r") as ledger:
        why = await stopped(
            jobs(50), ledger, Watcher(), grade=grade, concurrency=1, stops=Stops(breaker=True, fail_fast=True)
        )
        assert why is not None and "not resolved, 5" in why
        assert [str(n) for n in range(6)] == [g.task_id for g in ledger.gradings()]
    with opened(tmp_path / "all") as ledger:
        assert await stopped(jobs(50), ledger, Watcher(), grade=grade) is None


async def test_fewer_are_in_flight_while_the_machine_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load takes effect on what begins next, and its end lets the batch grow back to its bound."""
    monkeypatch.setattr("grader.pace.EVERY_S", 0.02)
    load = [9.0]
    watcher = Watcher()
    seen: list[int] = []

    async def grade(job: Job) -> Grading:
        seen.append(watcher.in_flight)
        await anyio.sleep(0.01)
        if 1 in watcher.limits:
            load[0] = 0.0
        return grading(job.task.task_id)

    with opened(tmp_path / "r") as ledger:
        await run(jobs(300), ledger, watcher, grade=grade, concurrency=4, load_per_core=lambda: load[0])

    assert [3, 2, 1, 2, 3, 4] == watcher.limits
    assert (4, 1, 4) == (watcher.most_in_flight, min(seen), max(seen[-50:]))
    assert 300 == len(watcher.told)


async def test_a_defect_is_told_on_stderr_without_what_it_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """stdout holds results alone, and no screen shows patches or tasks because a grading failed."""

    async def grade(job: Job) -> Grading:
        patch = f"secret {1 + 1}"
        raise KeyError(len(patch))

    with opened(tmp_path) as ledger:
        await stopped(jobs(1), ledger, Watcher(), grade=grade)
    out, err = capsys.readouterr()
    assert ("", True, False) == (out, "KeyError: 8" in err, "secret 2" in err)
