"""A reward function for TRL's GRPOTrainer.

    with SyncScorer(load(Path("campaign.toml"), {})) as scorer:
        GRPOTrainer(model, reward_funcs=reward_function(scorer), train_dataset=rows, ...).train()

The data set needs the column `instance_id`. What has no verdict is None in the list that TRL gets. From 1.6 on TRL
leaves such a completion out of its group's mean and deviation and gives it the advantage 0. Before, it took None for 0,
so that an older TRL is refused. All this holds while ours is the only reward function: where another one has a number
for the completion, TRL's `sum_then_normalize` adds nothing for ours, which is a 0. Set `multi_objective_aggregation` to
`normalize_then_sum` then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from grader.adapters.completion import Completion, patch_in
from grader.adapters.installed import refuse_older
from grader.errors import UsageError
from grader.samples import Patch, listed
from grader.scorer import Resample, resamples
from grader.syncscorer import SyncScorer

OLDEST = (1, 6)
"""The first TRL that does not take None for 0."""


class RewardFunction(Protocol):
    """As TRL calls it."""

    __name__: str

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]: ...


def reward_function(
    scorer: SyncScorer,
    *,
    task_column: str = "instance_id",
    patch_of: Callable[[Completion], Patch] = patch_in,
    on_resample: Callable[[Sequence[Resample]], None] | None = None,
) -> RewardFunction:
    """A function for `reward_funcs`, named `sandman` in TRL's metrics.

    TRL has no call that draws a completion again. Its table of completions gets the column `no_verdict` (why there is
    no reward, or empty), its metrics get `no_verdict` (how many), and `on_resample` gets the completions to draw again,
    by their place in the batch. Raises `UsageError` for a TRL that would take None for 0.
    """
    refuse_older("trl", OLDEST, "takes a reward of None for 0")

    def sandman(completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        if task_column not in columns:
            raise UsageError(f"the data set has no column {task_column!r}; give each row the id of its task")
        pairs = zip(listed("tasks", columns[task_column]), listed("completions", completions), strict=True)
        scores = scorer.score_all([(task_id, patch_of(completion)) for task_id, completion in pairs])
        again = resamples(scores)
        if log_extra := columns.get("log_extra"):
            log_extra("no_verdict", [score.why if score.reward is None else "" for score in scores])
        if log_metric := columns.get("log_metric"):
            log_metric("no_verdict", float(len(again)))
        if on_resample is not None and again:
            on_resample(again)
        return [score.reward for score in scores]

    return sandman
