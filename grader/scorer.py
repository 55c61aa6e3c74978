"""Rewards for training: groups of patches in, a number or nothing for each out.

    async with open_scorer(load(Path("campaign.toml"), {})) as scorer:
        group = await scorer.score_group("django__django-15127", patches)
        group.rewards             # [1.0, None, 0.0, ...]
        group.advantages()        # None left the group before the mean
        group.resample()          # which samples to draw again, and why

Laws. What has no verdict has no reward: None, never 0. The same patch for the same task is graded once, whoever asks
and however many ask at the same moment; only a verdict is remembered, so that what had none is tried again when it is
asked for again. A caller that is cancelled gives up its sandboxes, unless another caller waits for the same grading.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from grader.advantages import Advantages, Scale, advantages
from grader.batch import Job, Recorder, graded, no_verdict
from grader.campaign import Campaign
from grader.errors import GraderError, LedgerUnwritable, RunBusy, UsageError
from grader.grounds import open_grounds
from grader.ledger import Expected, Key, Ledger, Row, Start, create_or_resume, key_of, run_directory
from grader.plan import Plan, key, make_plan, on_image
from grader.record import Grading, Submission
from grader.revision import code_revision
from grader.run import NOT_BUILT, Grounds, OpenGrounds
from grader.samples import Pair, Patch, as_bytes, pairs_of, read_pairs
from grader.tally import REFUSALS
from grader.verdict import Cause, Outcome
from sandbox.errors import SandboxError
from sandbox.log import Log
from tasksets.images import Recipe
from tasksets.task import Task

REMEMBERED = 200_000
"""Verdicts that a scorer keeps in memory; beyond it the oldest are graded again when they are asked for."""


class ScorerClosed(GraderError):
    """The scorer was closed, or its ledger took no more, while a group was being scored. Its cause is the ledger's."""


@dataclass(frozen=True)
class Score:
    """What one patch got. The whole record is in the ledger."""

    task_id: str
    reward: float | None
    """None: there is none, and it must not be taken for 0."""
    outcome: Outcome
    cause: Cause | None
    """Set when, and only when, the outcome is `no_verdict`."""
    why: str
    """Why not resolved, or why there is no reward; empty for a resolved one that has its reward."""
    flags: tuple[str, ...]
    patch_sha256: str


@dataclass(frozen=True)
class Resample:
    """One sample of a group that has no reward."""

    index: int
    """Its place in the group, or in the batch that was asked for."""
    task_id: str
    outcome: Outcome
    cause: Cause | None
    why: str
    worthwhile: bool
    """False: the task itself cannot be graded here, so that another sample would end the same. Leave the task out."""


@dataclass(frozen=True)
class Group:
    """The scores of one group, in the order of its patches."""

    task_id: str
    scores: tuple[Score, ...]

    @property
    def rewards(self) -> list[float | None]:
        return [score.reward for score in self.scores]

    def advantages(self, *, scale: Scale = "deviation", epsilon: float = 1e-4) -> Advantages:
        """As `grader.advantages.advantages`: None leaves the group before the mean."""
        return advantages(self.rewards, scale=scale, epsilon=epsilon)

    def resample(self) -> tuple[Resample, ...]:
        """The samples without a reward. A time-out is among them when the policy gives it none."""
        return resamples(self.scores)


def resamples(scores: Iterable[Score]) -> tuple[Resample, ...]:
    """Requests for those of `scores` that have no reward, by their place. Pure."""
    return tuple(
        Resample(index, score.task_id, score.outcome, score.cause, score.why, score.cause not in REFUSALS)
        for index, score in enumerate(scores)
        if score.reward is None
    )


class _Wanted(NamedTuple):
    """What is graded once."""

    task_id: str
    patch_sha256: str


@dataclass
class _Flight:
    """A grading that somebody waits for."""

    waiters: int = 0
    ended: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    score: Score | None = None


