"""From a campaign to what is to be graded: tasks, their recipes, the patches, and the settings that verdicts depend on.

Everything that a person can have got wrong is found here, before a ledger or a sandbox is opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from grader.batch import Job
from grader.campaign import Campaign
from grader.errors import UsageError
from grader.ledger import Expected, Key
from grader.submissions import choose
from tasksets.images import Recipe, RecipeError, recipes_by_task, with_recipe
from tasksets.task import Task
from tasksets.taskset import TaskSet, open_taskset

_UNBUILT = "recipe:unbuilt"
"""Stands for a recipe's image until it is built; no sandbox is ever asked for it."""


@dataclass(frozen=True)
class Plan:
    """What a campaign asks for. A task with a recipe is as the recipe runs it; its image is set once it is built."""

    jobs: tuple[Job, ...]
    recipes: Mapping[str, Recipe]
    """By task id, for the tasks of `jobs` that have one."""
    notes: tuple[str, ...]
    identity: Mapping[str, object]
    """The settings that verdicts depend on; a run keeps them from its first start to its last."""

    def asked(self) -> list[Expected]:
        """The jobs as the ledger's denominators."""
        return [self._expected(job) for job in self.jobs]

    def _expected(self, job: Job) -> Expected:
        recipe = self.recipes.get(job.task.task_id)
        digest = recipe.digest if recipe else None
        return Expected(key(job), job.task.digest, digest, job.submission.source, job.submission.patch)


def key(job: Job) -> Key:
    """The key under which the job's grading is recorded."""
    return Key(job.task.task_id, job.submission.model_name_or_path, job.submission.patch_sha256)


def make_plan(campaign: Campaign) -> Plan:
    """Read the campaign's files. Raises `UsageError` or `TaskSetError`, naming file and row."""
    taskset = open_taskset(campaign.taskset)
    recipes = _recipes(campaign, taskset)
    chosen = choose(campaign.patches, taskset, campaign.only)
    tasks: dict[str, Task] = {}
    for task_id in dict.fromkeys(submission.task_id for submission in chosen.submissions):
        task, recipe = taskset.get(task_id), recipes.get(task_id)
        tasks[task_id] = with_recipe(task, recipe, _UNBUILT) if recipe else task
    return Plan(
        jobs=tuple(Job(tasks[submission.task_id], submission) for submission in chosen.submissions),
        recipes={task_id: recipe for task_id, recipe in recipes.items() if task_id in tasks},
        notes=chosen.notes,
        identity={
            "taskset_revision": taskset.revision,
            "provider": campaign.provider.type,
            "conditions": campaign.conditions.model_dump(mode="json"),
            "rewards": campaign.rewards.model_dump(mode="json"),
            "max_log_mib": campaign.limits.max_log_mib,
        },
    )


def on_image(job: Job, image: str) -> Job:
    """The job with its task on the image that was built for it."""
    return dataclasses.replace(job, task=dataclasses.replace(job.task, image=image))


def _recipes(campaign: Campaign, taskset: TaskSet) -> dict[str, Recipe]:
    if campaign.recipes is None:
        return {}
    try:
        recipes = recipes_by_task(campaign.recipes)
    except RecipeError as error:
        raise UsageError(str(error)) from error
    if recipes and not any(task_id in taskset for task_id in recipes):
        raise UsageError(
            f"{campaign.recipes}: has no recipe for a task of {taskset.source}; name the set's own recipes"
        )
    return recipes
