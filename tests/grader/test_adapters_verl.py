"""Claims about `grader.adapters.verl`, against verl's own reward manager, batch and advantage computation."""

from __future__ import annotations

import asyncio
import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

from grader.adapters import verl as adapter
from grader.adapters.verl import NoVerdict, masked_grpo, register_estimator, resample_requests, scoring
from grader.errors import UsageError
from grader.syncscorer import SyncScorer
from tests.grader.groups import KILLED, REWARDS, TASK, make_toy

needs_verl = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed here")


@needs_verl
@pytest.mark.filterwarnings("ignore")
def test_a_group_of_eight_with_two_infrastructure_failures(tmp_path: Path) -> None:
    """Through verl's reward manager and `compute_advantage`: a mean of six, advantage 0 for two, and two requests."""
    toy = make_toy(tmp_path)
    patches = [patch.decode() for patch in toy.patches()]
    with toy.killing(), SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        scored, batch = asyncio.run(_scored(scoring(scorer, no_verdict="nan"), patches))

    assert REWARDS == [None if math.isnan(one["reward_score"]) else one["reward_score"] for one in scored]
    again = resample_requests(batch.non_tensor_batch)
    assert [(index, TASK) for index in KILLED] == [(one.index, one.task_id) for one in again]
    deviation = math.sqrt(6 * 0.25 / 5)
    expected = [0.0 if reward is None else (reward - 0.5) / (deviation + 1e-6) for reward in REWARDS]
    assert expected == pytest.approx(_advantages(batch), abs=1e-5)


async def _scored(compute_score: Any, patches: list[str]) -> tuple[list[dict[str, Any]], Any]:
    """Each sample through verl's manager, as its reward workers do; then the batch that the trainer sees."""
    import numpy as np
    import torch
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    class Tokenizer:
        """The little batch holds the sample's number where a model's tokens would be."""

        def decode(self, ids: Any, skip_special_tokens: bool) -> str:
            return patches[int(ids[0])]

    rows = len(patches)
    batch = DataProto.from_dict(
        tensors={
            "prompts": torch.zeros(rows, 1, dtype=torch.long),
            "responses": torch.arange(rows).unsqueeze(-1).repeat(1, 3),
            "attention_mask": torch.ones(rows, 4, dtype=torch.long),
            "response_mask": torch.ones(rows, 3),
        },
        non_tensors={
            "data_source": np.array(["toy"] * rows, dtype=object),
            "reward_model": np.array([{"ground_truth": TASK}] * rows, dtype=object),
            "extra_info": np.array([{} for _ in range(rows)], dtype=object),
            "uid": np.array(["one prompt"] * rows, dtype=object),
        },
    )
    manager = NaiveRewardManager({}, Tokenizer(), compute_score)
    scored = await asyncio.gather(*(manager.run_single(batch[i : i + 1]) for i in range(rows)))
    batch.batch["token_level_rewards"] = manager.assemble_rm_scores(batch, [one["reward_score"] for one in scored])
    for name in scored[0]["reward_extra_info"]:
        batch.non_tensor_batch[name] = np.array([one["reward_extra_info"][name] for one in scored])
    return list(scored), batch


def _advantages(batch: Any) -> list[float]:
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.ray_trainer import compute_advantage

    register_estimator()
    config = AlgoConfig(adv_estimator=adapter.ESTIMATOR)
    found = compute_advantage(batch, adv_estimator=adapter.ESTIMATOR, config=config).batch["advantages"]
    assert (found == found[:, :1]).all(), "every token of a response has its response's advantage"
    return [float(value) for value in found[:, 0]]


@needs_verl
@pytest.mark.filterwarnings("ignore")
def test_verls_own_estimator_shows_why_ours_is_needed() -> None:
    """One NaN is every advantage of its group under verl's GRPO; under ours it is one sample less."""
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    rewards = torch.tensor([[1.0], [math.nan], [0.0], [1.0], [0.0], [0.5]])
    arguments = {"response_mask": torch.ones(6, 1), "index": np.array(["a", "a", "a", "b", "b", "c"], dtype=object)}

    theirs, _ = compute_grpo_outcome_advantage(rewards.clone(), **arguments)
    ours, _ = masked_grpo(rewards.clone(), **arguments)

    assert theirs[:3].isnan().all()
    assert [0.70710, 0.0, -0.70710] == pytest.approx(ours[:3, 0].tolist(), abs=1e-4)
    assert theirs[3:5].flatten().tolist() == pytest.approx(ours[3:5].flatten().tolist()), "a whole group is as theirs"
    assert 0.0 == float(ours[5]), "a group of one teaches nothing"
    unscaled, _ = masked_grpo(rewards.clone(), config={"norm_adv_by_std_in_grpo": False}, **arguments)
    assert [0.5, 0.0, -0.5] == unscaled[:3, 0].tolist()


def test_without_a_place_for_it_no_verdict_is_an_error(tmp_path: Path) -> None:
    """By default a sample without a verdict ends the step, with its cause and the way out."""
    toy = make_toy(tmp_path)
    with toy.killing(), SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        compute_score = scoring(scorer)
        told = asyncio.run(compute_score("toy", toy.patches()[0].decode(), TASK, {}))
        with pytest.raises(NoVerdict, match=r"infrastructure.*sandman_grpo"):
            asyncio.run(compute_score("toy", toy.patches()[KILLED[0]].decode(), TASK))
    assert {"score": 1.0, "no_verdict": 0.0, "outcome": "resolved", "cause": "", "why": told["why"]} == told


def test_a_way_to_tell_no_verdict_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """A word that is mistyped does not turn what was to raise into NaN."""
    with pytest.raises(UsageError, match='no_verdict is \'rise\'; give "raise" or "nan"'):
        scoring(SyncScorer(make_toy(tmp_path).campaign), no_verdict="rise")  # type: ignore[arg-type,unused-ignore]
