"""One run of a campaign, from its plan to its last row: resume, images, gradings, and a clean stop.

The route of one grading is `grader.grade`; this module gives it tasks on built images and records what it says. A stop
(SIGINT, SIGTERM, SIGHUP, or a stdout that takes no more) gives back what is in flight and loses nothing that has ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import anyio

from grader import known
from grader.batch import NEVER, Job, Stops, machine_load, no_verdict, run_batch
from grader.campaign import Campaign
from grader.errors import OutputUnwritable
from grader.ledger import Ledger, Start, create_or_resume, key_of, run_directory
from grader.pace import Reading
from grader.plan import Plan, key, on_image
from grader.progress import Progress
from grader.record import Grading
from grader.tally import Tally, count
from grader.verdict import Cause
from sandbox.errors import ImageError, ProviderUnavailable, SandboxError
from tasksets.images import Recipe

NOT_BUILT = "the task's image was not built"
"""How the reason of a grading begins that had no image."""


class Grounds(Protocol):
    """Where a run's images are built and its gradings happen."""

    async def image(self, recipe: Recipe, say: Callable[[str], None]) -> str:
        """The reference of the recipe's image, built if need be, telling each step. Raises `SandboxError`."""
        ...

    async def unusable(self, job: Job, recipe: Recipe | None) -> ImageError | None:
        """Why the job's image, or the recipe that makes it, is not to be had, where that shows before any work."""
        ...

    async def grade(self, job: Job) -> Grading:
        """The grading of one job; infrastructure trouble is a grading without a verdict."""
        ...


OpenGrounds = Callable[[], AbstractAsyncContextManager[Grounds]]


@dataclass(frozen=True)
class Finished:
    """How one command over a run ended."""

    asked: Tally
    """Over what this command asked for."""
    run: Tally
    """Over all that the run was ever asked for."""
    stopped_by: signal.Signals | None
    """None: no signal did. SIGPIPE: nobody read our lines any more."""
    stopped_because: str | None = None
    """Why it stopped by itself before its last grading. None: it did not."""
    output_lost: OutputUnwritable | None = None
    """Why it stopped handing out what it records. None: it did not."""


async def run_campaign(
    campaign: Campaign,
    plan: Plan,
    *,
    open_grounds: OpenGrounds,
    code_revision: str,
    progress: Callable[[int, int], Progress],
    emit: Callable[[Grading], None] | None,
    dedupe: bool = False,
    stops: Stops = NEVER,
) -> Finished:
    """Grade what `plan` asks for and the run does not have yet, and record each grading as it ends.

    `emit` gets every asked grading that counts: those that the run had, then each new one once it is on the disk. None
    reads none of the old ones, which can be large.
    `progress` is called with how many were asked for and how many of them have a verdict. `dedupe` grades the same
    patch for the same task once, whoever submitted it, and takes an empty patch's verdict from the admission file.
    `stops` says what ends the run early. Raises `UsageError`, `LedgerUnwritable` and `ProviderUnavailable`.
    """
    run_dir = run_directory(campaign.runs_dir, campaign.run)
    start = Start(_now(), code_revision, campaign.model_dump_json())
    with create_or_resume(run_dir, identity=plan.identity, asked=plan.asked(), start=start) as ledger:
        asked = {key(job) for job in plan.jobs}
        decided = ledger.decided() & asked
        desk = _Desk(progress(len(asked), len(decided)), emit)
        if emit is not None:
            desk.hand_out(g for g in ledger.current_gradings() if key_of(g) in decided)
        todo = _turn_away([job for job in plan.jobs if key(job) not in decided], plan, ledger, desk, code_revision)
        if todo and not desk.stop.event.is_set():
            run = _Run(campaign, plan, ledger, desk, code_revision, dedupe, stops)
            await run.go(run.without_known(todo) if dedupe else todo, open_grounds)
        desk.progress.clear()
        rows = ledger.current()
        owed = [expected.key for expected in ledger.expected()]
        return Finished(
            count(asked, rows), count(owed, rows), desk.stop.by, desk.stopped_because, desk.stop.output_lost
        )


