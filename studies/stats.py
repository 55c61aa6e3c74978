"""Statistics of paired verdicts. Pure; sources are named where a formula is used."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A share with its confidence interval, each from 0 to 1."""

    share: float
    low: float
    high: float


def wilson(hits: int, trials: int, *, z: float = 1.959963984540054) -> Interval:
    """The Wilson score interval of `hits` in `trials` (Wilson 1927); 95% by default. Raises ValueError without trials.

    It stays inside 0 to 1 and keeps its meaning at 0 and at all hits, where the normal interval has no width.
    """
    if not 0 <= hits <= trials or trials == 0:
        raise ValueError(f"{hits} of {trials} is not a share; give at least one trial and no more hits than trials")
    share = hits / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def mcnemar_exact(lost: int, won: int) -> float:
    """Two-sided exact p of McNemar's test, for pairs that were hit only before (`lost`) and only after (`won`).

    Under no effect each discordant pair falls either way with a half (McNemar 1947; the binomial form). 1.0 without
    any discordant pair.
    """
    if lost < 0 or won < 0:
        raise ValueError("counts of pairs are not negative")
    if lost + won == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(lost, lost + won, 0.5).pvalue)
