"""Plans for rows that carry none, out of the official `swebench` package, where it is installed. Optional.

Versions before 5 hold, for each repository and version, how its tests are run; from them the package writes the same
script that 2026 rows carry as `eval_script`. Nothing is fetched.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tasksets.errors import TaskSetError
from tasksets.evalscript import parse
from tasksets.task import EvalType, Task, TestPlan

_REMEDY = "install `swebench>=4.1,<5` beside the grader, or leave the choice out"


def require_official() -> None:
    """Raise TaskSetError unless a version of `swebench` with specifications is installed. Imports nothing of it."""
    try:
        found = version("swebench")
    except PackageNotFoundError as error:
        raise TaskSetError(f"plans were asked for from the swebench package, which is missing; {_REMEDY}") from error
    if int(found.split(".")[0]) >= 5:
        raise TaskSetError(f"swebench {found} is installed, which holds no plans any more; {_REMEDY}")


def with_official_plan(task: Task) -> Task:
    """`task`; if it has no plan, with the one that the official package gives to its repository and version.

    The plan stays None for a repository or version that the package does not know. Raises TaskSetError where the
    package cannot be imported.
    """
    return task if task.plan is not None else replace(task, plan=_plan(task))


def _plan(task: Task) -> TestPlan | None:
    constants = _module("swebench.harness.constants")
    scripts = _module("swebench.harness.test_spec.create_scripts")
    parsers = _module("swebench.harness.log_parsers").MAP_REPO_TO_PARSER
    specs = constants.MAP_REPO_VERSION_TO_SPECS.get(task.repo, {}).get(task.version)
    if specs is None or task.repo not in parsers:
        return None
    test_patch = task.test_patch.decode()
    row = {
        "instance_id": task.task_id,
        "repo": task.repo,
        "version": task.version,
        "base_commit": task.base_commit,
        "test_patch": test_patch,
    }
    lines = scripts.make_eval_script_list(row, specs, "testbed", "/testbed", task.base_commit, test_patch)
    script = "\n".join(["#!/bin/bash", "set -uxo pipefail", *lines])
    eval_type: EvalType = "fail_only" if task.repo in constants.FAIL_ONLY_REPOS else "pass_and_fail"
    name = f"{task.task_id} (script by the swebench package)"
    return parse(script, name).plan(parsers[task.repo].__name__, eval_type)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TaskSetError(f"{name} cannot be imported ({error}); {_REMEDY}") from error
