"""One grading: one submission, one sandbox at a time, and a verdict with evidence or a typed cause why there is none.

The route, in order: refuse what cannot be graded, parse the patch, get a sandbox, probe it and compare the conditions,
apply the patches, run the suite, judge its results. docs/grading.md tells the whole. The law: trouble of ours or of the
sandbox's is never a score, and cancellation is always re-raised.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anyio import move_on_after, to_thread

from grader import apply, channel, conditions, probe, reward, suite, tamper
from grader.campaign import Conditions, Limits, RewardPolicy
from grader.conditions import Observed, Promises
from grader.errors import LedgerUnwritable
from grader.hold import PromiseBroken, held
from grader.parsers import UnknownParser, parse_log
from grader.patch import Patch, Rejected, parse, without
from grader.record import AsSubmitted, Evidence, Grading, Submission
from grader.shortage import memory_kills, refuse_after_memory_kills
from grader.verdict import Cause, Judgement, LogResults, Outcome, judge
from sandbox import Provider, Sandbox, SandboxError
from sandbox.errors import ImageError, ProviderUnavailable
from sandbox.log import Log
from tasksets.task import Task, TestPlan

_ROOM_FOR_REFERENCE = 0.5
"""Share of the time limit that the reference may take before a time-out is nobody's fault."""
_MAX_WORDS = 4000
"""Characters of git's words that a reason may hold."""


async def grade_one(
    task: Task,
    submission: Submission,
    *,
    provider: Provider,
    conditions: Conditions,
    limits: Limits,
    rewards: RewardPolicy,
    logs_dir: Path | None,
    canary: tuple[str, int] | None,
    code_revision: str,
    tampering: tamper.TamperPolicy = "report",
) -> Grading:
    """Grade one submission and say what became of it.

    Raises nothing but cancellation and, when the log cannot be kept, `LedgerUnwritable`.

    `logs_dir` is a directory inside the run's own; None keeps no log. `canary` is the address of a listener here that
    egress is tried on; None leaves egress unread.
    """
    started_at, began = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    route = _Route(task, submission, provider, conditions, limits, logs_dir, canary, tampering)
    try:
        with move_on_after(limits.grading_timeout_s):
            await route.go()
    except LedgerUnwritable:
        raise
    except Exception as error:
        Log("grader").error("a grading broke off", exc_info=True, task_id=task.task_id)
        route.end = route.end or _no_verdict(f"the grader failed ({type(error).__name__}: {error}); please report it")
    end = route.end or _no_verdict(
        f"the grading did not end within its {limits.grading_timeout_s:g} s; look at where its phases spent them"
    )
    judged = end.judgement
    grading = Grading(
        task_id=task.task_id,
        model_name_or_path=submission.model_name_or_path,
        outcome=end.outcome,
        cause=end.cause,
        reward=reward.of(
            end.outcome,
            rewards,
            end.flags,
            fail_to_pass_share=reward.share(judged.fail_to_pass, judged.pass_to_pass) if judged else 0.0,
        ),
        seconds=time.monotonic() - began,
        reasons=end.reasons,
        flags=end.flags,
        fail_to_pass=asdict(judged.fail_to_pass) if judged else {},
        pass_to_pass=asdict(judged.pass_to_pass) if judged else {},
        statuses=end.statuses,
        evidence=route.evidence(code_revision),
        started_at=started_at,
    )
    Log("grader").info(
        "grading",
        task_id=task.task_id,
        model=submission.model_name_or_path,
        outcome=str(end.outcome),
        cause=end.cause and str(end.cause),
        seconds=round(grading.seconds, 3),
        attempts=route.attempts,
        sandbox=grading.evidence.sandbox_id,
    )
    return grading


@dataclass(frozen=True)
class _End:
    """How a grading ended, before it is written down."""

    outcome: Outcome
    reasons: tuple[str, ...]
    cause: Cause | None = None
    flags: tuple[str, ...] = ()
    judgement: Judgement | None = None
    statuses: dict[str, str] = field(default_factory=dict)


def _no_verdict(reason: str, cause: Cause = Cause.INFRASTRUCTURE) -> _End:
    return _End(Outcome.NO_VERDICT, (reason,), cause)


