"""`grader tasks`: list, show and check the tasks of a task set. Nothing is run and nothing is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from grader.console import Exit, printable, write_table

if TYPE_CHECKING:
    from tasksets.admission import Known
    from tasksets.checkup import Checkup
    from tasksets.task import Task
    from tasksets.taskset import TaskSet

tasks_app = App(name="tasks", help="List, show and check the tasks of a task set.")

TaskSetName = Annotated[str, Parameter(help="A .jsonl, .json or .parquet file, or the id of a data set on the hub.")]
Split = Annotated[str | None, Parameter(help="Split of a hub data set; `test`, or the only one, when left out.")]
Specs = Annotated[
    Literal["row", "swebench"],
    Parameter(help="Where a plan comes from when a row has none: nowhere, or the installed `swebench` 4.1 package."),
]
Only = Annotated[str | None, Parameter(help="Task ids, separated by commas.")]
Repo = Annotated[str | None, Parameter(help="Only tasks of this repository, such as `django/django`.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object per line.")]


@tasks_app.command(name="list")
def list_tasks(
    taskset: TaskSetName,
    *,
    split: Split = None,
    specs: Specs = "row",
    only: Only = None,
    repo: Repo = None,
    json_lines: Json = False,
) -> int:
    """List tasks: id, repository, version, number of tests, image, and whether the row says how to run them."""
    tasks = list(_selected(_open(taskset, split, specs), only, repo))
    if json_lines:
        _write_json_lines(_summary(task) for task in tasks)
        return Exit.DONE
    headers = ("TASK", "REPO", "VERSION", "F2P", "P2P", "PLAN", "IMAGE")
    write_table(headers, [_cells(task) for task in tasks], sys.stdout)
    return Exit.DONE


@tasks_app.command(name="show")
def show_task(
    task_id: str,
    taskset: TaskSetName,
    *,
    split: Split = None,
    specs: Specs = "row",
    json_lines: Json = False,
) -> int:
    """Show all that a task's row says: where it is from, its image, plan, test ids and patches."""
    task = _open(taskset, split, specs).get(task_id)
    if json_lines:
        _write_json_lines([_whole(task)])
    else:
        sys.stdout.write(printable(_described(task)))
    return Exit.DONE


@tasks_app.command(name="check")
def check_tasks(
    taskset: TaskSetName,
    *,
    split: Split = None,
    specs: Specs = "row",
    only: Only = None,
    repo: Repo = None,
    recipes: Annotated[
        Path | None, Parameter(help="JSONL of image recipes: a task with one is checked as the recipe runs it.")
    ] = None,
    json_lines: Json = False,
) -> int:
    """Check rows without running anything. Exit status 3 when some tasks would be refused."""
    from tasksets.checkup import check_all

    opened = _open(taskset, split, specs)
    checkup = check_all(opened, _chosen(opened, only), repo=repo, known=_known(recipes))
    if json_lines:
        _write_json_lines(checkup.lines())
    else:
        _write_checkup(checkup)
    sys.stderr.write(checkup.sentence() + "\n")
    return Exit.REFUSED if checkup.refused else Exit.DONE


def _open(taskset: str, split: str | None, specs: Literal["row", "swebench"]) -> TaskSet:
    from tasksets.taskset import open_taskset

    return open_taskset(taskset, split=split, specs=specs)


def _known(recipes: Path | None) -> Known:
    from grader.parsers import known_parsers
    from tasksets.admission import Known
    from tasksets.images import recipes_by_task

    found = recipes_by_task(recipes) if recipes is not None else {}
    return Known(recipes=found, parsers=frozenset(known_parsers()))


def _chosen(taskset: TaskSet, only: str | None) -> tuple[str, ...]:
    """The ids that `--only` names, each looked up; all of them without it."""
    if only is None:
        return taskset.ids()
    return taskset.require([word.strip() for word in only.split(",") if word.strip()])


def _selected(taskset: TaskSet, only: str | None, repo: str | None) -> Iterator[Task]:
    for task_id in _chosen(taskset, only):
        task = taskset.get(task_id)
        if repo in (None, task.repo):
            yield task


def _cells(task: Task) -> tuple[str, ...]:
    counts = (str(len(task.fail_to_pass)), str(len(task.pass_to_pass)))
    return (task.task_id, task.repo, task.version, *counts, "yes" if task.plan else "no", task.image or "-")


def _summary(task: Task) -> dict[str, object]:
    return {
        "task_id": task.task_id,
        "repo": task.repo,
        "version": task.version,
        "fail_to_pass": len(task.fail_to_pass),
        "pass_to_pass": len(task.pass_to_pass),
        "image": task.image,
        "plan": task.plan is not None,
        "parser": task.plan.parser if task.plan else None,
        "schema": task.schema,
        "source": task.source,
    }


def _whole(task: Task) -> dict[str, object]:
    from dataclasses import asdict

    return {
        **asdict(task),
        "reference_patch": task.reference_patch.decode(),
        "test_patch": task.test_patch.decode(),
        "digest": task.digest,
    }


def _described(task: Task) -> str:
    facts = {
        "task": task.task_id,
        "from": f"{task.source} ({task.schema})",
        "digest": task.digest,
        "repository": f"{task.repo} {task.version}".strip(),
        "base commit": task.base_commit or "-",
        "image": task.image or "none; give recipes",
    }
    if task.plan:
        facts |= {"directory": task.plan.workdir, "parser": task.plan.parser}
    lines = [f"{name:<12} {value}" for name, value in facts.items()]
    if task.plan:
        lines += _block("setup", task.plan.setup) + _block("test command", task.plan.test_command)
        lines += _block("test files", "\n".join(task.plan.test_files))
    else:
        lines += _block("plan", "none: the row does not say how to run its tests")
    lines += _block(f"fail to pass ({len(task.fail_to_pass)})", "\n".join(task.fail_to_pass))
    lines += _block(f"pass to pass ({len(task.pass_to_pass)})", "\n".join(task.pass_to_pass))
    lines += _block("problem statement", task.problem_statement)
    lines += _block("reference patch", task.reference_patch.decode())
    lines += _block("test patch", task.test_patch.decode())
    return "\n".join(lines) + "\n"


def _block(title: str, text: str) -> list[str]:
    body = [f"  {line}" for line in text.rstrip("\n").split("\n")] if text.strip() else ["  (none)"]
    return ["", title, *body]


def _write_checkup(checkup: Checkup) -> None:
    rows = [
        (total.code, total.severity, str(total.tasks), str(total.items or "-"), f"{total.first_task}: {total.message}")
        for total in checkup.totals()
    ]
    write_table(("FINDING", "SEVERITY", "TASKS", "ITEMS", "FIRST"), rows, sys.stdout)


def _write_json_lines(objects: Iterator[dict[str, object]] | list[dict[str, object]]) -> None:
    for value in objects:
        sys.stdout.write(json.dumps(value) + "\n")