def _turn_away(todo: list[Job], plan: Plan, ledger: Ledger, desk: _Desk, code_revision: str) -> list[Job]:
    """The jobs whose tasks are admitted. The others are recorded, each by name, and never run."""
    refused = [
        no_verdict(job, Cause.TASK_REFUSED, f"not admitted: {why}", code_revision)
        for job in todo
        if (why := plan.refused.get(job.task.task_id)) is not None
    ]
    ledger.append(refused)
    for grading in refused:
        desk.recorded(grading)
    return [job for job in todo if job.task.task_id not in plan.refused]


@dataclass
class _Stop:
    event: anyio.Event = field(default_factory=anyio.Event)
    by: signal.Signals | None = None
    output_lost: OutputUnwritable | None = None

    def set(self, by: signal.Signals) -> None:
        self.by = self.by or by
        self.event.set()

    def on_lost_output(self, error: OutputUnwritable) -> None:
        self.output_lost = error
        self.event.set()


@dataclass
class _Desk:
    """Tells the progress what happens, hands out what is recorded, and knows when to stop."""

    progress: Progress
    emit: Callable[[Grading], None] | None
    stop: _Stop = field(default_factory=_Stop)
    stopped_because: str | None = None

    def began(self, job: Job) -> None:
        self.progress.began(_name(job))

    def gave_back(self, job: Job) -> None:
        self.progress.gave_back(_name(job))

    def paced(self, limit: int, why: Reading) -> None:
        load = "" if why.load_per_core is None else f"load {why.load_per_core:.1f} for each core"
        stretch = "" if why.stretch is None else f"suites take {why.stretch:.2f} times their median"
        told = " and ".join(filter(None, (load, stretch))) or "nothing speaks against more"
        self.progress.say(f"at most {limit} gradings in flight from now on: {told}")

    def recorded(self, grading: Grading) -> None:
        self.progress.ended(grading)
        self.hand_out([grading])

    def hand_out(self, gradings: Iterable[Grading]) -> None:
        for grading in gradings:
            if self.emit is None or self.stop.by is signal.SIGPIPE or self.stop.output_lost is not None:
                return
            self.progress.clear()
            try:
                self.emit(grading)
            except BrokenPipeError:
                self.stop.set(signal.SIGPIPE)
            except OutputUnwritable as error:
                self.stop.on_lost_output(error)


