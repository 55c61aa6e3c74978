"""SWE-Gym: SWE-bench's fields without an image; about half of its published rows carry scripts of their own."""

from __future__ import annotations

from dataclasses import replace

from tasksets import swebench
from tasksets.evalscript import parse_pair
from tasksets.fields import Row
from tasksets.task import Task, TestPlan


def task_of(row: Row, schema: str) -> Task:
    """A row of SWE-Gym. It has a plan where it carries `setup_script` and a `test_script` that runs pytest."""
    return replace(swebench.task_of(row, schema), plan=_plan(row))


def _plan(row: Row) -> TestPlan | None:
    if row.optional_text("setup_script") is None or row.optional_text("test_script") is None:
        return None
    script = parse_pair(row.text("setup_script"), row.text("test_script"), row.name)
    plan = script.plan("parse_log_pytest")
    # The rows name no parser. Where the command is pytest's, its summary lines are what can be read.
    return plan if "pytest" in plan.test_command.split("\n")[-1] else None