class Scorer:
    """Scores groups, many at once. Made by `open_scorer`, and used in the event loop that opened it."""

    def __init__(self, desk: _Desk, group: TaskGroup, *, model: str) -> None:
        self._desk, self._group = desk, group
        self._model = model
        self._slots = anyio.CapacityLimiter(desk.campaign.limits.concurrency)

    async def score_group(self, task_id: str, patches: Sequence[Patch]) -> Group:
        """The scores of `patches`, which are all samples for one task. Text is taken as UTF-8, None as the empty patch.

        Raises `UsageError` for a task that the campaign does not have and for what is no patch, before anything is
        graded, and `ScorerClosed`. Trouble with a grading is in its score.
        """
        pairs = pairs_of(task_id, patches)
        self._desk.task(task_id)
        return Group(task_id, tuple(await self.score_all(pairs)))

    async def score_all(self, samples: Sequence[Pair]) -> list[Score]:
        """The scores of pairs of task id and patch, in their order. Raises as `score_group`."""
        pairs = read_pairs(samples)
        for task_id in {task_id for task_id, _ in pairs}:
            self._desk.task(task_id)
        scores: dict[int, Score] = {}

        async def one(index: int, task_id: str, patch: bytes) -> None:
            scores[index] = await self.score(task_id, patch)

        try:
            async with anyio.create_task_group() as tasks:
                for index, (task_id, patch) in enumerate(pairs):
                    tasks.start_soon(one, index, task_id, patch)
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__ or errors
        return [scores[index] for index in range(len(pairs))]

    async def score(self, task_id: str, patch: Patch) -> Score:
        """The score of one patch. Raises as `score_group`."""
        submission = Submission(task_id, self._model, as_bytes(patch), "scorer")
        job, wanted = Job(self._desk.task(task_id), submission), _Wanted(task_id, submission.patch_sha256)
        if self._desk.failure is not None:
            raise self._desk.over()
        if (known := self._desk.remembered.get(wanted)) is not None:
            return known
        flight = self._desk.flights.get(wanted)
        if flight is None:
            if self._desk.closed:
                raise self._desk.over()
            flight = self._desk.flights[wanted] = _Flight()
            self._group.start_soon(self._fly, wanted, job, flight)
        return await self._wait(wanted, flight)

    async def _wait(self, wanted: _Wanted, flight: _Flight) -> Score:
        flight.waiters += 1
        try:
            await flight.ended.wait()
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.ended.is_set():
                flight.scope.cancel()
                self._land(wanted, flight)
        if flight.score is None or self._desk.failure is not None:
            raise self._desk.over()
        return flight.score

    async def _fly(self, wanted: _Wanted, job: Job, flight: _Flight) -> None:
        try:
            with flight.scope:
                flight.score = await self._desk.graded(wanted, job, self._slots)
        except LedgerUnwritable as error:
            self._desk.unkept = error
            self._desk.fail(error)
        finally:
            flight.ended.set()
            self._land(wanted, flight)

    def _land(self, wanted: _Wanted, flight: _Flight) -> None:
        if self._desk.flights.get(wanted) is flight:
            del self._desk.flights[wanted]


