"""Denominators that add up: every grading that was asked for is in exactly one place, and that is checked. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from grader.ledger import Key, Row
from grader.verdict import Cause, Outcome

VERDICTS = (Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.PATCH_REJECTED, Outcome.TIMED_OUT)
REFUSALS = frozenset({Cause.TASK_REFUSED, Cause.CONDITIONS_CONTRADICTED})


@dataclass(frozen=True)
class Tally:
    """How many gradings were asked for, and what became of each."""

    expected: int
    outcomes: Mapping[Outcome, int]
    """Every outcome but `no_verdict`."""
    causes: Mapping[Cause, int]
    """Gradings that ended without a verdict, by cause."""
    not_run: int

    def __post_init__(self) -> None:
        parts = self.with_verdict + self.refused + self.no_verdict + self.not_run
        if parts != self.expected or self.not_run < 0:
            raise ValueError(f"the sum does not add up ({self.expected} is not {parts}); please report it: {self}")

    @property
    def refused(self) -> int:
        """Gradings that ended before any test, because the task or the place is not as declared."""
        return sum(self.causes[cause] for cause in REFUSALS)

    @property
    def no_verdict(self) -> int:
        """Gradings that infrastructure left without a verdict."""
        return sum(n for cause, n in self.causes.items() if cause not in REFUSALS)

    @property
    def with_verdict(self) -> int:
        return sum(self.outcomes.values())

    def sentence(self) -> str:
        """The whole sum, every term said, zeros too."""
        verdicts = [f"{self.outcomes[outcome]} {outcome.value.replace('_', ' ')}" for outcome in VERDICTS]
        refused = f"{self.refused} refused{self._causes(REFUSALS)}"
        lost = f"{self.no_verdict} no verdict{self._causes(frozenset(Cause) - REFUSALS)}"
        return f"{self.expected} expected = {' + '.join([*verdicts, refused, lost, f'{self.not_run} not run'])}"

    def _causes(self, which: frozenset[Cause]) -> str:
        told = [f"{n} {cause.value.replace('_', ' ')}" for cause, n in self.causes.items() if n and cause in which]
        return f" ({', '.join(told)})" if told else ""

    def as_json(self) -> dict[str, int | dict[str, int]]:
        """The same numbers by name."""
        return {
            "expected": self.expected,
            **{outcome.value: self.outcomes[outcome] for outcome in VERDICTS},
            "no_verdict": {cause.value: self.causes[cause] for cause in Cause},
            "not_run": self.not_run,
        }


def count(expected: Collection[Key], current: Mapping[Key, Row]) -> Tally:
    """Count the rows that count against the keys that were asked for; a row that nobody asked for is left out.

    Raises `ValueError` when the sum does not add up.
    """
    ended = [current[key] for key in expected if key in current]
    outcomes = Counter(row.outcome for row in ended)
    causes = Counter(row.cause for row in ended if row.outcome is Outcome.NO_VERDICT)
    return Tally(
        expected=len(expected),
        outcomes={outcome: outcomes[outcome] for outcome in VERDICTS},
        causes={cause: causes[cause] for cause in Cause},
        not_run=sum(key not in current for key in expected),
    )
