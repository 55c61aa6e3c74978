"""From a campaign to what is to be graded: tasks, their recipes, the patches, and the settings that verdicts depend on.

Everything that a person can have got wrong is found here, before a ledger or a sandbox is opened.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grader.batch import Job
from grader.campaign import Campaign
from grader.errors import UsageError
from grader.ledger import Expected, Key
from grader.preflight.admission_file import refusals
from grader.submissions import choose
from sandbox.config import KubernetesConfig
from sandbox.errors import ImageError
from tasksets.imagelist import images_by_task
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
    """By task id, for the tasks of `jobs` whose image is to be built."""
    origins: Mapping[str, str | None]
    """By task id, what decides the image: a hash of the recipe, of the digest that was given, or of both. None: the
    row's own image."""
    notes: tuple[str, ...]
    identity: Mapping[str, object]
    """The settings that verdicts depend on; a run keeps them from its first start to its last."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By task id, why the campaign's admission file does not admit it. Its jobs are recorded so, and nothing runs."""

    def asked(self) -> list[Expected]:
        """The jobs as the ledger's denominators."""
        return [self._expected(job) for job in self.jobs]

    def _expected(self, job: Job) -> Expected:
        origin = self.origins[job.task.task_id]
        return Expected(key(job), job.task.digest, origin, job.submission.source, job.submission.patch)


def key(job: Job) -> Key:
    """The key under which the job's grading is recorded."""
    return Key(job.task.task_id, job.submission.model_name_or_path, job.submission.patch_sha256)


def make_plan(campaign: Campaign) -> Plan:
    """Read the campaign's files. Raises `UsageError` or `TaskSetError`, naming file and row."""
    taskset = open_taskset(campaign.taskset)
    recipes = _recipes(campaign, taskset)
    images = _images(campaign, taskset)
    chosen = choose(campaign.patches, taskset, campaign.only)
    tasks: dict[str, Task] = {}
    for task_id in dict.fromkeys(submission.task_id for submission in chosen.submissions):
        tasks[task_id] = _on_its_image(taskset.get(task_id), recipes.get(task_id), images.get(task_id))
    if isinstance(campaign.provider, KubernetesConfig):
        _refuse_what_no_cluster_runs(tasks.values(), campaign.provider)
    plan = Plan(
        jobs=tuple(Job(tasks[submission.task_id], submission) for submission in chosen.submissions),
        recipes={task_id: recipes[task_id] for task_id, task in tasks.items() if task.image == _UNBUILT},
        origins={task_id: _origin(recipes.get(task_id), images.get(task_id)) for task_id in tasks},
        notes=chosen.notes,
        identity=identity_of(campaign, taskset),
    )
    return _admitting(plan, campaign.admission)


def identity_of(campaign: Campaign, taskset: TaskSet) -> dict[str, object]:
    """The settings that verdicts of the campaign depend on."""
    return {
        "taskset_revision": taskset.revision,
        "provider": campaign.provider.type,
        "conditions": campaign.conditions.model_dump(mode="json"),
        "tampering": campaign.tampering,
        "rewards": campaign.rewards.model_dump(mode="json"),
        "max_log_mib": campaign.limits.max_log_mib,
    }


def _admitting(plan: Plan, admission: Path | None) -> Plan:
    """The plan with the refusals of the admission file. Raises `UsageError` for a file that does not hold any more."""
    if admission is None:
        return plan
    tasks = {job.task.task_id: (job.task.digest, plan.origins[job.task.task_id]) for job in plan.jobs}
    found = refusals(admission, plan.identity, ((task_id, *known) for task_id, known in tasks.items()))
    return dataclasses.replace(plan, refused=found)


def on_image(job: Job, image: str) -> Job:
    """The job with its task on the image that was built for it."""
    return dataclasses.replace(job, task=dataclasses.replace(job.task, image=image))


def _on_its_image(task: Task, recipe: Recipe | None, image: str | None) -> Task:
    if recipe is not None:
        return with_recipe(task, recipe, image or _UNBUILT)
    return dataclasses.replace(task, image=image) if image is not None else task


def _origin(recipe: Recipe | None, image: str | None) -> str | None:
    if image is None:
        return recipe.digest if recipe else None
    digest = image.rpartition("@")[2]  # a registry may move, its images do not change
    return hashlib.sha256(f"{recipe.digest if recipe else ''} {digest}".encode()).hexdigest()


def _refuse_what_no_cluster_runs(tasks: Iterable[Task], provider: KubernetesConfig) -> None:
    """Raise `UsageError` for images that nodes cannot pull by digest: recipes', the host's, tags."""
    from sandbox.kube.manifest import image_ref

    unfit: dict[str, str] = {}
    for task in tasks:
        try:
            image_ref(task.image or "", provider.images)
        except ImageError:
            unfit[task.task_id] = _why_not(task.image)
    if not unfit:
        return
    task_id, why = next(iter(unfit.items()))
    others = f" and {len(unfit) - 1} more tasks cannot" if len(unfit) > 1 else " cannot"
    raise UsageError(
        f"{task_id}{others} run on a cluster: {why}. Give --images, a file of `instance_id` and `image` lines with "
        "each image as name@sha256:<hex> (`grader images build --base ... --export DIR` writes one), or leave such "
        "tasks out with --only"
    )


def _why_not(image: str | None) -> str:
    if image == _UNBUILT:
        return "its image is a recipe's, which only this machine has"
    if image is None:
        return "it names no image"
    if image == "host":
        return "it runs on this machine's own programs (`host`)"
    return f"its image {image[:120]!r} is not named by digest"


def _images(campaign: Campaign, taskset: TaskSet) -> dict[str, str]:
    if campaign.images is None:
        return {}
    images = images_by_task(campaign.images)
    if not any(task_id in taskset for task_id in images):
        raise UsageError(f"{campaign.images}: has no image for a task of {taskset.source}; name the set's own images")
    return images


def _recipes(campaign: Campaign, taskset: TaskSet) -> dict[str, Recipe]:
    if campaign.recipes is None:
        return {}
    try:
        recipes = recipes_by_task(campaign.recipes)
    except RecipeError as error:
        raise UsageError(str(error)) from error
    if not any(task_id in taskset for task_id in recipes):
        raise UsageError(
            f"{campaign.recipes}: has no recipe for a task of {taskset.source}; name the set's own recipes"
        )
    return recipes
