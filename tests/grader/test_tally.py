from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.ledger import Key, Row
from grader.tally import count
from grader.verdict import Cause, Outcome

ENDS = [(outcome, None) for outcome in Outcome if outcome is not Outcome.NO_VERDICT] + [
    (Outcome.NO_VERDICT, cause) for cause in Cause
]


@given(st.lists(st.one_of(st.none(), st.sampled_from(ENDS))), st.integers(0, 3))
def test_every_denominator_adds_up(ends: list[tuple[Outcome, Cause | None] | None], strangers: int) -> None:
    """Whatever ended how, each expected grading is counted in exactly one place, and strangers nowhere."""
    keys = [Key(str(n), "m", "p") for n in range(len(ends))]
    current = {key: Row(key, end[0], end[1], None, 1.0, "", (), ()) for key, end in zip(keys, ends, strict=True) if end}
    unasked = [Key(f"stranger-{n}", "m", "p") for n in range(strangers)]
    current |= {key: Row(key, Outcome.RESOLVED, None, 1.0, 1.0, "", (), ()) for key in unasked}

    tally = count(keys, current)

    assert len(keys) == tally.expected
    assert tally.expected == tally.with_verdict + tally.refused + tally.no_verdict + tally.not_run
    assert sum(end == (Outcome.RESOLVED, None) for end in ends) == tally.outcomes[Outcome.RESOLVED]


def test_the_sum_is_printed_term_by_term() -> None:
    """A reader can add the printed line up, causes included."""
    ends = [
        (Outcome.RESOLVED, None),
        (Outcome.NO_VERDICT, Cause.INFRASTRUCTURE),
        (Outcome.NO_VERDICT, Cause.TASK_REFUSED),
    ]
    keys = [Key(str(n), "m", "p") for n in range(4)]
    current = {key: Row(key, *end, None, 1.0, "", (), ()) for key, end in zip(keys, ends, strict=False)}

    assert (
        "4 expected = 1 resolved + 0 unresolved + 0 patch rejected + 0 timed out"
        " + 1 refused (1 task refused) + 1 no verdict (1 infrastructure) + 1 not run"
    ) == count(keys, current).sentence()


def test_a_sum_that_does_not_add_up_is_not_printed() -> None:
    """A count that lost a grading is a defect, and is said instead of a number."""
    right = count([Key("0", "m", "p")], {})
    with pytest.raises(ValueError, match="does not add up"):
        dataclasses.replace(right, not_run=0)
