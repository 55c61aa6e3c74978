"""What `judge` makes of test results, by the official rules, and what it says beside them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.verdict import Cause, Judgement, LogResults, Outcome, TestLists, TestStatus, judge
from tasksets.task import EvalType

F2P, P2P = "t.py::new", "t.py::old"


def judged(words: dict[str, str], *, exit_code: int | None = None, **how: bool) -> Judgement:
    return judge((F2P,), (P2P,), LogResults(words), exit_code=exit_code, **how)  # type: ignore[arg-type]


def flag_names(judgement: Judgement) -> list[str]:
    return [flag.partition(":")[0] for flag in judgement.flags]


def test_all_listed_tests_passed_is_resolved() -> None:
    """Both lists pass: resolved, with no reason and no flag."""
    judgement = judged({F2P: "PASSED", P2P: "PASSED"}, exit_code=0)
    assert (Outcome.RESOLVED, (), (), ()) == (
        judgement.outcome,
        judgement.reasons,
        judgement.flags,
        judgement.missing,
    )
    assert (TestLists((F2P,), ()), TestLists((P2P,), ())) == (judgement.fail_to_pass, judgement.pass_to_pass)


@pytest.mark.parametrize(
    ("new", "old", "outcome"),
    [
        ("XFAIL", "XFAIL", Outcome.RESOLVED),
        ("PASSED", "SKIPPED", Outcome.RESOLVED),
        ("SKIPPED", "PASSED", Outcome.UNRESOLVED),
        ("FAILED", "PASSED", Outcome.UNRESOLVED),
        ("ERROR", "PASSED", Outcome.UNRESOLVED),
        ("PASSED", "FAILED", Outcome.UNRESOLVED),
        ("PASSED", "ERROR", Outcome.UNRESOLVED),
    ],
)
def test_each_status_counts_as_official_rules_say(new: str, old: str, outcome: Outcome) -> None:
    """XFAIL passes; a skipped test is no regression and no resolution."""
    assert outcome == judged({F2P: new, P2P: old}).outcome


def test_a_reason_names_tests_and_counts() -> None:
    """Each kind of failure of each list is one sentence with at most three names."""
    new = tuple(f"t.py::new_{i}" for i in range(6))
    words = dict.fromkeys(new[:5], "FAILED") | {new[5]: "SKIPPED"}
    judgement = judge(new, (P2P,), LogResults(words))
    assert (
        "5 of 6 FAIL_TO_PASS tests failed: t.py::new_0, t.py::new_1, t.py::new_2 and 2 more.",
        "1 of 6 FAIL_TO_PASS tests were skipped: t.py::new_5.",
        "1 of 1 PASS_TO_PASS tests have no result in the log: t.py::old.",
    ) == judgement.reasons


def test_a_long_id_is_cut_in_sentences_only() -> None:
    """A reason stays readable with an id of 300 characters; the lists keep the whole id."""
    long = "t.py::" + "x" * 300
    judgement = judge((long,), (), LogResults({long: "FAILED"}))
    assert len(judgement.reasons[0]) < 200
    assert (long,) == judgement.fail_to_pass.failure


def test_a_missing_test_is_told_apart_from_a_failed_one() -> None:
    """Official lists count it as a failure; our evidence says that it has no result."""
    judgement = judged({F2P: "PASSED"})
    assert (Outcome.UNRESOLVED, (P2P,), (P2P,)) == (
        judgement.outcome,
        judgement.pass_to_pass.failure,
        judgement.missing,
    )
    assert ["missing_tests"] == flag_names(judgement)


def test_a_task_without_fail_to_pass_is_refused() -> None:
    """With nothing to resolve there is no verdict, whatever the log says."""
    judgement = judge((), (P2P,), LogResults({P2P: "PASSED"}))
    assert (Outcome.NO_VERDICT, Cause.TASK_REFUSED) == (judgement.outcome, judgement.cause)


def test_a_suite_that_outlived_its_limit_has_its_own_outcome() -> None:
    """Timed out, with how far it had come; whatever passed before does not resolve."""
    judgement = judged({F2P: "PASSED", P2P: "PASSED"}, timed_out=True)
    assert (Outcome.TIMED_OUT, None) == (judgement.outcome, judgement.cause)
    assert "2 of 2 listed tests had a result by then" in judgement.reasons[0]


def test_a_log_without_results_is_unresolved_and_says_why() -> None:
    """Silence alone is no evidence of trouble outside: the patch may have broken collection."""
    judgement = judged({})
    nothing = TestLists((), ())
    assert (Outcome.UNRESOLVED, nothing, nothing) == (
        judgement.outcome,
        judgement.fail_to_pass,
        judgement.pass_to_pass,
    )
    assert ("The log has no test result, and no sign that a test ran.",) == judgement.reasons


def test_a_suite_that_ran_without_naming_tests_misses_them_all() -> None:
    """Where a runner counts tests that the log does not name, each listed test is missing."""
    judgement = judge((F2P,), (P2P,), LogResults({}, suite_ran=True))
    assert ((F2P,), (P2P,)) == (judgement.fail_to_pass.failure, judgement.pass_to_pass.failure)


@pytest.mark.parametrize("words", [{}, {F2P: "PASSED"}])
def test_a_cut_log_in_which_results_are_missing_gives_no_verdict(words: dict[str, str]) -> None:
    """Bytes that were lost outside the tests may hold what is missing."""
    judgement = judged(words, log_truncated=True)
    assert (Outcome.NO_VERDICT, Cause.RESULTS_LOST) == (judgement.outcome, judgement.cause)


def test_a_cut_log_with_a_failed_test_is_unresolved() -> None:
    """What failed has failed, wherever the log was cut."""
    assert Outcome.UNRESOLVED == judged({F2P: "FAILED"}, log_truncated=True).outcome


def test_a_cut_log_with_all_listed_tests_is_resolved_and_flagged() -> None:
    """Nothing that matters was lost; the cut is said."""
    judgement = judged({F2P: "PASSED", P2P: "PASSED"}, log_truncated=True)
    assert (Outcome.RESOLVED, ["log_truncated"]) == (judgement.outcome, flag_names(judgement))


def test_results_that_were_lost_outside_the_sandbox_give_no_verdict() -> None:
    """The caller's outside evidence is the reason."""
    judgement = judge((F2P,), (), LogResults({F2P: "FAILED"}), results_lost="The daemon was lost.")
    assert (Outcome.NO_VERDICT, Cause.RESULTS_LOST, ("The daemon was lost.",)) == (
        judgement.outcome,
        judgement.cause,
        judgement.reasons,
    )


