"""Claims about `grader.advantages`."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.advantages import Advantages, Degenerate, advantages

NUMBERS = st.floats(min_value=-100, max_value=100)
GROUPS = st.lists(st.none() | NUMBERS, max_size=16)


def test_a_group_of_eight_with_two_missing_has_a_mean_of_six() -> None:
    """What has no reward leaves the group before the mean, and gets no advantage."""
    found = advantages([1.0, None, 0.0, 1.0, 0.0, None, 0.0, 1.0], epsilon=0.0)

    assert 0.5 == found.mean
    assert math.isclose(statistics.stdev([1, 0, 1, 0, 0, 1]), found.deviation or 0)
    assert [1, 5] == [index for index, value in enumerate(found.values) if value is None]
    assert math.isclose(math.sqrt(30) / 6, found.values[0] or 0), "0.5 over the deviation of three 1s and three 0s"


@pytest.mark.parametrize(
    ("rewards", "given_back"),
    [
        ([], Advantages((), None, None, Degenerate.NONE_LEFT)),
        ([None, None], Advantages((None, None), None, None, Degenerate.NONE_LEFT)),
        ([None, 1.0], Advantages((None, 0.0), 1.0, None, Degenerate.SINGLE_LEFT)),
        ([0.1, None, 0.1, 0.1], Advantages((0.0, None, 0.0, 0.0), 0.1, 0.0, Degenerate.ALL_EQUAL)),
    ],
)
def test_a_degenerate_group_says_so_and_teaches_nothing(rewards: list[float | None], given_back: Advantages) -> None:
    """Without two different rewards every advantage that there is, is exactly 0, and the group says why."""
    assert given_back == advantages(rewards)


def test_without_scaling_it_is_the_distance_from_the_mean() -> None:
    """`scale="none"` divides by nothing."""
    assert advantages([0.0, 1e-200], epsilon=0.0).deviation, "however near the rewards are"
    assert (0.75, -0.25, None, -0.25, -0.25) == advantages([1.0, 0.0, None, 0.0, 0.0], scale="none").values


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_no_number_is_refused(odd: float) -> None:
    """A NaN that somebody meant as "no reward" does not poison a group in silence."""
    with pytest.raises(ValueError, match="None when there is none"):
        advantages([1.0, odd])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"scale": "std"}, 'scale is \'std\': it is "deviation" or "none"'),
        ({"scale": None}, "scale is None"),
        ({"epsilon": math.nan}, "epsilon is nan: it is a finite number, 0 or more"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
        ({"epsilon": -statistics.stdev([1.0, 0.0])}, "epsilon is -0.7"),
    ],
)
@pytest.mark.parametrize("rewards", [[1.0, 0.0], [None]])
def test_another_way_to_normalise_is_refused(wrong: dict[str, Any], said: str, rewards: list[float | None]) -> None:
    """A name that is not known leaves no division out in silence, and no epsilon turns an advantage round."""
    with pytest.raises(ValueError, match=said):
        advantages(rewards, **wrong)


@given(GROUPS)
def test_those_without_a_reward_change_nothing(rewards: list[float | None]) -> None:
    """The others get what they would get had those without a reward never been sampled."""
    there = [reward for reward in rewards if reward is not None]

    assert advantages(there).values == tuple(v for v in advantages(rewards).values if v is not None)


@given(GROUPS)
def test_advantages_add_up_to_nothing_and_keep_the_order(rewards: list[float | None]) -> None:
    """A group moves the policy towards its better samples and away from its worse ones, and nowhere on the whole."""
    pairs = [(r, v) for r, v in zip(rewards, advantages(rewards).values, strict=True) if r is not None]

    assert all(v is not None for _, v in pairs)
    assert math.isclose(0, math.fsum(v or 0 for _, v in pairs), abs_tol=1e-6)
    assert [v for _, v in sorted(pairs)] == sorted(v or 0 for _, v in pairs)