@dataclass
class _Desk:
    """What all gradings of a scorer share: tasks and their images, where they are graded, and what is kept of them."""

    grounds: Grounds
    campaign: Campaign
    tasks: dict[str, Task]
    recipes: dict[str, Recipe]
    expected: dict[str, Expected]
    """By task, as the ledger keeps it, but for the patch."""
    refused: Mapping[str, str]
    """By task, why the campaign's admission file does not admit it."""
    revision: str
    ended: MemoryObjectSendStream[Grading]
    remembered: dict[_Wanted, Score] = field(default_factory=dict)
    unwritten: dict[Key, Expected] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    building: dict[str, anyio.Lock] = field(default_factory=dict)
    flights: dict[_Wanted, _Flight] = field(default_factory=dict)
    closed: bool = False
    failure: Exception | None = None
    unkept: LedgerUnwritable | None = None
    """Why a grading's log could not be kept, so that the grading is not recorded either."""
    """Why nothing more is recorded."""

    def over(self) -> ScorerClosed:
        """What is told to all who ask of a scorer that has ended."""
        if self.failure is None:
            return ScorerClosed("the scorer was closed before the grading ended; open another and ask again")
        over = ScorerClosed(f"the scorer has ended, since what it grades is not recorded: {self.failure}")
        over.__cause__ = self.failure
        return over

    def task(self, task_id: str) -> Task:
        """Raises `UsageError` for one that the campaign does not have."""
        if not isinstance(task_id, str):
            raise UsageError(f"a task is given as {type(task_id).__name__}; give its id, as text")
        if task_id not in self.tasks:
            near = difflib.get_close_matches(task_id, self.tasks, n=3)
            hint = f"; near: {', '.join(near)}" if near else ""
            raise UsageError(f"{task_id!r} is not among the tasks of {self.campaign.taskset}{hint}; give its own ids")
        return self.tasks[task_id]

    async def graded(self, wanted: _Wanted, job: Job, slots: anyio.CapacityLimiter) -> Score:
        if (why := self.refused.get(job.task.task_id)) is not None:
            grading = no_verdict(job, Cause.TASK_REFUSED, f"not admitted: {why}", self.revision)
            self._keep(wanted, job, grading)
            return _score(grading)
        try:
            job = await self._on_its_image(job)
        except Exception as error:
            # One group's image never ends the others' gradings: what is no `SandboxError` is a defect, and is said.
            reason = f"{NOT_BUILT}: {error}"
            if not isinstance(error, SandboxError):
                Log("grader").error("an image was not built", exc_info=True, task_id=job.task.task_id)
                reason = f"{NOT_BUILT} ({type(error).__name__}: {error}); please report it"
            grading = no_verdict(job, Cause.INFRASTRUCTURE, reason, self.revision)
        else:
            async with slots:
                timeout_s = self.campaign.limits.grading_timeout_s
                grading = await graded(job, self.grounds.grade, timeout_s, self.revision)
        self._keep(wanted, job, grading)
        return _score(grading)

    async def _on_its_image(self, job: Job) -> Job:
        recipe = self.recipes.get(job.task.task_id)
        if recipe is None:
            return job
        async with self.building.setdefault(recipe.image_key, anyio.Lock()):
            if recipe.image_key not in self.images:
                self.images[recipe.image_key] = await self.grounds.image(recipe, lambda _: None)
        return on_image(job, self.images[recipe.image_key])

    def _keep(self, wanted: _Wanted, job: Job, grading: Grading) -> None:
        asked = self.expected[job.task.task_id]
        self.unwritten[key(job)] = dataclasses.replace(
            asked, key=key(job), source=job.submission.source, patch=job.submission.patch
        )
        self.ended.send_nowait(grading)
        if grading.outcome is not Outcome.NO_VERDICT:
            if len(self.remembered) >= REMEMBERED:
                del self.remembered[next(iter(self.remembered))]
            self.remembered[wanted] = _score(grading)

    def remember(self, ledger: Ledger) -> None:
        """Take over what the ledger has verdicts for, but for tasks or images that have changed since."""
        now = {task_id: (e.task_digest, e.recipe_digest) for task_id, e in self.expected.items()}
        then = ledger.digests()
        for row_key, row in ledger.current().items():
            if row.outcome is not Outcome.NO_VERDICT and then.get(row_key) == now.get(row_key.task_id):
                self.remembered[_Wanted(row_key.task_id, row_key.patch_sha256)] = _score_of_row(row)

    def write(self, ledger: Ledger, gradings: Sequence[Grading]) -> None:
        """Record what ended. Blocks; runs in a worker thread, and again with the same gradings where it failed."""
        # Two rows of one patch share what was asked for, in one write and in two.
        keys = {key_of(grading) for grading in gradings} & self.unwritten.keys()
        ledger.expect([self.unwritten[one] for one in keys])
        ledger.append(gradings)
        for one in keys:
            self.unwritten.pop(one)

    async def keep_recording(self, recorder: Recorder) -> None:
        """Record what ends. When that fails, all who wait are told, and all who ask from then on."""
        try:
            await recorder.keep_recording()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.failure, self.closed = self.failure or error, True
        for flight in self.flights.values():
            flight.scope.cancel()


