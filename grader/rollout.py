"""A rollout: one agent at work in a sandbox of one task, and its work as a patch.

    async with rollout(task, provider) as r:
        reply = await r.call("bash", {"command": "pytest -q"})
        extraction = await r.extract()
    await grade_one(task, extraction.submission(task.task_id, "my-model"), ...)

The sandbox is the one that a grading would get, but never the same. Before the agent's first command the image's tree
is recorded, the history is scrubbed of what could show the fix, and the scrub is checked from outside.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from grader import conditions as run_conditions
from grader import scrub as history
from grader import tools
from grader.campaign import Conditions, Limits
from grader.errors import GraderError
from grader.extract import Extraction, extract
from grader.extraction.baseline import Baseline, record
from grader.extraction.exclusions import Exclusions
from grader.suite import activation
from sandbox import Provider, Sandbox, SandboxError
from tasksets.task import Task, TestPlan


class TaskUnfit(GraderError):
    """No rollout can be had of this task: it names no image or plan, or its history shows more than it may."""


@dataclass(frozen=True)
class Rollout:
    """An agent's sandbox, ready for its first command. Made by `rollout`."""

    task: Task
    box: Sandbox
    baseline: Baseline
    """What the image shipped."""
    scrubs: tuple[history.Scrub, ...]
    """What was taken out of the repository's git directory, and of its submodules'."""
    provider: Provider = field(repr=False)
    exclusions: Exclusions
    acquire_timeout_s: float

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tools.Reply:
        """Carry out a model's tool call. A mistake of the model's is an answer. Raises `SandboxError`."""
        return await tools.call(self.box, name, arguments)

    async def extract(self) -> Extraction:
        """What the agent has changed so far, as a patch that is proved. Its sandbox goes on. Raises as `extract`."""
        return await extract(
            self.box,
            self.baseline,
            self.provider,
            exclusions=self.exclusions,
            acquire_timeout_s=self.acquire_timeout_s,
        )


@asynccontextmanager
async def rollout(
    task: Task,
    provider: Provider,
    *,
    conditions: Conditions | None = None,
    limits: Limits | None = None,
    exclusions: Exclusions | None = None,
    leaks: Literal["refuse", "report"] = "refuse",
) -> AsyncIterator[Rollout]:
    """A sandbox on the task's image, ready for an agent: baseline recorded, history scrubbed, environment activated.

    `leaks`: what to do about history that cannot be scrubbed; `report` leaves it to the caller to look at `scrubs`.
    Raises `TaskUnfit` or `SandboxError`, or `HostFailed` when this host has no git that runs, or no disk.
    """
    limits = limits or Limits()
    plan = _plan(task)
    spec = run_conditions.spec_for(task, conditions or Conditions(), limits)
    async with provider.sandbox(spec, acquire_timeout_s=limits.acquire_timeout_s) as box:
        baseline = await record(box, plan.workdir)
        scrubs = await history.scrub(box, plan.workdir, baseline.manifest)
        left = [f"{each.git_dir}: {what}" for each in scrubs for what in each.left]
        if left and leaks == "refuse":
            raise TaskUnfit(
                f"{task.task_id}: its history may show the fix ({'; '.join(left[:5])}); clean the image, or take it as"
                " it is with leaks='report'"
            )
        await _activate(box, plan)
        yield Rollout(
            task,
            box,
            baseline,
            scrubs,
            provider,
            exclusions or Exclusions(),
            acquire_timeout_s=limits.acquire_timeout_s,
        )


def _plan(task: Task) -> TestPlan:
    if task.plan is None or task.image is None:
        raise TaskUnfit(f"{task.task_id}: its row names no image or does not say how to run its tests; give a recipe")
    return task.plan


async def _activate(box: Sandbox, plan: TestPlan) -> None:
    """Put the agent's shell where the tests' shell would be: in the work tree, with the task's environment."""
    lines = f"{activation(plan.setup)}\ncd {shlex.quote(plan.workdir)}\nset +eu"
    ran = await box.run(lines, timeout_s=120.0)
    if ran.timed_out:
        raise SandboxError("activating the task's environment did not end within 120 s; look at its image")