def test_a_failing_command_with_only_passing_tests_is_unresolved() -> None:
    """A log that shows no failure while the command failed does not tell of that run; no list is made from it."""
    judgement = judged({F2P: "PASSED", P2P: "PASSED"}, exit_code=2)
    assert (Outcome.UNRESOLVED, TestLists((), ())) == (judgement.outcome, judgement.fail_to_pass)
    assert "ended with status 2" in judgement.reasons[0]
    assert ["exit_code_disagrees"] == flag_names(judgement)


def test_a_failing_command_with_an_unlisted_failure_can_be_resolved() -> None:
    """Tests in neither list may fail; they are flagged, and explain the exit code."""
    judgement = judged({F2P: "PASSED", P2P: "PASSED", "t.py::other": "FAILED"}, exit_code=1)
    assert (Outcome.RESOLVED, ["unlisted_failures"]) == (judgement.outcome, flag_names(judgement))


def test_a_succeeding_command_with_a_failed_test_is_flagged() -> None:
    """The lists decide; that the command reported success is said."""
    judgement = judged({F2P: "FAILED", P2P: "PASSED"}, exit_code=0)
    assert (Outcome.UNRESOLVED, ["exit_code_disagrees"]) == (judgement.outcome, flag_names(judgement))


def test_a_command_that_a_signal_ended_is_flagged() -> None:
    """A status above 128 names the signal."""
    judgement = judged({F2P: "PASSED", P2P: "FAILED"}, exit_code=137)
    assert ["ended_by_signal: the test command's status 137 is that of signal 9."] == list(judgement.flags)


def test_the_callers_exit_code_wins_over_the_logs() -> None:
    """A log can record what tests printed; the disagreement is said."""
    results = LogResults({F2P: "PASSED"}, exit_code=1)
    judgement = judge((F2P,), (), results, exit_code=0)
    assert (Outcome.RESOLVED, ["exit_code_disagrees"]) == (judgement.outcome, flag_names(judgement))
    assert Outcome.UNRESOLVED == judge((F2P,), (), results).outcome


@pytest.mark.parametrize(
    ("words", "outcome", "flags"),
    [
        ({"t.py::f[log(x)]": "PASSED"}, Outcome.RESOLVED, ["matched_by_prefix"]),
        ({"t.py::f[log(x)]": "PASSED", "t.py::f[log(y)]": "XFAIL"}, Outcome.RESOLVED, ["matched_ambiguously"]),
        ({"t.py::f[log(x)]": "PASSED", "t.py::f[log(y)]": "FAILED"}, Outcome.UNRESOLVED, ["matched_ambiguously"]),
        ({"t.py::f[log(": "PASSED", "t.py::f[log(y)]": "FAILED"}, Outcome.RESOLVED, ["unlisted_failures"]),
        ({"t.py::g[log(x)]": "PASSED"}, Outcome.UNRESOLVED, ["missing_tests"]),
    ],
)
def test_a_cut_id_is_matched_by_its_beginning(words: dict[str, str], outcome: Outcome, flags: list[str]) -> None:
    """An id that ends inside its brackets stands for those that begin like it, if they agree."""
    judgement = judge(("t.py::f[log(",), (), LogResults(words))
    assert (outcome, flags) == (judgement.outcome, flag_names(judgement))


