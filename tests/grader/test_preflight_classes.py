from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.preflight.classes import CHANCE, MOST_RUNS, Class, Finding, Flaky, classify, diagnosable, runs_needed
from grader.preflight.evidence import Evidence, Seen, Tried, Trouble, seen
from grader.record import Evidence as Recorded
from grader.verdict import Cause, Outcome
from tests.grader.gradings import grading

LIMIT_S = 100.0


def ran(
    outcome: Outcome = Outcome.RESOLVED,
    *,
    f2p: dict[str, bool | None] | None = None,
    p2p: dict[str, bool | None] | None = None,
    trouble: Trouble | None = None,
    suite_s: float | None = 1.0,
    why: str = "",
) -> Seen:
    passed = outcome is Outcome.RESOLVED
    if outcome is Outcome.NO_VERDICT:
        trouble = trouble or Trouble.OTHER
    return Seen("r#1", outcome, trouble, why, f2p or {"t::new": passed}, p2p or {"t::old": True}, suite_s, 2.0)


GOOD, BAD = ran(), ran(Outcome.UNRESOLVED)
LATE, LOST = ran(Outcome.TIMED_OUT, f2p={}, p2p={}), ran(Outcome.NO_VERDICT)
OTHERWISE = ran(Outcome.NO_VERDICT, trouble=Trouble.CONDITIONS)
SILENT = ran(Outcome.UNRESOLVED, f2p={"t::new": None}, p2p={"t::old": None}, why="The log has no test result.")


def of(reference: list[Seen], empty: list[Seen] | None = None, **more: object) -> Evidence:
    return Evidence(tuple(reference), tuple([BAD] * 3 if empty is None else empty), **more)  # type: ignore[arg-type]


def found(evidence: Evidence) -> Finding:
    return classify(evidence, time_limit_s=LIMIT_S, slow_share=0.5)


@pytest.mark.parametrize(
    ("evidence", "kind"),
    [
        pytest.param(of([GOOD] * 3), Class.ADMITTED, id="reference passes, empty fails"),
        pytest.param(of([BAD] * 3), Class.REFERENCE_FAILS, id="reference fails each time"),
        pytest.param(of([ran(Outcome.PATCH_REJECTED, f2p={}, p2p={})] * 3), Class.REFERENCE_FAILS, id="rejected"),
        pytest.param(of([GOOD] * 3, [GOOD] * 3), Class.EMPTY_PASSES, id="empty passes each time"),
        pytest.param(of([GOOD, BAD, GOOD]), Class.FLAKY, id="reference passes sometimes"),
        pytest.param(of([GOOD] * 3, [BAD, GOOD, BAD]), Class.FLAKY, id="empty passes sometimes"),
        pytest.param(of([GOOD, LATE, GOOD]), Class.TOO_SLOW, id="one run outlives the limit"),
        pytest.param(of([GOOD, ran(suite_s=51.0), GOOD]), Class.TOO_SLOW, id="one run is too near the limit"),
        pytest.param(of([GOOD, ran(suite_s=50.0), GOOD]), Class.ADMITTED, id="at the margin, not beyond"),
        pytest.param(of([SILENT] * 3, [SILENT] * 3), Class.IMAGE_OR_PARSER, id="no test ever has a result"),
        pytest.param(of([SILENT] * 3), Class.REFERENCE_FAILS, id="the reference silences tests that run without it"),
        pytest.param(of([ran(Outcome.NO_VERDICT, trouble=Trouble.IMAGE)] * 3), Class.IMAGE_OR_PARSER, id="no image"),
        pytest.param(of([ran(Outcome.NO_VERDICT, trouble=Trouble.TASK)] * 3), Class.IMAGE_OR_PARSER, id="test patch"),
        pytest.param(of([OTHERWISE] * 3, [OTHERWISE] * 3), Class.NEEDS_CONDITION, id="contradicts what is declared"),
        pytest.param(of([GOOD] * 3, [BAD, OTHERWISE, BAD]), Class.NEEDS_CONDITION, id="contradicts in an empty run"),
        pytest.param(of([GOOD, LOST, GOOD]), Class.NO_VERDICT, id="infrastructure took one run"),
        pytest.param(of([GOOD] * 3, [BAD, LOST, BAD]), Class.NO_VERDICT, id="infrastructure took an empty run"),
        pytest.param(of([GOOD] * 3, [LATE] * 3), Class.ADMITTED, id="an empty patch that hangs does not pass"),
    ],
)
def test_each_kind_of_evidence_is_of_its_class(evidence: Evidence, kind: Class) -> None:
    """The first question that is answered yes decides."""
    assert kind == found(evidence).kind


def test_a_test_that_flips_is_named_although_every_run_is_unresolved() -> None:
    """Flakiness is looked for test by test, so that two flaky tests cannot hide each other."""
    runs = [
        ran(Outcome.UNRESOLVED, f2p={"a": True, "b": False}),
        ran(Outcome.UNRESOLVED, f2p={"a": False, "b": True}),
        ran(Outcome.UNRESOLVED, f2p={"a": None, "b": False}),
    ]

    told = found(of(runs))

    assert (Class.FLAKY, (Flaky("a", "reference", 1, 3), Flaky("b", "reference", 1, 3))) == (told.kind, told.flaky)


def tried(*runs: Seen, name: str = "egress") -> tuple[Tried, ...]:
    return (Tried(name, "open", runs),)


def test_a_condition_is_named_after_enough_passes_and_not_before() -> None:
    """With 4 failures as declared it takes 7 passes of 7."""
    as_declared = {"control": (BAD,)}

    assert 7 == runs_needed([BAD] * 4)
    assert Class.NEEDS_CONDITION == found(of([BAD] * 3, **as_declared, tried=tried(*[GOOD] * 7))).kind
    assert Class.REFERENCE_FAILS == found(of([BAD] * 3, **as_declared, tried=tried(*[GOOD] * 6))).kind
    assert Class.REFERENCE_FAILS == found(of([BAD] * 3, **as_declared, tried=tried(*[GOOD] * 9, BAD))).kind


