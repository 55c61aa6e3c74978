"""Which class a task is of, from what was seen of it. Pure.

The classes are closed, and each task is in exactly one: the first of these questions that is answered yes decides.
Did the row itself rule it out? Was there no verdict, and why? Did the reference outlive its limit? Did anything differ
between repeats? Did the reference fail? Did the empty patch pass? Was the reference too near its limit? Then it is
admitted. A task that would be out for its reference, for differing repeats or for time is `needs_condition` instead
when controlled re-runs name the condition. docs/preflight.md tells the rules at length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from grader.preflight.evidence import Evidence, Seen, Tried, Trouble
from grader.preflight.variations import LONGER
from grader.verdict import Outcome

CHANCE = 0.002
"""A condition is named only when the unchanged task would pass so many runs by luck less often than this."""
CONTROLS = 10
"""Runs of the unchanged task, at the time of the re-runs, that tell how often it passes anyway."""
MOST_RUNS = 30
"""A condition that would take more runs than this to tell from luck is not looked for."""
_NAMED = 3
_RAN = frozenset({Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.TIMED_OUT})


class Class(StrEnum):
    """What preflight says of a task. Only `admitted` tasks may enter a campaign."""

    ADMITTED = "admitted"
    REFERENCE_FAILS = "reference_fails"
    EMPTY_PASSES = "empty_passes"
    FLAKY = "flaky"
    NEEDS_CONDITION = "needs_condition"
    TOO_SLOW = "too_slow"
    IMAGE_OR_PARSER = "image_or_parser"
    NO_VERDICT = "no_verdict"
    ROW_REFUSED = "row_refused"
    """The row alone rules it out: `grader tasks check` says the same."""


@dataclass(frozen=True)
class Flaky:
    """A listed test that did not always do the same."""

    test: str
    patch: str
    """`reference` or `empty`: with which patch."""
    passed: int
    runs: int


@dataclass(frozen=True)
class Finding:
    """The class of one task, and what a person needs to act on it."""

    kind: Class
    why: str
    flaky: tuple[Flaky, ...] = ()
    needs: tuple[Tried, ...] = ()
    """With which the reference passes. There may be others, for preflight stops at the first."""
    hints: tuple[str, ...] = ()
    """What to look at although it changes no class, one sentence each."""


def classify(evidence: Evidence, *, time_limit_s: float, slow_share: float) -> Finding:
    """The class of a task that its row did not rule out.

    `slow_share` is the share of the tests' time limit that the reference may take.
    """
    plain = _without_rerunning(_Case(evidence, time_limit_s, slow_share))
    if needs := _named(evidence) if diagnosable(plain.kind, evidence) else ():
        labels = " or ".join(tried.label for tried in needs)
        runs = len(evidence.unchanged)
        failed = sum(not seen.resolved for seen in evidence.unchanged)
        why = f"with {labels} the reference passes {_of_each(needs)}; as declared it fails {failed} of {runs}"
        return Finding(Class.NEEDS_CONDITION, why, plain.flaky, needs)
    if plain.kind is Class.ADMITTED:
        return Finding(plain.kind, plain.why, hints=_hints(evidence))
    return plain


def diagnosable(kind: Class, evidence: Evidence) -> bool:
    """Whether another condition could be what such a task lacks."""
    if kind is Class.NO_VERDICT:
        return any(seen.trouble is Trouble.MEMORY for seen in evidence.reference)
    if kind is Class.TOO_SLOW:
        return any(seen.outcome is Outcome.TIMED_OUT for seen in evidence.reference)
    if kind is Class.IMAGE_OR_PARSER:
        return all(seen.trouble is None for seen in (*evidence.reference, *evidence.empty))
    return kind in {Class.REFERENCE_FAILS, Class.FLAKY} and not all(seen.resolved for seen in evidence.reference)


def comparison(evidence: Evidence) -> tuple[Seen, ...]:
    """The unchanged runs that re-runs are held against.

    All of them where none ever passed. Else only the controls: a place that mended itself after the repeats would make
    any change look like the cure.
    """
    sometimes = any(seen.resolved for seen in evidence.unchanged)
    return evidence.control if sometimes and evidence.control else evidence.unchanged


def runs_needed(unchanged: Sequence[Seen]) -> int | None:
    """How many passes under a changed condition are no luck, given how the unchanged task did. None: too many.

    With a uniform prior over the task's own share of passes, the chance that it passes m times more after s passes and
    f failures is B(s + m + 1, f + 1) / B(s + 1, f + 1), with B the beta function (the rule of succession, m times).
    """
    passed = sum(seen.resolved for seen in unchanged)
    runs = len(unchanged)
    for more in range(1, MOST_RUNS + 1):
        log_chance = (
            math.lgamma(passed + 1 + more)
            + math.lgamma(runs + 2)
            - math.lgamma(runs + 2 + more)
            - math.lgamma(passed + 1)
        )
        if math.exp(log_chance) < CHANCE:
            return more
    return None


def _named(evidence: Evidence) -> tuple[Tried, ...]:
    needed = runs_needed(comparison(evidence))
    if needed is None or not evidence.control:
        return ()
    return tuple(
        tried
        for tried in evidence.tried
        if tried.name != LONGER and len(tried.seen) >= needed and all(seen.resolved for seen in tried.seen)
    )


def _of_each(needs: Sequence[Tried]) -> str:
    return " and ".join(dict.fromkeys(f"{len(tried.seen)} of {len(tried.seen)}" for tried in needs))


@dataclass(frozen=True)
class _Case:
    evidence: Evidence
    time_limit_s: float
    slow_share: float

    @property
    def reference(self) -> tuple[Seen, ...]:
        return self.evidence.unchanged


def _without_rerunning(case: _Case) -> Finding:
    found = (ask(case) for ask in (_troubled, _late, _varying, _failing, _vacuous, _slow))
    return next((finding for finding in found if finding is not None), Finding(Class.ADMITTED, ""))


def _troubled(case: _Case) -> Finding | None:
    for seen in (*case.reference, *case.evidence.empty):
        if seen.trouble is Trouble.CONDITIONS:
            return Finding(Class.NEEDS_CONDITION, f"what is declared does not hold in its sandbox: {seen.why}")
        if seen.trouble is not None:
            unusable = seen.trouble in {Trouble.IMAGE, Trouble.TASK}
            return Finding(Class.IMAGE_OR_PARSER if unusable else Class.NO_VERDICT, seen.why)
    return None


def _late(case: _Case) -> Finding | None:
    late = sum(seen.outcome is Outcome.TIMED_OUT for seen in case.reference)
    if not late:
        return None
    told = f"the reference outlives its {case.time_limit_s:g} s in {late} of {len(case.reference)} runs"
    for tried in case.evidence.tried:
        if tried.name == LONGER and tried.seen:
            longest = max((seen.suite_s or 0.0) for seen in tried.seen)
            ended = all(seen.resolved for seen in tried.seen)
            told += f"; with {tried.value} s it {f'passes in {longest:.1f} s' if ended else 'does not pass either'}"
    return Finding(Class.TOO_SLOW, told)


def _varying(case: _Case) -> Finding | None:
    flaky = (*_flaky("reference", case.reference), *_flaky("empty", case.evidence.empty))
    if flaky:
        return Finding(Class.FLAKY, _flaky_words(flaky), flaky)
    outcomes = sorted({seen.outcome for seen in case.reference})
    if len(outcomes) > 1:
        return Finding(Class.FLAKY, f"the reference is {' and '.join(outcomes)}, though the same listed tests pass")
    return None


def _failing(case: _Case) -> Finding | None:
    first = case.reference[0]
    if first.resolved:
        return None
    if first.outcome is Outcome.PATCH_REJECTED:
        return Finding(Class.REFERENCE_FAILS, first.why)
    if not _any_result((*case.reference, *case.evidence.empty)):
        told = "no listed test has a result, with the reference or without; look at the log, the image and the parser"
        return Finding(Class.IMAGE_OR_PARSER, f"{told}: {first.why}" if first.why else told)
    failing = [test for test, result in first.tests.items() if result is not True]
    return Finding(Class.REFERENCE_FAILS, _some(failing, "tests do not pass with the reference") or first.why)


def _vacuous(case: _Case) -> Finding | None:
    passed = sum(seen.resolved for seen in case.evidence.empty)
    if not passed:
        return None
    return Finding(Class.EMPTY_PASSES, f"the empty patch is resolved in {passed} of {len(case.evidence.empty)} runs")


def _slow(case: _Case) -> Finding | None:
    longest = max((seen.suite_s or 0.0 for seen in case.reference), default=0.0)
    if longest <= case.slow_share * case.time_limit_s:
        return None
    told = f"the reference takes up to {longest:.1f} s of its {case.time_limit_s:g} s; it may take"
    return Finding(Class.TOO_SLOW, f"{told} {case.slow_share:.0%} of them")


def _any_result(runs: Iterable[Seen]) -> bool:
    return any(result is not None for seen in runs for result in seen.tests.values())


def _flaky(patch: str, runs: Sequence[Seen]) -> tuple[Flaky, ...]:
    tests = dict.fromkeys(test for seen in runs for test in seen.tests)
    passed = {test: sum(seen.tests.get(test) is True for seen in runs) for test in tests}
    return tuple(Flaky(test, patch, count, len(runs)) for test, count in passed.items() if 0 < count < len(runs))


def _flaky_words(flaky: Sequence[Flaky]) -> str:
    shown = [f"{f.test} passes {f.passed} of {f.runs} ({f.patch} patch)" for f in flaky[:_NAMED]]
    return "; ".join(shown) + (f"; and {len(flaky) - _NAMED} more" if len(flaky) > _NAMED else "")


def _hints(evidence: Evidence) -> tuple[str, ...]:
    empty = evidence.empty[0] if evidence.empty else None
    hints: list[str] = []
    if empty is not None:
        before = [test for test, result in empty.fail_to_pass.items() if result is True]
        hints += _hint("vacuous_test", _some(before, "FAIL_TO_PASS tests pass without the reference"))
        fails = [test for test, result in empty.pass_to_pass.items() if result is False]
        hints += _hint("fails_at_base", _some(fails, "PASS_TO_PASS tests fail without the reference"))
    ran = {mutant: seen for mutant, seen in evidence.mutants.items() if seen.outcome in _RAN}
    unseen = [mutant for mutant, seen in ran.items() if seen.resolved]
    hints += _hint(
        "weak_tests", _some(unseen, f"of {len(ran)} parts of the reference can go, and no listed test sees it")
    )
    return tuple(hints)


def _hint(name: str, told: str) -> list[str]:
    return [f"{name}: {told}"] if told else []


def _some(names: Sequence[str], what: str) -> str:
    """`what` with how many and the first few; empty for none."""
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} {what}: {', '.join(names[:_NAMED])}{more}"
