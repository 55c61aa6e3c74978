"""What preflight keeps of each grading: enough to say which class a task is of, and where the whole record lies.

Pure. A test's result is True (it counts as passed), False (it does not), or None (the suite gave it no result).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from grader.record import Grading
from grader.verdict import Cause, Outcome

REFERENCE, EMPTY = "reference", "empty"


class Trouble(StrEnum):
    """Why a grading gave no verdict, as far as preflight tells them apart."""

    IMAGE = "image"
    """The image was not built, is not there, or cannot be unpacked."""
    TASK = "task"
    """The task cannot be graded on its image: the test patch does not fit, no plan, no such parser."""
    CONDITIONS = "conditions"
    """The sandbox contradicts what the campaign declares."""
    MEMORY = "memory"
    """The provider saw the sandbox run out of memory."""
    OTHER = "other"
    """Infrastructure, or lost results."""


@dataclass(frozen=True)
class Seen:
    """One grading."""

    row: str
    """Its evidence id: `RUN#N` is row N of that run's ledger."""
    outcome: Outcome
    trouble: Trouble | None
    """Set when, and only when, there is no verdict."""
    why: str
    fail_to_pass: Mapping[str, bool | None]
    pass_to_pass: Mapping[str, bool | None]
    suite_s: float | None
    """Seconds that the suite took. None: it did not get there."""
    sandbox_s: float
    """Seconds of sandbox that it cost: the whole grading, less the wait for a place."""

    @property
    def resolved(self) -> bool:
        return self.outcome is Outcome.RESOLVED

    @property
    def tests(self) -> dict[str, bool | None]:
        """Every listed test's result."""
        return {**self.fail_to_pass, **self.pass_to_pass}


@dataclass(frozen=True)
class Tried:
    """A controlled re-run: the reference patch with one condition changed and everything else as it was."""

    name: str
    """The condition, such as `time_zone`."""
    value: str
    """What it was changed to, such as `UTC`."""
    seen: tuple[Seen, ...]

    @property
    def label(self) -> str:
        return f"{self.name}={self.value}"


@dataclass(frozen=True)
class Evidence:
    """All that was seen of one task, under the campaign's own conditions but for `tried`."""

    reference: tuple[Seen, ...]
    empty: tuple[Seen, ...]
    control: tuple[Seen, ...] = ()
    """The reference patch once more, unchanged, after the re-runs: what went away by itself needs no condition."""
    tried: tuple[Tried, ...] = ()
    mutants: Mapping[str, Seen] = field(default_factory=dict)
    """By what was taken out of the reference patch."""

    @property
    def unchanged(self) -> tuple[Seen, ...]:
        """Every grading of the reference under the campaign's own conditions."""
        return (*self.reference, *self.control)

    @property
    def all(self) -> tuple[Seen, ...]:
        return (*self.unchanged, *self.empty, *(s for t in self.tried for s in t.seen), *self.mutants.values())

    @property
    def sandbox_hours(self) -> float:
        return sum(seen.sandbox_s for seen in self.all) / 3600.0


def seen(grading: Grading, row: str, *, not_built: str) -> Seen:
    """What preflight keeps of `grading`. A reason that begins with `not_built` says that its image was not built."""
    phases = grading.evidence.phases_s
    return Seen(
        row=row,
        outcome=grading.outcome,
        trouble=_trouble(grading, not_built) if grading.outcome is Outcome.NO_VERDICT else None,
        why=_reason(grading),
        fail_to_pass=_results(grading.fail_to_pass, grading.statuses),
        pass_to_pass=_results(grading.pass_to_pass, grading.statuses),
        suite_s=phases.get("suite"),
        sandbox_s=max(0.0, grading.seconds - phases.get("queue", 0.0)),
    )


def _reason(grading: Grading) -> str:
    """The first; where conditions are contradicted there is one for each of them, and all are of use."""
    shown = None if grading.cause is Cause.CONDITIONS_CONTRADICTED else 1
    return "; and ".join(grading.reasons[:shown])


def _results(split: Mapping[str, tuple[str, ...]], statuses: Mapping[str, str]) -> dict[str, bool | None]:
    passed: dict[str, bool | None] = dict.fromkeys(split.get("success", ()), True)
    return passed | {test: False if test in statuses else None for test in split.get("failure", ())}


def _trouble(grading: Grading, not_built: str) -> Trouble:
    last = grading.evidence.failures[-1] if grading.evidence.failures else ""
    if grading.cause is Cause.CONDITIONS_CONTRADICTED:
        return Trouble.CONDITIONS
    if grading.cause is Cause.TASK_REFUSED:
        return Trouble.TASK
    if last.startswith("ImageError:") or any(reason.startswith(not_built) for reason in grading.reasons):
        return Trouble.IMAGE
    out_of_memory = last.startswith("OutOfMemory:") or (last.startswith("SandboxLost:") and "out_of_memory" in last)
    return Trouble.MEMORY if out_of_memory else Trouble.OTHER
