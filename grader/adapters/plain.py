"""A function for a trainer of your own: a task's id and its patches in, a number or None for each out.

    with SyncScorer(load(Path("campaign.toml"), {})) as scorer:
        rewards = reward_function(scorer)("django__django-15127", patches)

No server and no HTTP: it grades in this process. A trainer that is async takes `grader.scorer.open_scorer` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grader.samples import Patch
from grader.scorer import Resample
from grader.syncscorer import SyncScorer


def reward_function(
    scorer: SyncScorer, *, on_resample: Callable[[Sequence[Resample]], None] | None = None
) -> Callable[[str, Sequence[Patch]], list[float | None]]:
    """A function that scores one group and waits. `on_resample` is told which of its patches to draw again, and why."""

    def score(task_id: str, patches: Sequence[Patch]) -> list[float | None]:
        group = scorer.score_group(task_id, patches)
        if on_resample is not None and (again := group.resample()):
            on_resample(again)
        return group.rewards

    return score
