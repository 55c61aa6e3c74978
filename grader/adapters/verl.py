"""A reward function for verl, and the advantage estimator that it needs.

    # rewards.py: `reward.custom_reward_function.path`, and a module that VERL_USE_EXTERNAL_MODULES names
    compute_score = scoring(SyncScorer(load(Path("campaign.toml"), {})), no_verdict="nan")
    register_estimator()  # algorithm.adv_estimator: sandman_grpo

verl wants a number for every sample: one None makes it drop the scores of the whole batch, and its own GRPO makes one
NaN the advantage of the whole group. So there are two honest forms. `no_verdict="raise"` ends the step. With `"nan"`
the score is NaN, and the estimator `sandman_grpo` takes NaN for "no part of the group": it leaves the group before the
mean and has the advantage 0. Under another estimator the NaN reaches the loss, where verl's FSDP workers skip the
update; it never becomes a 0. verl's own figures over scores (`critic/score/mean`) are NaN for such a batch.

Each sample is one call, with the task's id as `ground_truth`. verl runs its reward workers as processes, and each opens
the campaign's provider for itself, with the campaign's concurrency.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, get_args

from grader.adapters.completion import Completion, patch_in
from grader.advantages import advantages
from grader.errors import GraderError, UsageError
from grader.samples import Patch
from grader.scorer import Resample, Score, resamples
from grader.syncscorer import SyncScorer
from grader.verdict import Cause, Outcome

ESTIMATOR = "sandman_grpo"
WithoutVerdict = Literal["raise", "nan"]


class NoVerdict(GraderError):
    """A sample has no reward, and verl's form has no place for that."""


ComputeScore = Callable[..., Coroutine[Any, Any, dict[str, float | str]]]


def scoring(
    scorer: SyncScorer,
    *,
    no_verdict: WithoutVerdict = "raise",
    patch_of: Callable[[Completion], Patch] = patch_in,
) -> ComputeScore:
    """`compute_score` for verl. It opens `scorer` at its first call.

    The answer has `score`, and for verl's logs `no_verdict` (1.0 or 0.0), `outcome`, `cause` and `why`. Raises
    `UsageError` for another `no_verdict`.
    """
    if no_verdict not in get_args(WithoutVerdict):
        raise UsageError(f'no_verdict is {no_verdict!r}; give "raise" or "nan"')

    async def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **_: object
    ) -> dict[str, float | str]:
        await asyncio.to_thread(scorer.open)
        (score,) = await scorer.score_all_async([(ground_truth, patch_of(solution_str))])
        if score.reward is None and no_verdict == "raise":
            raise NoVerdict(
                f"{ground_truth}: no verdict ({score.cause or score.outcome}: {score.why}), and this function was told"
                f' to raise; give no_verdict="nan" and the estimator {ESTIMATOR} to go on without such samples'
            )
        return _told(score)

    return compute_score


def _told(score: Score) -> dict[str, float | str]:
    return {
        "score": math.nan if score.reward is None else score.reward,
        "no_verdict": float(score.reward is None),
        "outcome": score.outcome.value,
        "cause": score.cause.value if score.cause else "",
        "why": score.why,
    }


def resample_requests(columns: Mapping[str, Any]) -> tuple[Resample, ...]:
    """The samples of a batch to draw again, by their place. `columns` is the batch's `non_tensor_batch`."""
    told = zip(*(columns[name] for name in ("no_verdict", "outcome", "cause", "why")), strict=True)
    ids = [str(entry["ground_truth"]) for entry in columns["reward_model"]]
    return resamples(
        Score(task_id, None if none else 0.0, Outcome(outcome), Cause(cause) if cause else None, str(why), (), "")
        for task_id, (none, outcome, cause, why) in zip(ids, told, strict=True)
    )


def register_estimator() -> None:
    """Make `algorithm.adv_estimator: sandman_grpo` known to verl. It is GRPO, with NaN for "no part of the group"."""
    from verl.trainer.ppo.core_algos import register_adv_est  # type: ignore[import-not-found,unused-ignore]

    register_adv_est(ESTIMATOR)(masked_grpo)


def masked_grpo(token_level_rewards: Any, response_mask: Any, index: Any, config: Any = None, **_: object) -> Any:
    """Advantages and returns as verl wants them, both of the shape of `response_mask`.

    `index` names the group of each row. As verl's GRPO, it divides by the deviation unless `norm_adv_by_std_in_grpo` is
    false. A group with one reward left has the advantage 0, where verl's would have the reward itself.
    """
    scores = token_level_rewards.sum(dim=-1)
    rewards = [None if math.isnan(score) else score for score in scores.tolist()]
    by_deviation = config is None or config.get("norm_adv_by_std_in_grpo", True)
    groups: dict[object, list[int]] = {}
    for row, name in enumerate(index.tolist()):
        groups.setdefault(name, []).append(row)
    found = [0.0] * len(rewards)
    for rows in groups.values():
        group = advantages([rewards[row] for row in rows], scale="deviation" if by_deviation else "none", epsilon=1e-6)
        for row, value in zip(rows, group.values, strict=True):
            found[row] = 0.0 if value is None else value  # the sample stays in the batch and moves nothing
    spread = scores.new_tensor(found).unsqueeze(-1) * response_mask
    return spread, spread
