"""Claims about `grader.adapters.verifiers`, against verifiers' own agents, tasks, traces and retries."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grader.adapters import verifiers as adapter
from grader.errors import UsageError
from grader.syncscorer import SyncScorer
from tests.grader.groups import KILLED, REWARDS, TASK, make_toy

pytestmark = pytest.mark.filterwarnings("ignore")
needs_verifiers = pytest.mark.skipif(
    importlib.util.find_spec("verifiers") is None, reason="verifiers is not installed here"
)


@needs_verifiers
def test_a_group_of_eight_with_two_infrastructure_failures(tmp_path: Path) -> None:
    """Six traces with a reward, whose mean is of six; two that failed as sandboxes do, each run again by verifiers."""
    toy = make_toy(tmp_path)
    with toy.killing(), SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        traces, runs = asyncio.run(_rollouts(adapter.reward_function(scorer, patch_of=_given), TASK, toy.patches()))

    scored = [trace.reward for trace in traces if trace.ok]
    assert [reward for reward in REWARDS if reward is not None] == scored
    assert 0.5 == sum(scored) / len(scored)
    lost = [index for index, trace in enumerate(traces) if not trace.ok]
    assert list(KILLED) == lost
    for index in lost:
        assert {"solved": None} == traces[index].rewards, "not scored, which is no 0"
        assert ["SandboxError"] * 2 == [error.type for error in traces[index].errors]
        assert "no verdict (infrastructure)" in traces[index].errors[0].message
    assert [2 if reward is None else 1 for reward in REWARDS] == runs, "each request for another sample was followed"


@needs_verifiers
def test_a_task_that_cannot_be_graded_is_not_run_again(tmp_path: Path) -> None:
    """What another rollout would not mend is a `TaskError`, which rules for sandboxes leave alone."""
    toy = make_toy(tmp_path, conditions={"test_time_limit_s": 40, "architecture": "pdp11"})
    with SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        traces, runs = asyncio.run(_rollouts(adapter.reward_function(scorer, patch_of=_given), TASK, toy.patches()[:1]))
    assert [["TaskError"]] == [[error.type for error in trace.errors] for trace in traces]
    assert [1] == runs


def _given(task: Any, trace: Any) -> str:
    return str(task.answer)


async def _rollouts(reward: Any, task_id: str, patches: Sequence[bytes]) -> tuple[list[Any], list[int]]:
    """A real agent's rollout for each patch, and how often each was run. Its program does nothing."""
    import verifiers.v1 as vf
    from verifiers.v1.harnesses.null import NullHarness, NullHarnessConfig
    from verifiers.v1.runtimes import ProgramResult, SubprocessConfig

    runs = [0] * len(patches)

    class Data(vf.TaskData):  # type: ignore[misc,unused-ignore]
        answer: str

    class Task(vf.Task[Data]):  # type: ignore[misc,unused-ignore]
        @vf.reward  # type: ignore[untyped-decorator,unused-ignore]
        async def solved(self, task: Any, trace: Any) -> float:
            runs[task.idx] += 1
            return float(await reward(task, trace))

    class Idle(NullHarness):  # type: ignore[misc,unused-ignore]
        async def setup(self, runtime: Any) -> None:
            pass

        async def launch(self, *_: Any, **__: Any) -> Any:
            return ProgramResult(exit_code=0, stdout="", stderr="")

    retries = vf.RetryConfig(rules=[vf.RetryRule(type="SandboxError", max_retries=1)])
    harness = NullHarnessConfig(id="null")
    agent = vf.Agent(vf.AgentConfig(model="none", runtime=SubprocessConfig(), harness=harness, retries=retries))
    agent.harness = Idle(harness)
    tasks = [
        Task(Data(idx=index, id=task_id, prompt="fix it", answer=patch.decode())) for index, patch in enumerate(patches)
    ]
    return list(await asyncio.gather(*(agent.run(task) for task in tasks))), runs


def test_a_verifiers_that_takes_errors_for_zero_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rubric would score 0.0 for every sandbox that was lost."""
    monkeypatch.setattr("grader.adapters.installed.metadata.version", {"verifiers": "0.3.1"}.__getitem__)
    with pytest.raises(UsageError, match=r"install verifiers>=0\.4"):
        adapter.reward_function(SyncScorer(make_toy(tmp_path).campaign))