def test_a_whole_id_is_never_matched_by_its_beginning() -> None:
    """Only an id with an unclosed bracket was cut."""
    judgement = judge(("t.py::f",), (), LogResults({"t.py::f[1]": "PASSED"}))
    assert ("t.py::f",) == judgement.missing


def test_conflicting_results_of_a_listed_test_are_flagged() -> None:
    """The last result counts, and the conflict is said."""
    results = LogResults({F2P: "PASSED"}, conflicts={F2P: ("FAILED", "PASSED")})
    judgement = judge((F2P,), (), results)
    assert (Outcome.RESOLVED, ["conflicting_results"]) == (judgement.outcome, flag_names(judgement))


def test_a_word_that_is_no_status_counts_neither_way() -> None:
    """Official lists leave such a test out; it is flagged."""
    judgement = judged({F2P: "PASSED", P2P: "PASSED:"})
    assert (Outcome.RESOLVED, TestLists((), ()), ["word_is_no_status"]) == (
        judgement.outcome,
        judgement.pass_to_pass,
        flag_names(judgement),
    )


@pytest.mark.parametrize(("eval_type", "outcome"), [("fail_only", "resolved"), ("pass_and_fail", "unresolved")])
def test_where_logs_name_failures_only_an_unnamed_test_passed(eval_type: EvalType, outcome: str) -> None:
    """`fail_only` reads silence about a test as success, if the suite ran."""
    results = LogResults({"t.py::other": "FAILED"})
    assert outcome == judge((F2P,), (P2P,), results, eval_type=eval_type).outcome


def test_a_patch_that_the_harness_could_not_apply_is_rejected() -> None:
    """The harness's own word, cut log or not."""
    results = LogResults({}, unreadable="The log says so.", patch_apply_failed=True)
    judgement = judge((F2P,), (), results, log_truncated=True)
    assert (Outcome.PATCH_REJECTED, ("The log says so.",)) == (judgement.outcome, judgement.reasons)


IDS = st.sampled_from(["a", "b", "c[x", "c[x]", "c[xy]", "d e", "\u00e9[PASSED]"])
WORDS = st.dictionaries(IDS, st.sampled_from([*(str(status) for status in TestStatus), "ERROR:", ""]))


@settings(deadline=None)
@given(
    new=st.lists(IDS, max_size=4, unique=True),
    old=st.lists(IDS, max_size=4, unique=True),
    words=WORDS,
    exit_code=st.one_of(st.none(), st.integers()),
    timed_out=st.booleans(),
    truncated=st.booleans(),
    eval_type=st.sampled_from(["pass_and_fail", "fail_only"]),
)
def test_every_judgement_is_whole(
    *,
    new: list[str],
    old: list[str],
    words: dict[str, str],
    exit_code: int | None,
    timed_out: bool,
    truncated: bool,
    eval_type: EvalType,
) -> None:
    """Any results give one outcome: a cause if and only if there is no verdict, a reason unless resolved."""
    judgement = judge(
        new,
        old,
        LogResults(words),
        exit_code=exit_code,
        timed_out=timed_out,
        log_truncated=truncated,
        eval_type=eval_type,
    )
    assert (judgement.outcome is Outcome.NO_VERDICT) == (judgement.cause is not None)
    assert (judgement.outcome is Outcome.RESOLVED) == (judgement.reasons == ())
    assert {*judgement.fail_to_pass.success, *judgement.fail_to_pass.failure} <= set(new)
    assert not judgement.fail_to_pass.failure or judgement.outcome is not Outcome.RESOLVED


@settings(deadline=None)
@given(st.lists(IDS, min_size=1, unique=True), WORDS, st.randoms(use_true_random=False))
def test_an_unrelated_passed_test_changes_no_outcome(new: list[str], words: dict[str, str], rnd: random.Random) -> None:
    """A passed test that no list names, anywhere among the results, leaves outcome and lists as they were."""
    before = judge(new, ("a",), LogResults({"z": "PASSED"} | words))
    items = [*words.items(), ("unrelated", "PASSED")]
    place = rnd.randrange(len(items))
    items.insert(place, items.pop())
    after = judge(new, ("a",), LogResults({"z": "PASSED"} | dict(items)))
    assert (before.outcome, before.fail_to_pass, before.pass_to_pass) == (
        after.outcome,
        after.fail_to_pass,
        after.pass_to_pass,
    )


def test_a_time_out_near_the_references_own_time_is_no_verdict() -> None:
    """Where the reference comes near the limit a suite that outlives it says nothing of the patch."""
    results = LogResults({F2P: "PASSED"})
    assert Outcome.TIMED_OUT is judge((F2P,), (P2P,), results, timed_out=True).outcome
    slow = judge((F2P,), (P2P,), results, timed_out=True, slow_reference="The reference takes 50 s of 60 s.")
    assert (Outcome.NO_VERDICT, Cause.TASK_REFUSED) == (slow.outcome, slow.cause)
    ended = judge((F2P,), (P2P,), LogResults({F2P: "PASSED", P2P: "PASSED"}), slow_reference="The reference is slow.")
    assert Outcome.RESOLVED is ended.outcome
