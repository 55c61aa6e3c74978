"""Claims about `--images`: which image a task runs on, what is refused, and what makes another run of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grader.campaign import Campaign, load
from grader.errors import RunChanged, UsageError
from grader.plan import Plan, make_plan
from tests.demo import taskset as demo
from tests.grader.rows import task_row
from tests.grader.test_run import Grounds, run, write_lines

ONE, TWO = "demo__one-1", "demo__two-2"
RECIPE = {
    "instance_id": ONE,
    "python": "3",
    "source": {"kind": "sdist", "file": "a-1.tar.gz", "sha256": "0" * 64},
    "install": [],
    "test_cmd": "run the tests",
}


def pinned(number: int, repository: str = "registry.example/tasks") -> str:
    return f"{repository}@sha256:{number:064x}"


def campaign(directory: Path, images: dict[str, str] | None, **changed: Any) -> Campaign:
    write_lines(directory / "tasks.jsonl", [task_row(ONE), task_row(TWO)])
    write_lines(directory / "recipes.jsonl", [RECIPE])
    given: dict[str, Any] = {}
    if images is not None:
        lines = [{"instance_id": task_id, "image": image} for task_id, image in images.items()]
        given["images"] = write_lines(directory / "images.jsonl", lines)
    paths = {"taskset": str(directory / "tasks.jsonl"), "recipes": directory / "recipes.jsonl"}
    return load(None, {**paths, "run": "r", "runs_dir": directory / "runs", **given, **changed})


def images_of(plan: Plan) -> dict[str, str | None]:
    return {job.task.task_id: job.task.image for job in plan.jobs}


def test_a_listed_image_goes_before_row_and_recipe(tmp_path: Path) -> None:
    """The recipe still says how the tests run, and nothing is left to build."""
    plan = make_plan(campaign(tmp_path, {ONE: pinned(1), TWO: pinned(2)}))

    assert {ONE: pinned(1), TWO: pinned(2)} == images_of(plan)
    assert {} == plan.recipes
    (task,) = [job.task for job in plan.jobs if job.task.task_id == ONE]
    assert task.plan is not None
    assert "run the tests" == task.plan.test_command


def test_a_recipe_without_a_listed_image_is_built_here(tmp_path: Path) -> None:
    """On this machine a list may cover some of the tasks only."""
    plan = make_plan(campaign(tmp_path, {TWO: pinned(2)}))

    assert {ONE} == plan.recipes.keys()


KUBERNETES = {"provider": {"type": "kubernetes"}}


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ({TWO: pinned(2)}, f"{ONE} cannot run on a cluster: its image is a recipe's"),
        ({ONE: pinned(1)}, f"{TWO} cannot run on a cluster: it names no image"),
        ({ONE: pinned(1), TWO: f"sha256:{'0' * 64}"}, f"{TWO} cannot run on a cluster: its image 'sha256:"),
        (None, f"{ONE} and 1 more tasks cannot run on a cluster"),
    ],
)
def test_what_no_cluster_can_run_is_named_beforehand(tmp_path: Path, images: dict[str, str] | None, said: str) -> None:
    """One sentence with the task, why, and the remedy; tasks that are left out do not matter."""
    with pytest.raises(UsageError) as caught:
        make_plan(campaign(tmp_path, images, **KUBERNETES))

    assert str(caught.value).startswith(said)
    assert "Give --images" in str(caught.value)
    if images and ONE in images:
        assert {ONE: pinned(1)} == images_of(make_plan(campaign(tmp_path, images, only=[ONE], **KUBERNETES)))


def test_rows_on_the_host_are_refused_and_mapped_names_are_not(tmp_path: Path) -> None:
    """`host` is this machine; a row's tag may be given its digest in the provider's config."""
    rows = [json.loads(line) for line in demo.write(tmp_path).taskset.read_text().splitlines()][:2]
    (one, two), images = [row["instance_id"] for row in rows], ("host", "docker.example/two:latest")
    write_lines(tmp_path / "rows.jsonl", [{**row, "image": image} for row, image in zip(rows, images, strict=True)])
    provider = {"type": "kubernetes", "images": {images[1]: pinned(2)}}
    asked = {"taskset": str(tmp_path / "rows.jsonl"), "run": "r", "provider": provider}

    with pytest.raises(UsageError, match=rf"{one} cannot run on a cluster: .* \(`host`\)"):
        make_plan(load(None, asked))
    assert {two: images[1]} == images_of(make_plan(load(None, {**asked, "only": [two]})))


@pytest.mark.anyio
async def test_another_image_for_a_task_with_a_verdict_is_another_run(tmp_path: Path) -> None:
    """The digest is part of what a verdict depends on; the registry that it comes from is not."""
    await run(campaign(tmp_path, {ONE: pinned(1), TWO: pinned(2)}), Grounds())

    moved = {ONE: pinned(1, "mirror.example/x"), TWO: pinned(2)}
    assert 2 == (await run(campaign(tmp_path, moved), Grounds())).asked.expected
    with pytest.raises(RunChanged, match=f"of {ONE} has changed"):
        await run(campaign(tmp_path, {ONE: pinned(9), TWO: pinned(2)}), Grounds())
