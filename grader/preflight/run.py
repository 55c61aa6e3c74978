"""One preflight, from its campaign to its admission file. The shell: it asks for gradings and reads them back.

Each grading is an ordinary one, through the run and ledger of `grader grade`, in a sandbox of its own. Its model says
what it was for (`preflight:reference:2`), so that the same command again goes on where it stopped. What runs under
changed conditions has a ledger of its own, since a ledger holds the gradings of one configuration.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from grader.batch import NEVER, Job
from grader.campaign import Campaign, Limits
from grader.errors import UsageError
from grader.ledger import Key, identity_hash, key_of, read_only, run_directory
from grader.parsers import known_parsers
from grader.plan import Plan, identity_of, key, make_plan
from grader.preflight.admission_file import Admissions, Entry, FlakyTest, Header, Need, covers, kept_entries
from grader.preflight.classes import CONTROLS, Class, Finding, classify, comparison, diagnosable, runs_needed
from grader.preflight.evidence import EMPTY, REFERENCE, Evidence, Seen, Tried, Trouble, seen
from grader.preflight.mutants import mutants
from grader.preflight.variations import TIMES, Variation, variations
from grader.progress import Progress
from grader.record import Submission
from grader.run import NOT_BUILT, OpenGrounds, run_campaign
from grader.verdict import Outcome
from tasksets import admission as rows
from tasksets.checkup import check_all
from tasksets.images import recipes_by_task
from tasksets.task import Task
from tasksets.taskset import TaskSet, open_taskset

MARK = "preflight"
"""The model of every row of a preflight begins so."""
CONTROL = "control"

_IMAGE_CODES = frozenset({rows.Code.NO_IMAGE, rows.Code.NO_PLAN, rows.Code.UNKNOWN_PARSER})


@dataclass(frozen=True)
class Request:
    """What is asked of a preflight beside its campaign."""

    repeats: int = 3
    """Gradings of the reference, and of the empty patch, for each task."""
    slow_share: float = 0.5
    """The share of the tests' time limit that the reference may take."""
    vary: tuple[str, ...] = ()
    """Conditions that may be changed to find what a failing task needs; none: no such runs."""
    mutants: int = 0
    """Mutants of the reference patch for each admitted task, at most."""


@dataclass(frozen=True)
class Preflight:
    """How a preflight ended."""

    admissions: Admissions
    infrastructure: tuple[str, ...]
    """Tasks that infrastructure left without a class; the same command tries them again."""
    kept: tuple[Entry, ...] = ()
    """Entries of the earlier admission file, for tasks that this preflight was not asked for."""

    @property
    def file(self) -> Admissions:
        """What the admission file holds from now on."""
        return self.admissions.model_copy(update={"entries": (*self.kept, *self.admissions.entries)})


class Stopped(Exception):
    """A signal, or a reader of stdout that went away, ended the preflight; what had ended is in its ledgers."""

    def __init__(self, by: signal.Signals) -> None:
        super().__init__(by)
        self.by = by


async def run_preflight(
    campaign: Campaign,
    request: Request,
    *,
    open_grounds: Callable[[Campaign], OpenGrounds],
    code_revision: str,
    progress: Callable[[int, int], Progress],
    say: Callable[[str], None],
    earlier: Path | None = None,
) -> Preflight:
    """Grade what the request asks for and the run does not have yet, and say which class each task is of.

    Every repeat on record counts, also those beyond `request.repeats`. `campaign.run` names the preflight's own run;
    its `patches` and `admission` are left alone. `open_grounds` gives the way to a campaign's sandboxes; it is asked
    once more for each changed condition. `earlier` is the admission file that the caller is about to replace. Raises
    `Stopped`, `UsageError` where `earlier` cannot be added to, and what `run_campaign` raises.
    """
    taskset = open_taskset(campaign.taskset)
    asked = taskset.require(campaign.only) if campaign.only else taskset.ids()
    header = _header(campaign, request, taskset, code_revision)
    kept = kept_entries(earlier, header, asked) if earlier is not None else ()
    refused = _static(campaign, taskset, asked)
    entries = {task_id: _refused(finding) for task_id, finding in refused.items()}
    infrastructure: list[str] = []
    if usable := tuple(task_id for task_id in asked if task_id not in refused):
        plan = make_plan(campaign.model_copy(update={"patches": REFERENCE, "only": usable, "admission": None}))
        desk = _Desk(campaign, plan, request, open_grounds, code_revision, progress, say)
        await desk.repeat()
        await desk.diagnose()
        await desk.recall_controls()
        await desk.mutate()
        for task_id, task in desk.tasks.items():
            evidence = desk.evidence(task_id)
            finding = _classified(campaign, request, evidence)
            entries[task_id] = _entry(task, finding, evidence, plan.origins[task_id])
            if finding.kind is Class.NO_VERDICT and _is_infrastructure(evidence):
                infrastructure.append(task_id)
    return Preflight(
        Admissions(
            header=header,
            entries=tuple(entries[task_id] for task_id in asked),
        ),
        tuple(infrastructure),
        kept,
    )


