"""From an outcome to a number, or to nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from grader.campaign import RewardPolicy
from grader.verdict import Outcome, TestLists


def of(
    outcome: Outcome, policy: RewardPolicy, flags: Sequence[str] = (), *, fail_to_pass_share: float = 0.0
) -> float | None:
    """The reward that `policy` gives. None leaves the group before the mean; no verdict is None under any policy.

    `fail_to_pass_share` is what `share` says of the grading. What flags cost is taken off a resolved grading, and off a
    share but never more than it: no other grading has anything that it did not earn.
    """
    if outcome is Outcome.NO_VERDICT:
        return None
    rewards: dict[Outcome, float | None] = {
        Outcome.RESOLVED: policy.resolved,
        Outcome.UNRESOLVED: policy.unresolved,
        Outcome.PATCH_REJECTED: policy.patch_rejected,
        Outcome.TIMED_OUT: policy.timed_out,
    }
    reward = rewards[outcome]
    earned = policy.fail_to_pass_share * fail_to_pass_share if outcome is Outcome.UNRESOLVED else 0.0
    if reward is None or (outcome is not Outcome.RESOLVED and not earned):
        return reward
    cost = _cost(policy, flags)
    if cost is None:
        return None
    return reward - cost if outcome is Outcome.RESOLVED else reward + max(0.0, earned - cost)


def share(fail_to_pass: TestLists, pass_to_pass: TestLists) -> float:
    """The share, 0 to 1, of FAIL_TO_PASS tests that pass. 0 where a PASS_TO_PASS test broke, or nothing was judged."""
    if pass_to_pass.failure:
        return 0.0
    counted = len(fail_to_pass.success) + len(fail_to_pass.failure)
    return len(fail_to_pass.success) / counted if counted else 0.0


def _cost(policy: RewardPolicy, flags: Sequence[str]) -> float | None:
    """What the flags cost, each name once. None: the grading leaves the group."""
    total = 0.0
    for name in {flag.partition(":")[0] for flag in flags} & policy.flag_costs.keys():
        cost = policy.flag_costs[name]
        if cost is None:
            return None
        total += cost
    return total
