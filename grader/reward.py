"""From an outcome to a number, or to nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from grader.campaign import RewardPolicy
from grader.verdict import Outcome


def of(outcome: Outcome, policy: RewardPolicy, flags: Sequence[str] = ()) -> float | None:
    """The reward that `policy` gives. None leaves the group before the mean; no verdict is None under any policy.

    What a flag costs is taken off a resolved grading alone: no other has anything that it did not earn.
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
    if outcome is not Outcome.RESOLVED or reward is None:
        return reward
    for name in {flag.partition(":")[0] for flag in flags} & policy.flag_costs.keys():
        cost = policy.flag_costs[name]
        if cost is None:
            return None
        reward -= cost
    return reward