def _static(campaign: Campaign, taskset: TaskSet, asked: Sequence[str]) -> dict[str, rows.Finding]:
    """Tasks that their rows rule out, each with the first reason."""
    recipes = recipes_by_task(campaign.recipes) if campaign.recipes else {}
    known = rows.Known(recipes=recipes, parsers=frozenset(known_parsers()))
    refused: dict[str, rows.Finding] = {}
    for task_id, found in check_all(taskset, asked, known=known).findings.items():
        for finding in found:
            # --images gives an image to a row that names none.
            elsewhere = finding.code is rows.Code.NO_IMAGE and campaign.images is not None
            if finding.code is rows.Code.NO_PATCH or (finding.severity is rows.Severity.ERROR and not elsewhere):
                refused.setdefault(task_id, finding)
    return refused


@dataclass
class _Desk:
    """The gradings of one preflight: asked for by task and purpose, read back as evidence."""

    campaign: Campaign
    plan: Plan
    request: Request
    open_grounds: Callable[[Campaign], OpenGrounds]
    code_revision: str
    progress: Callable[[int, int], Progress]
    say: Callable[[str], None]
    _reference: dict[str, list[Seen]] = field(default_factory=dict)
    _empty: dict[str, list[Seen]] = field(default_factory=dict)
    _control: dict[str, list[Seen]] = field(default_factory=dict)
    _tried: dict[str, dict[str, Tried]] = field(default_factory=dict)
    _mutants: dict[str, dict[str, Seen]] = field(default_factory=dict)

    @cached_property
    def tasks(self) -> dict[str, Task]:
        return {job.task.task_id: job.task for job in self.plan.jobs}

    def evidence(self, task_id: str) -> Evidence:
        """What is known of the task so far."""
        return Evidence(
            reference=tuple(self._reference[task_id]),
            empty=tuple(self._empty[task_id]),
            control=tuple(self._control.get(task_id, ())),
            tried=tuple(self._tried.get(task_id, {}).values()),
            mutants=self._mutants.get(task_id, {}),
        )

    async def repeat(self) -> None:
        """Reference and empty patch of each task, `repeats` times each; where more are on record, those too."""
        wanted = {
            key(job): job
            for number in range(1, self.request.repeats + 1)
            for task in self.tasks.values()
            for job in (_job(task, REFERENCE, number, task.reference_patch), _job(task, EMPTY, number, b""))
        }
        jobs = [*(wanted | self._on_record(REFERENCE, EMPTY)).values()]
        more = f"; {len(jobs) - len(wanted)} more are on record and count" if len(jobs) > len(wanted) else ""
        self.say(f"{len(self.tasks)} tasks, reference and empty patch {self.request.repeats} times each{more}")
        found = await self._grade(jobs)
        for job in jobs:
            kept = self._reference if f":{REFERENCE}:" in job.submission.model_name_or_path else self._empty
            kept.setdefault(job.task.task_id, []).append(found[key(job)])

    def _on_record(self, *kinds: str) -> dict[Key, Job]:
        """Jobs of these kinds that the run has rows of, for the tasks and patches of today."""
        jobs: dict[Key, Job] = {}
        for row in _rows(run_directory(self.campaign.runs_dir, self.campaign.run)):
            mark, _, rest = row.model.partition(":")
            kind, _, number = rest.partition(":")
            task = self.tasks.get(row.task_id)
            if task is not None and mark == MARK and kind in kinds and number.isdecimal():
                job = _job(task, kind, int(number), b"" if kind == EMPTY else task.reference_patch)
                if key(job) == row:
                    jobs[row] = job
        return jobs

    async def recall_controls(self) -> None:
        """Controls of an earlier call, which count as well: they are the reference under the same conditions."""
        self._control |= await self._by_task([*self._on_record(CONTROL).values()])

    async def diagnose(self) -> None:
        """Look for the condition that each failing task lacks, one changed condition after the other.

        A pass with one is followed by a control, unchanged, and then by as many more as it takes to be no luck. A task
        whose condition is found is done with.
        """
        suspects = [task_id for task_id in self.tasks if self.request.vary and self._is_suspect(task_id)]
        for variation in variations(self.campaign.conditions) if suspects else ():
            if variation.name not in self.request.vary:
                continue
            open_still = [task_id for task_id in suspects if self._is_open(task_id)]
            await self._try(variation, {task_id: 1 for task_id in open_still if self._is_worth(task_id, variation)})
            passing = [task_id for task_id in open_still if self._passes(task_id, variation)]
            if variation.names_a_need and passing:
                await self._again_unchanged(passing)
                await self._confirm(variation, passing)

    async def _again_unchanged(self, task_ids: Sequence[str]) -> None:
        """Controls: one for a task that never passed, which is to fail once more; for others as many as it takes."""
        for enough in (1, CONTROLS):
            short = [task_id for task_id in task_ids if len(self._control.get(task_id, ())) < enough]
            if enough > 1:
                short = [task_id for task_id in short if any(s.resolved for s in self.evidence(task_id).unchanged)]
            self._control |= await self._by_task(
                [
                    _job(self.tasks[task_id], CONTROL, number, self.tasks[task_id].reference_patch)
                    for task_id in short
                    for number in range(1, enough + 1)
                ]
            )

    async def _confirm(self, variation: Variation, task_ids: Sequence[str]) -> None:
        """Run until the passes under the changed condition are no luck, or one fails.

        A task that sometimes passes anyway gets twice as many runs each time, since most such trials soon fail.
        """
        while True:
            wanted: dict[str, int] = {}
            for task_id in task_ids:
                unchanged = comparison(self.evidence(task_id))
                needed, runs = runs_needed(unchanged), len(self._tried[task_id][variation.slug].seen)
                if needed is not None and runs < needed and self._passes(task_id, variation):
                    never = not any(seen.resolved for seen in unchanged)
                    wanted[task_id] = needed if never else min(2 * runs, needed)
            if not wanted:
                return
            await self._try(variation, wanted)

    async def _try(self, variation: Variation, runs: Mapping[str, int]) -> None:
        """Run the reference under one changed condition until each of these tasks has so many runs of it."""
        jobs = []
        for task_id, count in runs.items():
            task = self.tasks[task_id]
            varied = variation.task(task)
            if varied is not None:
                kind = f"{variation.name}={variation.value}"
                jobs += [_job(varied, kind, number, task.reference_patch) for number in range(1, count + 1)]
        if not jobs:
            return
        names = {job.task.task_id for job in jobs}
        self.say(f"diagnosing {len(names)} tasks with {variation.name}={variation.value}, {len(jobs)} gradings in all")
        for task_id, ended in (await self._by_task(jobs, variation)).items():
            tried = Tried(variation.name, variation.value, tuple(ended))
            self._tried.setdefault(task_id, {})[variation.slug] = tried

    async def mutate(self) -> None:
        """Mutants of the reference patch for each task that is admitted."""
        jobs, names = [], {}
        for task_id, task in self.tasks.items() if self.request.mutants else ():
            if _classified(self.campaign, self.request, self.evidence(task_id)).kind is not Class.ADMITTED:
                continue
            for number, mutant in enumerate(mutants(task.reference_patch, self.request.mutants), start=1):
                job = _job(task, "mutant", number, mutant.patch)
                jobs.append(job)
                names[key(job)] = mutant.name
        if not jobs:
            return
        self.say(f"{len(jobs)} mutants of {len({job.task.task_id for job in jobs})} reference patches")
        found = await self._grade(jobs)
        for job in jobs:
            self._mutants.setdefault(job.task.task_id, {})[names[key(job)]] = found[key(job)]

    def _is_suspect(self, task_id: str) -> bool:
        evidence = self.evidence(task_id)
        kind = _classified(self.campaign, self.request, evidence).kind
        return diagnosable(kind, evidence)

    def _is_worth(self, task_id: str, variation: Variation) -> bool:
        """More time is worth a try only for what ran out of it."""
        timed_out = any(seen.outcome is Outcome.TIMED_OUT for seen in self._reference[task_id])
        return timed_out or variation.names_a_need

    def _is_open(self, task_id: str) -> bool:
        """Whether nothing has been found yet that the task needs, and it could still be told from luck."""
        evidence = self.evidence(task_id)
        found = _classified(self.campaign, self.request, evidence).kind is Class.NEEDS_CONDITION
        return not found and (not evidence.control or runs_needed(comparison(evidence)) is not None)

    def _passes(self, task_id: str, variation: Variation) -> bool:
        """Whether every run under the changed condition passed, and there was one."""
        tried = self._tried.get(task_id, {}).get(variation.slug)
        return tried is not None and all(seen.resolved for seen in tried.seen)

    async def _by_task(self, jobs: Sequence[Job], variation: Variation | None = None) -> dict[str, list[Seen]]:
        found = await self._grade(jobs, variation)
        ended: dict[str, list[Seen]] = {}
        for job in jobs:
            ended.setdefault(job.task.task_id, []).append(found[key(job)])
        return ended

    async def _grade(self, jobs: Sequence[Job], variation: Variation | None = None) -> dict[Key, Seen]:
        """Have these graded, in the preflight's own run or in that of the variation, and read them back."""
        if not jobs:
            return {}
        campaign = self.campaign
        if variation is not None:
            run = f"{campaign.run[:60]}.{variation.slug}"
            campaign = campaign.model_copy(
                update={"run": run, "conditions": variation.on(campaign.conditions), "limits": _roomy(campaign.limits)}
            )
        identity = {**covers(self.plan.identity), "conditions": campaign.conditions.model_dump(mode="json")}
        finished = await run_campaign(
            campaign,
            dataclasses.replace(self.plan, jobs=tuple(jobs), identity=identity, refused={}),
            open_grounds=self.open_grounds(campaign),
            code_revision=self.code_revision,
            progress=self.progress,
            emit=None,
            dedupe=False,  # a repeat that copies another's verdict would tell of nothing
            stops=NEVER,  # every task gets its class, also where many lose their gradings
        )
        if finished.stopped_by is not None:
            raise Stopped(finished.stopped_by)
        return _read(campaign, map(key, jobs))


