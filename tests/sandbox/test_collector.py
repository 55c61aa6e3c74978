"""The collector's setting: raised where it is low, and the program's own choice where it is not."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from sandbox.collector import YOUNG_OBJECTS, expect_thousands


@pytest.fixture(autouse=True)
def setting_kept() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("before", "after"), [(700, YOUNG_OBJECTS), (0, 0), (YOUNG_OBJECTS + 1, YOUNG_OBJECTS + 1)])
def test_the_young_threshold_is_only_ever_raised(before: int, after: int) -> None:
    """A collector that is off stays off; what is set for older objects stays."""
    gc.set_threshold(before, 11, 12)

    expect_thousands()

    assert (after, 11) == gc.get_threshold()[:2]


def test_garbage_in_cycles_still_goes() -> None:
    """It is later, not never."""
    gc.set_threshold(700, 10, 10)
    expect_thousands()
    gc.collect()
    before = len(gc.get_objects())

    for _ in range(3 * YOUNG_OBJECTS):
        cycle: list[object] = []
        cycle.append(cycle)

    assert len(gc.get_objects()) - before < 2 * YOUNG_OBJECTS
