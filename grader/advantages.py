"""From the rewards of one group to its advantages, as GRPO normalises them. Pure.

Law. What has no reward (None) is no part of the group: it enters neither the mean nor the deviation, and its advantage
is None, never 0. A trainer that must have a number there masks the sample.

Source of the normalisation: DeepSeekMath (arXiv 2402.03300), section 4.1; without the deviation it is Dr. GRPO's (arXiv
2503.20783).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

Scale = Literal["deviation", "none"]
"""What the distance from the mean is divided by."""


class Degenerate(StrEnum):
    """Why a group teaches nothing."""

    NONE_LEFT = "none_left"
    """No sample has a reward. There is no mean."""
    SINGLE_LEFT = "single_left"
    """One sample has a reward. It is its own mean, so that its advantage says nothing."""
    ALL_EQUAL = "all_equal"
    """All rewards are the same."""


@dataclass(frozen=True)
class Advantages:
    """A group's advantages, in the order of its rewards."""

    values: tuple[float | None, ...]
    """None where there is no reward. In a degenerate group every other value is exactly 0."""
    mean: float | None
    """Of the rewards that are there. None: there are none."""
    deviation: float | None
    """Sample standard deviation of the rewards that are there. None: fewer than two are."""
    degenerate: Degenerate | None
    """None: the group teaches something."""


def advantages(rewards: Sequence[float | None], *, scale: Scale = "deviation", epsilon: float = 1e-4) -> Advantages:
    """`(reward - mean) / (deviation + epsilon)` for each reward of one group; with `scale="none"`, `reward - mean`.

    `epsilon` is TRL's by default; verl's is 1e-6. Raises `ValueError` for another `scale`, for an `epsilon` that
    is not finite or below 0, and for a reward that is not a finite number.
    """
    if scale not in get_args(Scale):
        raise ValueError(f'scale is {scale!r}: it is "deviation" or "none"')
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon is {epsilon!r}: it is a finite number, 0 or more")
    there = [reward for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in there):
        raise ValueError(f"rewards are {list(rewards)}: a reward is a finite number, or None when there is none")
    if not there:
        return Advantages((None,) * len(rewards), None, None, Degenerate.NONE_LEFT)
    if len(there) == 1:
        return Advantages(_zeros(rewards), there[0], None, Degenerate.SINGLE_LEFT)
    if min(there) == max(there):
        return Advantages(_zeros(rewards), there[0], 0.0, Degenerate.ALL_EQUAL)
    mean = math.fsum(there) / len(there)
    # hypot scales before it squares: rewards that differ by 1e-200 still have a deviation.
    deviation = math.hypot(*(reward - mean for reward in there)) / math.sqrt(len(there) - 1)
    divisor = deviation + epsilon if scale == "deviation" else 1.0
    values = tuple(None if reward is None else (reward - mean) / divisor for reward in rewards)
    return Advantages(values, mean, deviation, None)


def _zeros(rewards: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(None if reward is None else 0.0 for reward in rewards)