def _roomy(limits: Limits) -> Limits:
    """A longer time limit must fit into the grading's own budget, or the grading would contradict it."""
    return limits.model_copy(update={"grading_timeout_s": limits.grading_timeout_s * TIMES})


def _job(task: Task, kind: str, number: int, patch: bytes) -> Job:
    return Job(task, Submission(task.task_id, f"{MARK}:{kind}:{number}", patch, MARK))


def _rows(run_dir: Path) -> tuple[Key, ...]:
    """What the run has rows of. What is no ledger has none; who opens it to write says what is wrong with it."""
    try:
        with read_only(run_dir) as ledger:
            return tuple(ledger.current())
    except UsageError:
        return ()


def _read(campaign: Campaign, keys: Iterable[Key]) -> dict[Key, Seen]:
    wanted = set(keys)
    with read_only(run_directory(campaign.runs_dir, campaign.run)) as ledger:
        return {
            found: seen(grading, f"{campaign.run}#{number}", not_built=NOT_BUILT)
            for number, grading in ledger.current_numbered()
            if (found := key_of(grading)) in wanted
        }


def _classified(campaign: Campaign, request: Request, evidence: Evidence) -> Finding:
    return classify(evidence, time_limit_s=campaign.conditions.test_time_limit_s, slow_share=request.slow_share)


