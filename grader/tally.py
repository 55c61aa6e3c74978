"""Denominators that add up: every grading that was asked for is in exactly one place. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from grader.ledger import Key, Row
from grader.verdict import Cause, Outcome

VERDICTS = (Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.PATCH_REJECTED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class Tally:
    """How many gradings were asked for, and what became of each."""

    expected: int
    outcomes: Mapping[Outcome, int]
    """Every outcome but `no_verdict`."""
    causes: Mapping[Cause, int]
    """Gradings that ended without a verdict, by cause."""
    not_run: int

    @property
    def no_verdict(self) -> int:
        return sum(self.causes.values())

    @property
    def with_verdict(self) -> int:
        return sum(self.outcomes.values())

    def sentence(self) -> str:
        """The whole sum, every term said, zeros too."""
        verdicts = [f"{self.outcomes[outcome]} {outcome.value.replace('_', ' ')}" for outcome in VERDICTS]
        causes = ", ".join(f"{n} {cause.value.replace('_', ' ')}" for cause, n in self.causes.items() if n)
        lost = f"{self.no_verdict} no verdict" + (f" ({causes})" if causes else "")
        return f"{self.expected} expected = {' + '.join([*verdicts, lost, f'{self.not_run} not run'])}"

    def as_json(self) -> dict[str, int | dict[str, int]]:
        """The same numbers by name."""
        return {
            "expected": self.expected,
            **{outcome.value: self.outcomes[outcome] for outcome in VERDICTS},
            "no_verdict": {cause.value: self.causes[cause] for cause in Cause},
            "not_run": self.not_run,
        }


def count(expected: Collection[Key], current: Mapping[Key, Row]) -> Tally:
    """Count the rows that count against the keys that were asked for; a row that nobody asked for is left out."""
    ended = [current[key] for key in expected if key in current]
    outcomes = Counter(row.outcome for row in ended)
    causes = Counter(row.cause for row in ended if row.outcome is Outcome.NO_VERDICT)
    return Tally(
        expected=len(expected),
        outcomes={outcome: outcomes[outcome] for outcome in VERDICTS},
        causes={cause: causes[cause] for cause in Cause},
        not_run=len(expected) - len(ended),
    )
