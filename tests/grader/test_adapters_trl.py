"""Claims about `grader.adapters.trl`, against the real GRPOTrainer: one step of a model of a few thousand weights."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.adapters import trl as adapter
from grader.errors import UsageError
from grader.scorer import Resample
from grader.syncscorer import SyncScorer
from tests.grader.groups import KILLED, REWARDS, TASK, make_toy

needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed here")


@needs_trl
@pytest.mark.filterwarnings("ignore")
def test_a_group_of_eight_with_two_infrastructure_failures(tmp_path: Path) -> None:
    """TRL's own mean is of six; the two have the advantage 0, stand in its table, and are asked for again."""
    toy = make_toy(tmp_path)
    asked: list[Resample] = []
    patches = iter(toy.patches())
    with toy.killing(), SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        # The little model writes no patches: ours stand in for its completions, one for each.
        function = adapter.reward_function(scorer, patch_of=lambda said: next(patches), on_resample=asked.extend)
        told, advantages, table = _one_step(function, tmp_path)

    assert 0.5 == told["reward"] == told["rewards/sandman/mean"]
    assert 2.0 == told["no_verdict"]
    deviation = math.sqrt(6 * 0.25 / 5)
    expected = [0.0 if reward is None else (reward - 0.5) / (deviation + 1e-4) for reward in REWARDS]
    assert expected == pytest.approx(advantages, abs=1e-5)
    assert list(KILLED) == [index for index, why in enumerate(table) if why]
    assert [(index, TASK) for index in KILLED] == [(again.index, again.task_id) for again in asked]


def _one_step(function: Any, folder: Path) -> tuple[dict[str, float], list[float], list[str]]:
    """What TRL logs of one step on one prompt with eight completions, their advantages, and the column of its table."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2, "fix": 3, "it": 4}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=5, num_key_value_heads=1, eos_token_id=1, pad_token_id=0, **shape))
    kept: list[float] = []

    class Trainer(GRPOTrainer):  # type: ignore[misc,unused-ignore]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            outputs = super()._generate_and_score_completions(inputs)
            kept.extend(outputs["advantages"].tolist())
            return outputs

    settings = GRPOConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=4,
        max_steps=1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    rows = Dataset.from_list([{"prompt": "fix it", "instance_id": TASK}] * 8)
    trainer = Trainer(model, reward_funcs=function, args=settings, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    (told,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    return told, kept, list(trainer._logs["extra"]["no_verdict"])


@needs_trl
def test_rows_without_a_task_id_are_refused(tmp_path: Path) -> None:
    """A data set without the column stops the trainer with the column's name, and scores nothing."""
    function = adapter.reward_function(SyncScorer(make_toy(tmp_path).campaign))
    with pytest.raises(UsageError, match="instance_id"):
        function(completions=["x"], prompts=["y"])


def test_one_text_is_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters are neither completions nor ids of tasks."""
    monkeypatch.setattr("grader.adapters.installed.metadata.version", {"trl": "1.16.0"}.__getitem__)
    function = adapter.reward_function(SyncScorer(make_toy(tmp_path).campaign))
    with pytest.raises(UsageError, match="the completions are given as `str`"):
        function(completions="x", instance_id=[TASK])  # type: ignore[arg-type,unused-ignore]
    with pytest.raises(UsageError, match="the tasks are given as `str`"):
        function(completions=["x"], instance_id="t")


@pytest.fixture
def old_trl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("grader.adapters.installed.metadata.version", {"trl": "1.5.1"}.__getitem__)
    return


@pytest.mark.usefixtures("old_trl")
def test_a_trl_that_takes_none_for_zero_is_refused(tmp_path: Path) -> None:
    """Rather no training than training on zeros that nobody earned."""
    with pytest.raises(UsageError, match=r"install trl>=1\.6"):
        adapter.reward_function(SyncScorer(make_toy(tmp_path).campaign))