def _is_infrastructure(evidence: Evidence) -> bool:
    troubles = {seen.trouble for seen in (*evidence.unchanged, *evidence.empty)}
    return bool(troubles & {Trouble.OTHER, Trouble.MEMORY})


def _refused(found: rows.Finding) -> Entry:
    kind = Class.IMAGE_OR_PARSER if found.code in _IMAGE_CODES else Class.ROW_REFUSED
    return Entry(task_id=found.task_id, kind=kind, why=f"{found.code}: {found.message}")


def _entry(task: Task, finding: Finding, evidence: Evidence, origin: str | None) -> Entry:
    suites = [seen.suite_s for seen in evidence.unchanged if seen.suite_s is not None]
    return Entry(
        task_id=task.task_id,
        kind=finding.kind,
        why=finding.why,
        flaky=tuple(FlakyTest(**dataclasses.asdict(flaky)) for flaky in finding.flaky),
        needs=tuple(Need(condition=n.name, value=n.value, runs=len(n.seen)) for n in finding.needs),
        hints=finding.hints,
        suite_s=max(suites, default=None),
        sandbox_hours=evidence.sandbox_hours,
        rows=tuple(seen.row for seen in evidence.all),
        task_digest=task.digest,
        origin=origin,
    )


def _header(campaign: Campaign, request: Request, taskset: TaskSet, code_revision: str) -> Header:
    covered = covers(identity_of(campaign, taskset))
    return Header(
        covers=covered,
        covers_sha256=identity_hash(covered),
        taskset=campaign.taskset,
        taskset_revision=taskset.revision,
        run=campaign.run,
        repeats=request.repeats,
        slow_share=request.slow_share,
        created_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        code_revision=code_revision,
    )
