"""Many gradings at once: bounded, paced, each recorded as it ends, stopped cleanly.

Laws. A grading that has ended is recorded, also when the batch is stopped or cancelled at that moment. One grading's
trouble ends no other. A defect of ours in one grading is no verdict, never a score. What is in flight at a stop is
cancelled, so that its sandbox goes back to the provider; it leaves no row and is graded again by the next command.
The same patch for the same task is graded once, whoever submitted it, and each submission gets its row.

The grading function is an argument; this module knows no sandbox.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from grader import pace
from grader.breaker import Breaker
from grader.errors import LedgerUnwritable
from grader.record import Evidence, Grading, Submission
from grader.verdict import Cause, Outcome
from sandbox.log import Log
from sandbox.outlast import in_thread
from tasksets.task import Task

GIVE_BACK_S = 60.0
"""Seconds beyond its own budget that a grading gets to give its sandbox back, before the batch gives it up."""


@dataclass(frozen=True)
class Job:
    """One patch for one task."""

    task: Task
    submission: Submission


Grade = Callable[[Job], Awaitable[Grading]]


class Watcher(Protocol):
    """Who wants to know what a batch does. Its methods do not wait."""

    def began(self, job: Job) -> None:
        """A grading is in flight."""

    def gave_back(self, job: Job) -> None:
        """A grading is no longer in flight."""

    def recorded(self, grading: Grading) -> None:
        """A grading is in the ledger."""

    def paced(self, limit: int, why: pace.Reading) -> None:
        """From now on at most `limit` gradings are in flight."""


@dataclass(frozen=True)
class Stops:
    """What ends a batch before its last job."""

    breaker: bool
    """Stop when infrastructure fails too often (`grader.breaker`)."""
    fail_fast: bool = False
    """Stop at the first grading that is not resolved."""


NEVER = Stops(breaker=False)
"""Grade every job, whatever becomes of the others."""


async def run_batch(
    jobs: Sequence[Job],
    *,
    grade: Grade,
    append: Callable[[Sequence[Grading]], None],
    watcher: Watcher,
    concurrency: int,
    grading_timeout_s: float,
    code_revision: str,
    dedupe: bool = False,
    stops: Stops = NEVER,
    load_per_core: Callable[[], float | None] = lambda: None,
) -> str | None:
    """Grade `jobs`, at most `concurrency` at once and fewer while the place is saturated, and record each as it ends.

    The answer is why it stopped before the last job, or None. A batch is stopped from outside by cancelling it.
    `append` blocks until its gradings are on the disk and runs in a worker thread; what it raises ends the batch, as
    does a log that cannot be kept.
    `dedupe` grades the same patch for the same task once. `load_per_core` is read for the pace; None where the load of
    this machine says nothing of the sandboxes.
    """
    send, receive = anyio.create_memory_object_stream[Grading](math.inf)
    desk = Recorder(receive, append, watcher.recorded)
    batch = _Batch(grade, watcher, grading_timeout_s, code_revision, stops, send, pace.Pace(concurrency, concurrency))
    queue = iter(twins(jobs) if dedupe else [(job,) for job in jobs])
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(desk.keep_recording)
            async with anyio.create_task_group() as pacing:
                pacing.start_soon(batch.keep_pace, load_per_core)
                with send:
                    async with anyio.create_task_group() as workers:
                        for _ in range(min(concurrency, len(jobs))):
                            workers.start_soon(batch.work, queue, workers.cancel_scope)
                pacing.cancel_scope.cancel()
    finally:
        desk.record_what_is_left()
    return batch.stopped


def twins(jobs: Iterable[Job]) -> list[tuple[Job, ...]]:
    """The jobs that differ in nothing that a verdict depends on, together; a run fixes the rest. Pure."""
    found: dict[tuple[str, str | None, str], list[Job]] = {}
    for job in jobs:
        found.setdefault((job.task.digest, job.task.image, job.submission.patch_sha256), []).append(job)
    return [tuple(alike) for alike in found.values()]


def as_graded_for(grading: Grading, job: Job) -> Grading:
    """The record of `job`, whose patch was graded for another submission. It cost no time of its own."""
    flag = f"graded_once: the same patch was submitted by {grading.model_name_or_path}, and graded for it."
    return grading.model_copy(
        update={
            "model_name_or_path": job.submission.model_name_or_path,
            "seconds": 0.0,
            "flags": (*(f for f in grading.flags if not f.startswith("graded_once:")), flag),
        }
    )


@dataclass
class _Batch:
    """A batch that runs: what its workers share."""

    grade: Grade
    watcher: Watcher
    grading_timeout_s: float
    code_revision: str
    stops: Stops
    ended: MemoryObjectSendStream[Grading]
    pacing: pace.Pace
    suites: pace.Suites = field(default_factory=pace.Suites)
    breaker: Breaker = field(default_factory=Breaker)
    stopped: str | None = None
    slots: anyio.CapacityLimiter = field(init=False)

    def __post_init__(self) -> None:
        self.slots = anyio.CapacityLimiter(self.pacing.limit)

    async def work(self, queue: Iterator[tuple[Job, ...]], all_workers: anyio.CancelScope) -> None:
        while True:
            async with self.slots:
                alike = next(queue, None)
                if alike is None:
                    return
                self.watcher.began(alike[0])
                try:
                    grading = await graded(alike[0], self.grade, self.grading_timeout_s, self.code_revision)
                    self._end(grading, alike)  # no await stands between the end and this: a cancel cannot lose it
                finally:
                    self.watcher.gave_back(alike[0])
            if self.stopped is not None:
                all_workers.cancel()

    def _end(self, grading: Grading, alike: tuple[Job, ...]) -> None:
        self.ended.send_nowait(grading)
        for job in alike[1:]:
            self.ended.send_nowait(as_graded_for(grading, job))
        self.breaker = self.breaker.after(grading)
        if (seconds := grading.evidence.phases_s.get("suite")) is not None:
            self.suites = self.suites.after(grading.task_id, seconds)
        if self.stops.fail_fast and grading.outcome is not Outcome.RESOLVED:
            why = grading.reasons[0] if grading.reasons else ""
            self.stopped = self.stopped or f"stopped at the first that is not resolved, {grading.task_id}: {why}"
        if self.stops.breaker:
            self.stopped = self.stopped or self.breaker.tripped()

    async def keep_pace(self, load_per_core: Callable[[], float | None]) -> None:
        while True:
            await anyio.sleep(pace.EVERY_S)
            reading = pace.Reading(self.suites.stretch(), load_per_core())
            self.suites = self.suites.read()
            before, self.pacing = self.pacing.limit, self.pacing.after(reading)
            if self.pacing.limit != before:
                self.slots.total_tokens = self.pacing.limit
                self.watcher.paced(self.pacing.limit, reading)


def machine_load() -> float | None:
    """Processes that want a core of this machine, over the last minute, for each core that we may use."""
    try:
        return os.getloadavg()[0] / len(os.sched_getaffinity(0))
    except OSError:
        return None


@dataclass
class Recorder:
    """Takes gradings as they end to the ledger, everything that waits in one transaction, and then tells of them."""

    receive: MemoryObjectReceiveStream[Grading]
    append: Callable[[Sequence[Grading]], None]
    """Blocks until its gradings are on the disk; runs in a worker thread."""
    recorded: Callable[[Grading], None]
    _unwritten: list[Grading] = field(default_factory=list)
    _untold: list[Grading] = field(default_factory=list)

    async def keep_recording(self) -> None:
        async for first in self.receive:
            self._unwritten += [first, *_waiting(self.receive)]
            await in_thread(self._write)
            self._tell()

    def record_what_is_left(self) -> None:
        """After a cancel: what had ended before it is recorded as well."""
        with self.receive:
            self._unwritten += _waiting(self.receive)
            self._write()
            self._tell()

    def _write(self) -> None:
        if self._unwritten:
            self.append(self._unwritten)
            self._untold += self._unwritten
            self._unwritten = []

    def _tell(self) -> None:
        told, self._untold = self._untold, []
        for grading in told:
            self.recorded(grading)


def _waiting(receive: MemoryObjectReceiveStream[Grading]) -> Iterator[Grading]:
    while True:
        try:
            yield receive.receive_nowait()
        except (anyio.WouldBlock, anyio.EndOfStream):
            return


async def graded(job: Job, grade: Grade, grading_timeout_s: float, code_revision: str) -> Grading:
    """The grading of one job, whatever happens in it. A cancel from outside comes through, and `LedgerUnwritable`."""
    began, started_at = time.monotonic(), datetime.now(UTC)
    reason = f"the grading outlived its budget of {grading_timeout_s:g} s and {GIVE_BACK_S:g} s more to give back"
    with anyio.move_on_after(grading_timeout_s + GIVE_BACK_S):
        try:
            return await grade(job)
        except LedgerUnwritable:
            raise
        except Exception as error:
            # grade_one turns infrastructure trouble into a grading; what arrives here is a defect, and is said.
            Log("grader").error("grading failed", exc_info=True, task_id=job.task.task_id)
            reason = f"the grader itself failed ({type(error).__name__}: {error}); please report it"
    return no_verdict(
        job, Cause.INFRASTRUCTURE, reason, code_revision, started_at=started_at, seconds=time.monotonic() - began
    )


def no_verdict(
    job: Job,
    cause: Cause,
    reason: str,
    code_revision: str,
    *,
    started_at: datetime | None = None,
    seconds: float = 0.0,
) -> Grading:
    """The record of a job that got no sandbox, or whose grading failed around it."""
    return Grading(
        task_id=job.task.task_id,
        model_name_or_path=job.submission.model_name_or_path,
        outcome=Outcome.NO_VERDICT,
        cause=cause,
        reward=None,
        seconds=seconds,
        reasons=(reason,),
        evidence=Evidence(
            patch_sha256=job.submission.patch_sha256,
            task_digest=job.task.digest,
            image_ref=job.task.image,
            attempts=0,
            code_revision=code_revision,
        ),
        started_at=(started_at or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    )
