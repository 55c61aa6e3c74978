"""Claims about `grader.breaker`."""

from __future__ import annotations

import pytest

from grader.breaker import WINDOW, Breaker
from grader.verdict import Cause, Outcome
from tests.grader.gradings import grading

LOST = [Cause.INFRASTRUCTURE, Cause.RESULTS_LOST]
REFUSED = [Cause.TASK_REFUSED, Cause.CONDITIONS_CONTRADICTED]


def after(*ends: tuple[str, Cause | None]) -> Breaker:
    breaker = Breaker()
    for task_id, cause in ends:
        outcome = Outcome.NO_VERDICT if cause else Outcome.UNRESOLVED
        breaker = breaker.after(grading(task_id, outcome, cause=cause, reasons=("the node is gone",)))
    return breaker


@pytest.mark.parametrize("cause", LOST)
def test_half_of_the_window_over_three_tasks_trips(cause: Cause) -> None:
    """It says how many, one example with its reason, and what to do."""
    ends = [("fine__task-1", None)] * (WINDOW // 2) + [(f"lost__task-{n % 3}", cause) for n in range(WINDOW // 2)]

    said = after(*ends).tripped()

    assert said is not None
    assert said.startswith(f"{WINDOW // 2} of the last {WINDOW}")
    assert "the node is gone" in said and said.endswith("give the same command again")
    assert after(*ends, ("fine__task-1", None), *ends[: WINDOW // 2]).tripped() is None, "it looks back on the window"


def test_a_few_broken_tasks_do_not_stop_the_others() -> None:
    """One image that is missing fails every patch for its task; the rest of the run goes on."""
    ends = [("broken__task-1", Cause.INFRASTRUCTURE), ("broken__task-2", Cause.INFRASTRUCTURE), ("fine", None)] * WINDOW
    assert after(*ends).tripped() is None
    assert after(*[("only__task-1", Cause.INFRASTRUCTURE)] * WINDOW).tripped() is not None, (
        "unless nothing else is left"
    )


def test_a_start_is_not_judged() -> None:
    """The first failures of a run are too few to tell."""
    assert after(*[(f"t-{n}", Cause.INFRASTRUCTURE) for n in range(WINDOW - 1)]).tripped() is None


@pytest.mark.parametrize("cause", REFUSED)
def test_refusals_are_no_failures_of_infrastructure(cause: Cause) -> None:
    """A task set that does not fit its campaign is told as that."""
    assert after(*[(f"t-{n}", cause) for n in range(WINDOW)]).tripped() is None
