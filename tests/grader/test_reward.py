"""Claims about `grader.reward`."""

from __future__ import annotations

from itertools import product

import pytest

from grader import reward
from grader.campaign import RewardPolicy
from grader.verdict import Outcome, TestLists


def test_each_verdict_has_its_declared_number() -> None:
    """A verdict's reward is the number that the policy declares for it, and no other."""
    policy = RewardPolicy(resolved=1.0, unresolved=-0.5, patch_rejected=-1.0, timed_out=None)
    expected = {
        Outcome.RESOLVED: 1.0,
        Outcome.UNRESOLVED: -0.5,
        Outcome.PATCH_REJECTED: -1.0,
        Outcome.TIMED_OUT: None,
        Outcome.NO_VERDICT: None,
    }
    assert expected == {outcome: reward.of(outcome, policy) for outcome in Outcome}


@pytest.mark.parametrize(("resolved", "other"), list(product([0.0, 1.0, 7.5], repeat=2)))
def test_no_verdict_is_never_a_number(resolved: float, other: float) -> None:
    """Whatever the policy declares, no verdict has no reward."""
    policy = RewardPolicy(resolved=resolved, unresolved=other, patch_rejected=other, timed_out=other)
    assert reward.of(Outcome.NO_VERDICT, policy) is None


def test_flags_cost_a_resolved_grading_what_the_policy_says() -> None:
    """A flag that has a cost takes it off a resolved grading once, and off no other; one that costs None leaves no
    reward; one that is not named costs nothing. The defaults stay beside what is declared."""
    policy = RewardPolicy(flag_costs={"patch_steers_tests": 0.25, "log_disagrees": None})
    steers, twice = "patch_steers_tests: x.", ("patch_steers_tests: x.", "patch_steers_tests: y.")
    assert 0.75 == reward.of(Outcome.RESOLVED, policy, (steers,)) == reward.of(Outcome.RESOLVED, policy, twice)
    assert reward.of(Outcome.RESOLVED, policy, (steers, "log_disagrees: x.")) is None
    assert reward.of(Outcome.RESOLVED, policy, ("results_conflict: x.",)) is None
    assert 1.0 == reward.of(Outcome.RESOLVED, policy, ("missing_tests: x.",))
    assert 0.0 == reward.of(Outcome.UNRESOLVED, policy, (steers, "log_disagrees: x."))


def test_a_share_of_fail_to_pass_is_earned_where_nothing_broke() -> None:
    """A policy with a share pays an unresolved grading for the F2P tests that pass, less what its flags cost and never
    below its number; a broken P2P test, and every other outcome, earn no share."""
    half, none = TestLists(("a",), ("b",)), TestLists((), ())
    broke = TestLists((), ("p",))
    assert (0.5, 0.0, 0.0) == (reward.share(half, none), reward.share(half, broke), reward.share(none, none))
    policy = RewardPolicy(unresolved=-1.0, fail_to_pass_share=0.5, flag_costs={"patch_steers_tests": 0.125})
    earned = {outcome: reward.of(outcome, policy, fail_to_pass_share=0.5) for outcome in Outcome}
    assert -0.75 == earned.pop(Outcome.UNRESOLVED)
    assert earned == {outcome: reward.of(outcome, policy) for outcome in earned}
    steers = ("patch_steers_tests: x.",)
    assert -0.875 == reward.of(Outcome.UNRESOLVED, policy, steers, fail_to_pass_share=0.5)
    assert -1.0 == reward.of(Outcome.UNRESOLVED, policy, steers, fail_to_pass_share=0.1)
    assert reward.of(Outcome.UNRESOLVED, policy, ("results_conflict: x.",), fail_to_pass_share=0.5) is None
    assert 0.0 == reward.of(Outcome.UNRESOLVED, RewardPolicy(), fail_to_pass_share=0.5)