def test_a_failure_that_went_away_by_itself_needs_no_condition() -> None:
    """The controls pass as declared: the task is flaky, and no number of passes with a condition is proof."""
    assert Class.FLAKY == found(of([BAD] * 3, control=(GOOD,) * 10, tried=tried(*[GOOD] * 30))).kind


def test_no_condition_is_named_without_a_control() -> None:
    """Passes that were not held against the unchanged task at that time name nothing."""
    assert Class.REFERENCE_FAILS == found(of([BAD] * 3, tried=tried(*[GOOD] * 30))).kind


def test_more_time_is_no_condition_of_the_place() -> None:
    """A reference that passes with four times the limit stays too slow, and is told how long it takes."""
    told = found(of([LATE] * 3, tried=tried(*[ran(suite_s=140.0)] * 20, name="test_time_limit_s")))

    assert Class.TOO_SLOW == told.kind
    assert "passes in 140.0 s" in told.why


@given(passed=st.integers(0, 12), failed=st.integers(0, 12))
def test_so_many_passes_are_luck_less_often_than_declared(passed: int, failed: int) -> None:
    """The rule of succession, in exact fractions: the smallest number of further passes below the declared chance."""
    needed = runs_needed([GOOD] * passed + [BAD] * failed)

    def luck(more: int) -> Fraction:
        total = passed + failed
        return Fraction(comb(passed + more, more) * (total + 1), comb(total + more, more) * (total + more + 1))

    if needed is None:
        assert luck(MOST_RUNS) >= CHANCE
    else:
        assert luck(needed) < CHANCE <= luck(needed - 1)


RUNS = st.sampled_from([GOOD, BAD, LATE, LOST, SILENT, ran(Outcome.PATCH_REJECTED, f2p={}, p2p={})])


@given(
    reference=st.lists(RUNS, min_size=1, max_size=4),
    empty=st.lists(RUNS, min_size=1, max_size=4),
    again=st.lists(RUNS, max_size=12),
)
def test_nothing_is_admitted_but_what_always_passed_and_never_without_the_patch(
    reference: list[Seen], empty: list[Seen], again: list[Seen]
) -> None:
    """Whatever was seen, admission means that every reference resolved and no empty patch did, all with verdicts."""
    evidence = of(reference, empty, tried=tried(*again) if again else ())

    told = found(evidence)

    clean = all(one.resolved for one in reference) and all(one.trouble is None and not one.resolved for one in empty)
    flips = len({tuple(one.tests.items()) for one in empty}) > 1
    assert (told.kind is Class.ADMITTED) == (clean and not (flips and told.flaky))
    assert not (diagnosable(told.kind, evidence) and clean)


def test_hints_tell_of_tests_that_prove_little() -> None:
    """A listed test that passes at base, one that fails there, and parts of the patch that no test sees."""
    at_base = ran(Outcome.UNRESOLVED, f2p={"new": False, "vacuous": True}, p2p={"old": False})
    mutants = {"a.py:3": GOOD, "a.py:9": BAD, "b.py:1": ran(Outcome.PATCH_REJECTED)}

    hints = found(of([GOOD] * 3, [at_base] * 3, mutants=mutants)).hints

    assert ("vacuous_test", "fails_at_base", "weak_tests") == tuple(hint.split(":")[0] for hint in hints)
    assert "1 of 2 parts" in hints[2] and "a.py:3" in hints[2]


@pytest.mark.parametrize(
    ("cause", "failure", "reason", "trouble"),
    [
        (Cause.INFRASTRUCTURE, "ImageError: not in the store; import it", "x", Trouble.IMAGE),
        (Cause.INFRASTRUCTURE, "", "the task's image was not built: step 2 failed", Trouble.IMAGE),
        (Cause.INFRASTRUCTURE, "OutOfMemory: the kernel killed it", "x", Trouble.MEMORY),
        (Cause.INFRASTRUCTURE, "SandboxLost: gone (out_of_memory); take a new one", "x", Trouble.MEMORY),
        (Cause.INFRASTRUCTURE, "CreateError: no room; try again", "ImageError: said a test", Trouble.OTHER),
        (Cause.CONDITIONS_CONTRADICTED, "", "x", Trouble.CONDITIONS),
        (Cause.TASK_REFUSED, "", "x", Trouble.TASK),
        (Cause.RESULTS_LOST, "", "x", Trouble.OTHER),
    ],
)
def test_trouble_is_told_from_the_causes_that_the_grader_recorded(
    cause: Cause, failure: str, reason: str, trouble: Trouble
) -> None:
    """Causes and error names of ours decide; nothing that a sandbox printed does."""
    ended = grading(outcome=Outcome.NO_VERDICT, cause=cause, reasons=(reason,))
    recorded = Recorded(patch_sha256="p", task_digest="d", failures=(failure,) if failure else ())

    kept = seen(ended.model_copy(update={"evidence": recorded}), "r#1", not_built="the task's image was not built")

    assert trouble == kept.trouble


def test_waiting_for_a_place_costs_no_sandbox() -> None:
    """The cost of a grading is its time less the queue's."""
    recorded = Recorded(patch_sha256="p", task_digest="d", phases_s={"queue": 30.0, "suite": 4.0})
    ended = grading(seconds=40.0).model_copy(update={"evidence": recorded})

    kept = seen(ended, "r#7", not_built="not built")

    assert ("r#7", 10.0, 4.0) == (kept.row, kept.sandbox_s, kept.suite_s)
