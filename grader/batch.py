"""Many gradings at once: bounded, each recorded as it ends, stopped cleanly.

Laws. A grading that has ended is recorded, also when the batch is stopped or cancelled at that moment. One grading's
trouble ends no other. A defect of ours in one grading is no verdict, never a score. What is in flight at a stop is
cancelled, so that its sandbox goes back to the provider; it leaves no row and is graded again by the next command.

The grading function is an argument; this module knows no sandbox.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import anyio
import anyio.to_thread
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream

from grader.record import Evidence, Grading, Submission
from grader.verdict import Cause, Outcome
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

    def began(self) -> None:
        """A grading is in flight."""

    def gave_back(self) -> None:
        """A grading is no longer in flight."""

    def recorded(self, grading: Grading) -> None:
        """A grading is in the ledger."""


async def run_batch(
    jobs: Sequence[Job],
    *,
    grade: Grade,
    append: Callable[[Sequence[Grading]], None],
    watcher: Watcher,
    concurrency: int,
    grading_timeout_s: float,
    code_revision: str,
) -> None:
    """Grade `jobs`, at most `concurrency` at once, and record each as it ends. A batch is stopped by cancelling it.

    `append` blocks until its gradings are on the disk and runs in a worker thread; what it raises ends the batch.
    """
    send, receive = anyio.create_memory_object_stream[Grading](math.inf)
    desk = Recorder(receive, append, watcher.recorded)
    queue = iter(jobs)

    async def work() -> None:
        for job in queue:
            watcher.began()
            try:
                ended = await graded(job, grade, grading_timeout_s, code_revision)
                send.send_nowait(ended)  # no await stands between the end and this: a cancel cannot lose it
            finally:
                watcher.gave_back()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(desk.keep_recording)
            with send:
                async with anyio.create_task_group() as workers:
                    for _ in range(min(concurrency, len(jobs))):
                        workers.start_soon(work)
    finally:
        desk.record_what_is_left()


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
            await anyio.to_thread.run_sync(self._write)
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
    """The grading of one job, whatever happens in it; only a cancel from outside comes through."""
    began, started_at = time.monotonic(), datetime.now(UTC)
    reason = f"the grading outlived its budget of {grading_timeout_s:g} s and {GIVE_BACK_S:g} s more to give back"
    with anyio.move_on_after(grading_timeout_s + GIVE_BACK_S):
        try:
            return await grade(job)
        except Exception as error:
            # grade_one turns infrastructure trouble into a grading; what arrives here is a defect, and is said.
            structlog.get_logger().exception("grading failed", task_id=job.task.task_id)
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
