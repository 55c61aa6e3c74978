"""From an outcome to a number, or to nothing. Pure."""

from __future__ import annotations

from grader.campaign import RewardPolicy
from grader.verdict import Outcome


def of(outcome: Outcome, policy: RewardPolicy) -> float | None:
    """The reward that `policy` gives. None leaves the group before the mean; no verdict is None under any policy."""
    if outcome is Outcome.NO_VERDICT:
        return None
    rewards: dict[Outcome, float | None] = {
        Outcome.RESOLVED: policy.resolved,
        Outcome.UNRESOLVED: policy.unresolved,
        Outcome.PATCH_REJECTED: policy.patch_rejected,
        Outcome.TIMED_OUT: policy.timed_out,
    }
    return rewards[outcome]