@dataclass
class _Route:
    """The way of one grading. `end` is set once, by whichever step ends it; `seen` is its evidence so far."""

    task: Task
    submission: Submission
    provider: Provider
    conditions: Conditions
    limits: Limits
    logs_dir: Path | None
    canary: tuple[str, int] | None
    tampering: tamper.TamperPolicy
    end: _End | None = None
    seen: dict[str, Any] = field(default_factory=dict)
    phases_s: dict[str, float] = field(default_factory=dict)
    attempts: int = 0
    failures: list[str] = field(default_factory=list)

    async def go(self) -> None:
        ready = await to_thread.run_sync(_ready, self.task, self.submission)  # a large patch takes a second
        if isinstance(ready, _End):
            self.end = ready
            return
        steering = ready.findings.steering
        if steering and self.tampering == "refuse":
            told = ", ".join(str(one) for one in steering[:5])
            why = f"the patch changes what steers the tests, and the campaign refuses that: {told}"
            self.end = _End(Outcome.PATCH_REJECTED, (why,), flags=tuple(ready.findings.flags()))
            self.seen = _listed(ready)
        elif steering and self.tampering == "strip":
            # First as submitted, so that this route ends with the evidence of what counts.
            as_submitted = _summary(await self._ended(ready), self.seen)
            left = without(ready.patch, {one.path for one in steering})
            self.end = await self._ended(replace(ready, patch=left))
            self.seen |= {"stripped": _shown(steering), "as_submitted": as_submitted}
        else:
            self.end = await self._ended(ready)

    @property
    def promises(self) -> Promises:
        return Promises.of(self.conditions, self.limits)

    async def _ended(self, ready: _Ready) -> _End:
        """Grade the patch of `ready` in one sandbox after the other, until one lasts."""
        self._begin_again()
        while self.end is None:
            self.seen, self.phases_s = _listed(ready), {}
            self.attempts += 1
            try:
                await self._in_a_sandbox(ready)
            except SandboxError as error:
                if self.end is None:
                    self._failed(error)
        return self.end

    def _begin_again(self) -> None:
        self.end, self.attempts, self.failures = None, 0, []

    def _failed(self, error: SandboxError) -> None:
        told = f"{type(error).__name__}: {error}"
        self.failures.append(told)
        if isinstance(error, ImageError | ProviderUnavailable):
            self.end = _no_verdict(told)
        elif self.attempts == self.promises.attempts:
            self.end = _no_verdict(f"each of {self.attempts} sandboxes failed; the last: {told}")

    async def _in_a_sandbox(self, ready: _Ready) -> None:
        spec = conditions.spec_for(self.task, self.conditions, self.limits)
        async with self.provider.sandbox(spec, acquire_timeout_s=self.limits.acquire_timeout_s) as box:
            self._identify(box)
            kills = await memory_kills(box)
            end = await self._graded(box, ready)
            if end.cause is None and end.outcome is not Outcome.RESOLVED:
                await refuse_after_memory_kills(box, kills, exit_code=self.seen.get("suite_exit_code"))
                if box.trouble is not None:
                    raise SandboxError(f"what the tests said does not count: {box.trouble}")
            self.end = end
            left = time.monotonic()
        self.phases_s["stop"] = time.monotonic() - left

    async def _graded(self, box: Sandbox, ready: _Ready) -> _End:
        promises = self.promises
        with self._phase("probe"):
            seen = await probe.observe(box, ready.plan, self.conditions, promises, canary=self.canary)
        if contradicted := self._contradicted(seen):
            return contradicted
        with self._phase("apply"):
            applied = await apply.apply(
                box,
                ready.patch,
                ready.test_patch,
                test_files=ready.plan.test_files,
                workdir=ready.plan.workdir,
                base_commit=self.task.base_commit,
            )
        if isinstance(applied, apply.TaskUnfit):
            return _no_verdict(f"{applied.why}: {applied.words[:_MAX_WORDS]}", Cause.TASK_REFUSED)
        if isinstance(applied, apply.PatchRefused):
            return _End(Outcome.PATCH_REJECTED, (f"the patch does not apply: {applied.words[:_MAX_WORDS]}",))
        self.seen |= {"apply_rung": str(applied.rung), "restored_files": applied.restored}
        try:
            with self._phase("suite"):
                ran = await suite.run(
                    held(box, promises, ready.plan.test_command),
                    ready.plan,
                    time_limit_s=promises.test_time_limit_s,
                    max_log_bytes=self.limits.max_log_mib * 1024 * 1024,
                )
        except PromiseBroken as broken:
            return self._contradicted(seen.but(test_time_limit_s=broken.sent_s)) or _no_verdict(str(broken))
        if (why := suite.stood_still(ran, time_limit_s=promises.test_time_limit_s)) is not None:
            raise SandboxError(why)
        with self._phase("judge"):
            end = await to_thread.run_sync(self._judged, ready, ran)
            if end.outcome is not Outcome.RESOLVED and await suite.disk_is_full(box, ready.plan):
                raise SandboxError("the sandbox's disk was full after the tests; make room where its files lie")
        return end

    def _contradicted(self, seen: Observed) -> _End | None:
        """Keep what was observed, and how the declared conditions fared; the end, where one does not hold."""
        comparison = conditions.compare(self.conditions, seen)
        self.seen |= asdict(comparison) | {"observed": dict(seen.values)}
        if not comparison.contradicted:
            return None
        return _End(Outcome.NO_VERDICT, comparison.contradicted, Cause.CONDITIONS_CONTRADICTED)

    def _judged(self, ready: _Ready, ran: suite.SuiteRun) -> _End:
        task, plan = self.task, ready.plan

        def judged(results: LogResults) -> Judgement:
            return judge(
                task.fail_to_pass,
                task.pass_to_pass,
                results,
                exit_code=ran.exit_code,
                timed_out=ran.timed_out,
                log_truncated=ran.truncated,
                slow_reference=_slow_reference(plan, self.promises.test_time_limit_s),
                eval_type=plan.eval_type,
            )

        log = parse_log(plan.parser, ran.log)
        decided = channel.decide(
            ran.heard,
            log,
            plan,
            (*task.fail_to_pass, *task.pass_to_pass),
            lambda text: parse_log(plan.parser, text),
            exit_code=ran.exit_code,
        )
        judgement, on_log = judged(decided.results), judged(log)
        self.seen |= {
            "suite_exit_code": ran.exit_code,
            "suite_timed_out": ran.timed_out,
            "log_sha256": hashlib.sha256(ran.log).hexdigest(),
            "log_bytes": ran.log_bytes,
            "log_truncated": ran.truncated,
            "log_path": _keep(ran.log, self.logs_dir, task.task_id, "log"),
            "results_from": decided.source,
            "channel": decided.state,
            "channel_sha256": ran.heard.sha256,
            "channel_path": _keep(ran.channel, self.logs_dir, task.task_id, "channel") if ran.channel else None,
            "channel_agreement": decided.agreement,
            "outcome_on_log": on_log.outcome,
        }
        flags = [*judgement.flags, *decided.flags, *_set_up_flags(ran), *_patch_flags(ready)]
        if on_log.outcome is not judgement.outcome:
            flags.append(f"log_outcome_differs: by its log alone this run is {on_log.outcome}.")
        statuses = {test: str(status) for test, status in judgement.statuses.items()}
        if decided.source == "channel":
            statuses = channel.statuses(ran.heard)
        return _End(judgement.outcome, judgement.reasons, judgement.cause, tuple(flags), judgement, statuses)

    def _identify(self, box: Sandbox) -> None:
        who = box.identity
        self.phases_s |= {name[:-2]: seconds for name, seconds in asdict(box.phases).items() if seconds is not None}
        self.seen |= {
            "image_digest": who.image_digest,
            "sandbox_id": who.sandbox_id,
            "boot_id": who.boot_id,
            "never_used": who.never_used,
            "execs_before": who.execs_before,
            "handovers": who.handovers,
            "unenforced": box.unenforced,
        }

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = time.monotonic() - began

    def evidence(self, code_revision: str) -> Evidence:
        return Evidence(
            patch_sha256=self.submission.patch_sha256,
            task_digest=self.task.digest,
            image_ref=self.task.image,
            declared=conditions.declared(self.conditions),
            phases_s=self.phases_s,
            attempts=self.attempts,
            failures=tuple(self.failures),
            code_revision=code_revision,
            **self.seen,
        )


