from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from studies.stats import mcnemar_exact, wilson


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),  # the textbook values at 95%
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(hits: int, trials: int, low: float, high: float) -> None:
    """The intervals are those of Newcombe's comparison of methods."""
    found = wilson(hits, trials)

    assert pytest.approx(low, abs=6e-5) == found.low
    assert pytest.approx(high, abs=6e-5) == found.high


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_scipy(counted: tuple[int, int]) -> None:
    """An independent implementation gives the same bounds, and the share lies between them."""
    hits, trials = counted
    theirs = binomtest(hits, trials).proportion_ci(confidence_level=0.95, method="wilson")

    ours = wilson(hits, trials)

    assert pytest.approx((theirs.low, theirs.high), abs=1e-9) == (ours.low, ours.high)
    assert 0 <= ours.low <= ours.share + 1e-12
    assert ours.share <= ours.high + 1e-12


@pytest.mark.parametrize(("hits", "trials"), [(0, 0), (3, 2), (-1, 4)])
def test_a_share_that_is_none_is_refused(hits: int, trials: int) -> None:
    """No interval is invented for no trials."""
    with pytest.raises(ValueError, match="is not a share"):
        wilson(hits, trials)


@pytest.mark.parametrize(
    ("lost", "won", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (1, 9, 0.021484375), (6, 0, 0.03125), (4, 14, 0.0308837890625)],
)
def test_mcnemar_gives_the_exact_binomial_values(lost: int, won: int, p: float) -> None:
    """Values that can be computed by hand from the binomial coefficients."""
    assert pytest.approx(p) == mcnemar_exact(lost, won)
    assert pytest.approx(p) == mcnemar_exact(won, lost)
