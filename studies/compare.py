"""Two runs side by side: for the gradings that both have, which verdicts agree and which flip. Pure.

What has no verdict in either run is counted apart and flips nothing. A flip is a change of outcome; the test of an
effect looks only at resolved or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grader.ledger import Key, Row
from grader.verdict import Outcome
from studies.stats import Interval, mcnemar_exact, wilson


@dataclass(frozen=True)
class Flip:
    """One grading that ended otherwise in the second run."""

    key: Key
    before: Outcome
    after: Outcome


@dataclass(frozen=True)
class Comparison:
    """What two runs say of the gradings that both have."""

    only_a: int
    only_b: int
    both: int
    no_verdict_a: int
    """Of `both`, those without a verdict in the first run only."""
    no_verdict_b: int
    no_verdict_both: int
    agree: int
    """Pairs of verdicts that are the same. `agree + len(flips)` is the number of pairs."""
    flips: tuple[Flip, ...]
    lost: int
    """Flips from resolved to anything else."""
    won: int
    """Flips from anything else to resolved."""

    @property
    def pairs(self) -> int:
        return self.agree + len(self.flips)

    @property
    def flip_share(self) -> Interval | None:
        """Of the pairs of verdicts, with its 95% interval. None: there is no pair."""
        return wilson(len(self.flips), self.pairs) if self.pairs else None

    @property
    def p_value(self) -> float:
        """McNemar's exact p that resolving is as likely in both runs."""
        return mcnemar_exact(self.lost, self.won)


def compare(a: Mapping[Key, Row], b: Mapping[Key, Row]) -> Comparison:
    """Compare the rows that count in two runs, by task, model and patch."""
    shared = [key for key in a if key in b]
    without = [(a[key].outcome is Outcome.NO_VERDICT, b[key].outcome is Outcome.NO_VERDICT) for key in shared]
    pairs = [key for key, lacks in zip(shared, without, strict=True) if not any(lacks)]
    flips = [Flip(key, a[key].outcome, b[key].outcome) for key in pairs if a[key].outcome is not b[key].outcome]
    return Comparison(
        only_a=len(a) - len(shared),
        only_b=len(b) - len(shared),
        both=len(shared),
        no_verdict_a=without.count((True, False)),
        no_verdict_b=without.count((False, True)),
        no_verdict_both=without.count((True, True)),
        agree=len(pairs) - len(flips),
        flips=tuple(flips),
        lost=sum(flip.before is Outcome.RESOLVED for flip in flips),
        won=sum(flip.after is Outcome.RESOLVED for flip in flips),
    )
