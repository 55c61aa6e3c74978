"""Looks at a campaign before it runs: one sandbox of its first task, made and probed as a grading would, no test run.

Covers what the campaign declares, on that one image. Whether the other tasks' images agree is for `grader preflight`.
"""

from __future__ import annotations

import dataclasses

from pydantic import ValidationError

from grader import conditions, probe
from grader.campaign import Campaign
from grader.conditions import Comparison, Promises
from grader.errors import UsageError
from grader.grounds import ProviderGrounds, open_grounds
from grader.plan import make_plan
from sandbox.errors import CreateError, ImageError, OutOfMemory, ProviderUnavailable, SandboxError
from sandbox.finding import Finding
from tasksets.errors import TaskSetError
from tasksets.images import Recipe
from tasksets.task import Task, TestPlan


async def examine(campaign: Campaign, *, image: str | None = None) -> list[Finding]:
    """How the declared conditions fare in a sandbox of the first task. `image` goes before the task's own."""
    try:
        plan = make_plan(campaign)
    except (UsageError, TaskSetError) as error:
        return [Finding("campaign", "error", str(error))]
    for job in plan.jobs:
        task = job.task if image is None else dataclasses.replace(job.task, image=image)
        if task.plan is not None and task.image is not None and task.task_id not in plan.refused:
            return await _tried(campaign, task, task.plan, plan.recipes.get(task.task_id) if image is None else None)
    said = "none of its tasks can be graded; `grader tasks check` says why, or the admission file if it has one"
    return [Finding("campaign", "error", said)]


async def _tried(campaign: Campaign, task: Task, how: TestPlan, recipe: Recipe | None) -> list[Finding]:
    findings: list[Finding] = []
    try:
        async with open_grounds(campaign, "", is_for_a_run=False) as grounds:
            if recipe is not None:
                image = await _built(grounds, recipe)
                task = dataclasses.replace(task, image=image or recipe.base)
                if image is None:
                    campaign, findings = _on_its_base(campaign, task)
            return [*findings, *_told(await _compared(grounds, campaign, task, how), task)]
    except (SandboxError, ValidationError) as error:
        return [*findings, _not_had(error, campaign, task)]


class _Building(Exception):
    """The image is not there: to make it was about to begin."""


async def _built(grounds: ProviderGrounds, recipe: Recipe) -> str | None:
    """The recipe's image, where it is in the store. Building it may take minutes, which is the run's to spend."""

    def leave(_: str) -> None:
        raise _Building

    try:
        return await grounds.image(recipe, leave)
    except _Building:
        return None


def _on_its_base(campaign: Campaign, task: Task) -> tuple[Campaign, list[Finding]]:
    """The campaign without what only the built image can tell, and that this is so."""
    declared = campaign.conditions.model_copy(update={"image_digest": None, "environment": None})
    said = f"the image of {task.task_id} is not built yet, and its base, {task.image}, is tried; ask again once it is"
    return campaign.model_copy(update={"conditions": declared}), [Finding("image", "note", said)]


async def _compared(grounds: ProviderGrounds, campaign: Campaign, task: Task, how: TestPlan) -> Comparison:
    declared, limits = campaign.conditions, campaign.limits
    spec = conditions.spec_for(task, declared, limits)
    async with grounds.provider.sandbox(spec, acquire_timeout_s=limits.acquire_timeout_s) as box:
        promises = Promises.of(declared, limits)
        return conditions.compare(declared, await probe.observe(box, how, declared, promises, canary=grounds.canary))


def _told(found: Comparison, task: Task) -> list[Finding]:
    where = f"in a sandbox of {task.task_id}"
    findings = [Finding("conditions", "error", f"{where} {sentence}") for sentence in found.contradicted]
    if found.unread:
        unread = ", ".join(found.unread)
        findings.append(Finding("conditions", "note", f"{where} these cannot be read, and go uncompared: {unread}"))
    if found.agreed and not found.contradicted:
        findings.append(Finding("conditions", "ok", f"{where} these hold as declared: {', '.join(found.agreed)}"))
    return findings


def _not_had(error: SandboxError | ValidationError, campaign: Campaign, task: Task) -> Finding:
    """Infrastructure that may pass is a cluster's alone: this machine has just made other sandboxes."""
    if isinstance(error, ProviderUnavailable | ImageError):
        return Finding("conditions", "error", f"no sandbox of {task.task_id} can be had: {error}")
    asked = campaign.conditions.model_dump(exclude_defaults=True)
    settings = ", ".join(f"{name} = {value}" for name, value in asked.items()) or "nothing of its own"
    said = f"no sandbox of {task.task_id} can be had as declared ({settings}): {_why(error)}; change [conditions]"
    may_pass = campaign.provider.type != "local" and not isinstance(error, ValidationError | OutOfMemory)
    return Finding("conditions", "failure" if may_pass and type(error) is not CreateError else "error", said)


def _why(error: SandboxError | ValidationError) -> str:
    if isinstance(error, SandboxError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