@asynccontextmanager
async def open_scorer(
    campaign: Campaign, *, model: str = "policy", grounds: OpenGrounds | None = None
) -> AsyncIterator[Scorer]:
    """Open the campaign's provider and ledger, and score against its tasks; its `patches` are left alone.

    Gradings are recorded under `model` in the campaign's run. Where another process scores into that run, this one
    takes `RUN-2`, `RUN-3` and so on: each process has its own ledger and its own provider. What the ledger has verdicts
    for is not graded again. `grounds` opens another place to grade in; None is the campaign's own. Leaving cancels what
    is in flight and gives its sandboxes back.

    Raises `UsageError`, `TaskSetError` and `ProviderUnavailable`, and on leaving what a ledger raised that still cannot
    be written.
    """
    plan, revision = make_plan(campaign.model_copy(update={"patches": "reference"})), code_revision()
    with _ledger(campaign, plan, revision) as ledger:
        campaign = campaign.model_copy(update={"run": ledger.run_dir.name})
        opening = (grounds or partial(open_grounds, campaign, revision))()
        async with opening as opened, _open(opened, campaign, plan, ledger, revision) as (desk, group):
            yield Scorer(desk, group, model=model)


@asynccontextmanager
async def _open(
    grounds: Grounds, campaign: Campaign, plan: Plan, ledger: Ledger, revision: str
) -> AsyncIterator[tuple[_Desk, TaskGroup]]:
    send, receive = anyio.create_memory_object_stream[Grading](math.inf)
    desk = _Desk(
        grounds=grounds,
        campaign=campaign,
        tasks={job.task.task_id: job.task for job in plan.jobs},
        recipes=dict(plan.recipes),
        expected={expected.key.task_id: expected for expected in plan.asked()},
        refused=plan.refused,
        revision=revision,
        ended=send,
    )
    desk.remember(ledger)
    recorder = Recorder(receive, partial(desk.write, ledger), lambda _: None)
    raised: Exception | None = None
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(desk.keep_recording, recorder)
            try:
                yield desk, group
            except Exception as error:
                raised = error  # the caller's own: it leaves as it came, not in an exception group
            finally:
                desk.closed = True
                group.cancel_scope.cancel()
    finally:
        send.close()
        recorder.record_what_is_left()
    if raised is not None:
        raise raised
    if desk.unkept is not None:
        raise desk.unkept


@contextmanager
def _ledger(campaign: Campaign, plan: Plan, revision: str) -> Iterator[Ledger]:
    """The ledger of the first of RUN, RUN-2, ... that no other process writes."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    start = Start(now, revision, campaign.model_dump_json())
    with ExitStack() as stack:
        for number in itertools.count(1):
            name = campaign.run if number == 1 else f"{campaign.run}-{number}"
            run_dir = run_directory(campaign.runs_dir, name)
            try:
                ledger = create_or_resume(run_dir, identity=plan.identity, asked=(), start=start)
                opened = stack.enter_context(ledger)
            except RunBusy:
                continue
            yield opened
            return


def _score(grading: Grading) -> Score:
    why = _why(grading.reward, grading.outcome, grading.reasons, grading.flags)
    sha256 = grading.evidence.patch_sha256
    return Score(grading.task_id, grading.reward, grading.outcome, grading.cause, why, grading.flags, sha256)


def _score_of_row(row: Row) -> Score:
    why = _why(row.reward, row.outcome, row.reasons, row.flags)
    return Score(row.key.task_id, row.reward, row.outcome, row.cause, why, row.flags, row.key.patch_sha256)


def _why(reward: float | None, outcome: Outcome, reasons: Sequence[str], flags: Sequence[str]) -> str:
    """The first reason; where there is a verdict and no reward, that it was the policy that gave none."""
    reason = reasons[0] if reasons else ""
    if reward is not None or outcome is Outcome.NO_VERDICT:
        return reason
    told = [*filter(None, [reason]), *flags]
    return f"the policy gives no reward for {outcome.value.replace('_', ' ')}" + (f": {' '.join(told)}" if told else "")