@dataclass(frozen=True)
class _Run:
    """A run that is open for writing, with something left to grade."""

    campaign: Campaign
    plan: Plan
    ledger: Ledger
    desk: _Desk
    code_revision: str
    dedupe: bool
    stops: Stops

    def without_known(self, todo: list[Job]) -> list[Job]:
        """Record those of `todo` whose verdict is there already (`grader.known`); the rest of `todo`."""
        found = {**known.of_empty_patches(self.campaign, todo), **known.of_twins(self.ledger, todo)}
        self._record(list(found.values()))
        return [job for job in todo if key(job) not in found]

    def _record(self, gradings: Sequence[Grading]) -> None:
        self.ledger.append(gradings)
        for grading in gradings:
            self.desk.recorded(grading)

    async def go(self, todo: list[Job], open_grounds: OpenGrounds) -> None:
        """Grade `todo`, until done or stopped."""
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_on_signal, self.desk)
            await _until_stopped(self.desk.stop, self._on(open_grounds, todo))
            group.cancel_scope.cancel()

    async def _on(self, open_grounds: OpenGrounds, todo: list[Job]) -> None:
        async with open_grounds() as grounds:
            await self._refuse_where_none_can_begin(todo, grounds)
            jobs = await self._with_images(todo, grounds)
            async with anyio.create_task_group() as drawing:
                drawing.start_soon(self.desk.progress.keep_drawing)
                self.desk.stopped_because = await run_batch(
                    jobs,
                    grade=grounds.grade,
                    append=self.ledger.append,
                    watcher=self.desk,
                    concurrency=self.campaign.limits.concurrency,
                    grading_timeout_s=self.campaign.limits.grading_timeout_s,
                    code_revision=self.code_revision,
                    dedupe=self.dedupe,
                    stops=self.stops,
                    load_per_core=machine_load if self.campaign.provider.type == "local" else lambda: None,
                )
                drawing.cancel_scope.cancel()
            if self.desk.stopped_because is not None:
                self.desk.progress.say(self.desk.stopped_because)

    async def _refuse_where_none_can_begin(self, todo: list[Job], grounds: Grounds) -> None:
        """Raise `ImageError` when no job of a run that has no rows yet has an image that is to be had. Where some have,
        or the run is under way, those that have not are recorded."""
        if self.ledger.current():
            return
        found: dict[str, ImageError] = {}
        for job in todo:
            why = await grounds.unusable(job, self.plan.recipes.get(job.task.task_id))
            if why is None:
                return
            found.setdefault(job.task.task_id, why)
        if not found:
            return
        (task_id, why), *others = found.items()
        more = f" (and {len(others)} more tasks have no image either)" if others else ""
        raise ImageError(f"{task_id}: {why}{more}") from why

    async def _with_images(self, todo: list[Job], grounds: Grounds) -> list[Job]:
        """The jobs on their images; those whose image was not built are recorded without a verdict and left out."""
        recipes: dict[str, Recipe] = {}
        for job in todo:
            if wanted := self.plan.recipes.get(job.task.task_id):
                recipes.setdefault(wanted.image_key, wanted)
        built = await _images(recipes, grounds, self.campaign.limits.concurrency, self.desk.progress)
        jobs: list[Job] = []
        for job in todo:
            recipe = self.plan.recipes.get(job.task.task_id)
            image = built[recipe.image_key] if recipe else None
            if isinstance(image, SandboxError):
                reason = f"{NOT_BUILT}: {image}"
                grading = no_verdict(job, Cause.INFRASTRUCTURE, reason, self.code_revision)
                self._record([grading])
            else:
                jobs.append(on_image(job, image) if image else job)
        return jobs


async def _images(
    recipes: Mapping[str, Recipe], grounds: Grounds, concurrency: int, progress: Progress
) -> dict[str, str | SandboxError]:
    """Each image's reference, by the recipe's key, or why it was not built. One failure holds up no other image."""
    built: dict[str, str | SandboxError] = {}
    queue = iter(recipes.items())

    def say(recipe: Recipe, text: str) -> None:
        progress.say(f"image of {recipe.instance_id}: {text}")

    async def build() -> None:
        for image_key, recipe in queue:
            try:
                built[image_key] = await grounds.image(recipe, partial(say, recipe))
                say(recipe, f"ready, {len(built)} of {len(recipes)}")
            except ProviderUnavailable:
                raise
            except SandboxError as error:
                built[image_key] = error
                say(recipe, f"not built: {error}")

    async with anyio.create_task_group() as group:
        for _ in range(min(concurrency, len(recipes))):
            group.start_soon(build)
    return built


async def _stop_on_signal(desk: _Desk) -> None:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    with anyio.open_signal_receiver(*numbers) as signals:
        await _first(signals, desk)
        # Where a terminal goes away its shell and the kernel each send a SIGHUP.
        while (number := await anext(signals)) is signal.SIGHUP:
            continue
    # The second one means it: end as the signal does by itself. What is left behind, the next start sweeps.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


async def _first(signals: AsyncIterator[signal.Signals], desk: _Desk) -> None:
    number = await anext(signals)
    in_flight = desk.progress.standing().in_flight
    desk.progress.say(f"stopping on {number.name}: {in_flight} in flight are given back; once more ends at once")
    desk.stop.set(number)


async def _until_stopped(stop: _Stop, work: Awaitable[None]) -> None:
    """Wait for `work`, which is cancelled when the stop comes."""
    async with anyio.create_task_group() as group:

        async def cancel_at_the_stop() -> None:
            await stop.event.wait()
            group.cancel_scope.cancel()

        group.start_soon(cancel_at_the_stop)
        await work
        group.cancel_scope.cancel()


def _name(job: Job) -> str:
    # The patch is in it, since one model may have several for one task.
    return f"{job.task.task_id} ({job.submission.model_name_or_path}, {job.submission.patch_sha256[:8]})"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
