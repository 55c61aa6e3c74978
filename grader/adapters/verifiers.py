"""A reward for verifiers (0.4 and newer, whose tasks have `@reward` methods).

    class SweTask(vf.Task[SweData]):
        @vf.reward
        async def solved(self, task, trace) -> float:
            return await reward(task, trace)

    reward = reward_function(SyncScorer(load(Path("campaign.toml"), {})))

verifiers wants a number from a reward, and records what a reward raises on the rollout's trace: the trace is not `ok`,
its reward stays unscored (None), and an agent's or an environment's `retries` run it again. That is how a rollout
without a verdict is told here: `SandboxError` for infrastructure, which another attempt may mend, `TaskError` for a
task that cannot be graded. A consumer must leave out traces that are not `ok`, as verifiers' own do: `trace.reward`
adds up what was scored, which is 0 where nothing was.

In verifiers before 0.4 a rubric takes every exception of a reward function for 0.0, and None as well; this adapter is
not for them, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from grader.adapters.completion import patch_in
from grader.adapters.installed import refuse_older
from grader.samples import Patch
from grader.scorer import Score, resamples
from grader.syncscorer import SyncScorer

OLDEST = (0, 4)


class Trace(Protocol):
    """What the default way to find a patch needs of a rollout's trace."""

    @property
    def last_reply(self) -> str: ...


def last_reply(task: Any, trace: Trace) -> str:
    """The patch in the model's last reply."""
    return patch_in(trace.last_reply)


def reward_function(
    scorer: SyncScorer,
    *,
    task_id_of: Callable[[Any], str] = lambda task: str(task.id),
    patch_of: Callable[[Any, Any], Patch] = last_reply,
) -> Callable[[Any, Any], Awaitable[float]]:
    """A coroutine function of a task's data and its trace. It opens `scorer` at its first call.

    `task_id_of` gives the campaign's id of a task, `patch_of` the patch of a rollout (an agent's is often in
    `trace.info`, put there by the task's `finalize`). Raises `UsageError` for a verifiers that would take it for 0.
    """
    refuse_older("verifiers", OLDEST, "takes what a reward raises for 0.0")

    async def sandman(task: Any, trace: Any) -> float:
        await asyncio.to_thread(scorer.open)
        (score,) = await scorer.score_all_async([(task_id_of(task), patch_of(task, trace))])
        if score.reward is None:
            raise _error(score)
        return score.reward

    return sandman


def _error(score: Score) -> Exception:
    from verifiers.v1.errors import SandboxError, TaskError  # type: ignore[import-not-found,unused-ignore]

    (again,) = resamples([score])
    kind: type[Exception] = SandboxError if again.worthwhile else TaskError
    return kind(f"no verdict ({score.cause or score.outcome}): {score.why}")