@dataclass(frozen=True)
class _Ready:
    """What a grading needs once nothing speaks against asking for a sandbox."""

    plan: TestPlan
    patch: Patch
    test_patch: Patch
    findings: tamper.Findings


def _ready(task: Task, submission: Submission) -> _Ready | _End:
    """Refuse the task or the patch where that needs no sandbox."""
    why = _unfit(task)
    test_patch = parse(task.test_patch)
    if why is None and isinstance(test_patch, Rejected):
        why = f"its test patch cannot be used ({test_patch})"
    if why is not None or task.plan is None or isinstance(test_patch, Rejected):
        return _no_verdict(f"{task.task_id} ({task.source}): {why}", Cause.TASK_REFUSED)
    patch = parse(submission.patch)
    if isinstance(patch, Rejected):
        return _End(Outcome.PATCH_REJECTED, (f"the patch is refused unread by git: {patch}",))
    reference = parse(task.reference_patch)
    findings = tamper.find(
        patch,
        task.plan,
        test_files={*test_patch.touched, *map(os.fsencode, task.plan.test_files)},
        reference=reference.touched if isinstance(reference, Patch) else (),
    )
    return _Ready(task.plan, patch, test_patch, findings)


def _unfit(task: Task) -> str | None:
    if task.plan is None:
        return "its row does not say how to run its tests; give a recipe"
    if task.image is None:
        return "it names no image; give a recipe"
    if not task.fail_to_pass:
        return "FAIL_TO_PASS is empty, so that any patch would pass"
    try:
        parse_log(task.plan.parser, b"")
    except UnknownParser as error:
        return str(error)
    return None


