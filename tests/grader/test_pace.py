"""Claims about `grader.pace`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.pace import KEPT, Pace, Reading, Suites

READINGS = st.builds(Reading, st.none() | st.floats(0.1, 10), st.none() | st.floats(0, 50))


def paced(limit: int, *readings: Reading, ceiling: int = 16) -> int:
    pace = Pace(limit, ceiling)
    for reading in readings:
        pace = pace.after(reading)
    return pace.limit


@pytest.mark.parametrize(
    ("reading", "limit"),
    [
        (Reading(stretch=2.0, load_per_core=None), 14),
        (Reading(stretch=2.0, load_per_core=0.5), 14),
        (Reading(stretch=None, load_per_core=3.0), 14),
        (Reading(stretch=1.3, load_per_core=3.0), 14),
        (Reading(stretch=1.0, load_per_core=3.0), 16),
        (Reading(stretch=1.3, load_per_core=1.0), 16),
        (Reading(stretch=None, load_per_core=None), 16),
    ],
)
def test_stretched_suites_or_a_loaded_machine_let_fewer_in(reading: Reading, limit: int) -> None:
    """Suites that take their usual time clear a loaded machine; a load alone is believed where no suite can tell."""
    assert limit == paced(16, reading)


def test_it_comes_back_more_slowly_than_it_went() -> None:
    """Two calm readings in a row let one more in; one that is not calm begins the count anew."""
    calm, unsure = Reading(1.0, 0.5), Reading(1.3, 0.5)
    assert 8 == paced(8, calm)
    assert 9 == paced(8, calm, calm)
    assert 8 == paced(8, calm, unsure, calm)
    assert 16 == paced(8, *[calm] * 100)


@given(st.integers(1, 300), st.lists(READINGS, max_size=50))
def test_the_limit_stays_between_a_quarter_and_all_of_what_was_asked_for(ceiling: int, readings: list[Reading]) -> None:
    """Whatever is read, a run neither starves nor passes its bound, and no step is larger than an eighth, or one."""
    pace = Pace(ceiling, ceiling)
    for reading in readings:
        before, pace = pace.limit, pace.after(reading)
        assert max(1, ceiling // 4) <= pace.limit <= ceiling
        assert abs(pace.limit - before) <= max(1, before // 8)


def test_a_stretch_is_against_the_tasks_own_times() -> None:
    """A long suite is no stretched one; a task must have come often enough to have a median."""
    suites = Suites()
    for seconds in (10.0, 100.0, 10.0):
        suites = suites.after("slow", seconds)
    assert suites.stretch() is None
    suites = suites.after("slow", 20.0).after("new", 500.0)
    assert 2.0 == suites.stretch()
    assert suites.read().stretch() is None, "each suite counts in one reading"
    for _ in range(2 * KEPT):
        suites = suites.after("slow", 20.0)
    assert 1.0 == suites.read().after("slow", 20.0).stretch(), "a task's median follows what it has become"