def _slow_reference(plan: TestPlan, time_limit_s: float) -> str | None:
    """Why a suite that outlived its limit says nothing of the patch; None where the limit leaves room enough."""
    if plan.reference_s is None or plan.reference_s <= _ROOM_FOR_REFERENCE * time_limit_s:
        return None
    return (
        f"the suite did not end within {time_limit_s:g} s, and where the task was made its reference alone took "
        f"{plan.reference_s:g} s; raise the time limit"
    )


def _set_up_flags(ran: suite.SuiteRun) -> Iterator[str]:
    if ran.exit_code is None:
        yield "set_up_timed_out: the task's set-up used up the time limit, and no test was started."
    elif ran.setup_exit_code != 0:
        yield f"set_up_failed: the task's set-up ended with status {ran.setup_exit_code} before the tests ran."


def _patch_flags(ready: _Ready) -> Iterator[str]:
    yield from ready.findings.flags()
    if ready.patch.without_data:
        lines = ", ".join(map(str, ready.patch.without_data[:5]))
        yield f"binary_without_data: binary changes without their data were not applied (patch lines {lines})."


def _listed(ready: _Ready) -> dict[str, Any]:
    return {"tampering": tuple(str(one) for one in ready.findings.changes)}


def _shown(steering: Iterable[tamper.Tampering]) -> tuple[str, ...]:
    return tuple(one.path.decode("utf-8", "backslashreplace") for one in steering)


def _summary(end: _End, seen: Mapping[str, Any]) -> AsSubmitted:
    return AsSubmitted(
        outcome=end.outcome,
        cause=end.cause,
        reasons=end.reasons,
        flags=end.flags,
        sandbox_id=seen.get("sandbox_id"),
        never_used=seen.get("never_used"),
        suite_exit_code=seen.get("suite_exit_code"),
        log_sha256=seen.get("log_sha256"),
        log_path=seen.get("log_path"),
        channel=seen.get("channel"),
    )


def _keep(content: bytes, logs_dir: Path | None, task_id: str, suffix: str) -> str | None:
    """Store it under a name that nothing in a sandbox chose; its path relative to the run's directory."""
    if logs_dir is None:
        return None
    path = logs_dir / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', task_id)[:100]}.{secrets.token_hex(6)}.{suffix}"
    try:
        logs_dir.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise LedgerUnwritable(
            f"{logs_dir}: the log of {task_id} cannot be kept ({error.strerror});"
            " make room or let this user write there, then give the same command again"
        ) from error
    return f"{logs_dir.name}/{path.name}"
