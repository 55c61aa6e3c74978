"""The SWE-bench family: Verified and Lite (2026 and 2024 schemas) and Multilingual."""

from __future__ import annotations

from tasksets.errors import TaskSetError
from tasksets.evalscript import parse
from tasksets.fields import Row
from tasksets.task import EvalType, Task, TestPlan

REQUIRED = (
    "instance_id",
    "repo",
    "base_commit",
    "version",
    "patch",
    "test_patch",
    "problem_statement",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
)


def task_of(row: Row, schema: str) -> Task:
    """A row of any SWE-bench schema. Rows of 2024 name no image and no way to run their tests."""
    return Task(
        task_id=row.task_id(),
        repo=row.text("repo"),
        base_commit=row.text("base_commit"),
        version=row.text("version"),
        image=row.optional_text("image"),
        reference_patch=row.patch("patch"),
        test_patch=row.patch("test_patch"),
        fail_to_pass=row.ids("FAIL_TO_PASS"),
        pass_to_pass=row.ids("PASS_TO_PASS"),
        plan=_plan(row),
        problem_statement=row.text("problem_statement"),
        source=row.where,
        schema=schema,
        created_at=row.plain_text("created_at"),
    )


def _plan(row: Row) -> TestPlan | None:
    if row.optional_text("eval_script") is None:
        return None
    return parse(row.text("eval_script"), row.name).plan(row.text("log_parser"), _eval_type(row))


def _eval_type(row: Row) -> EvalType:
    match row.optional_text("eval_type"):
        case None | "pass_and_fail":
            return "pass_and_fail"
        case "fail_only":
            return "fail_only"
        case other:
            raise TaskSetError(
                f"{row.name}: field 'eval_type' is {other[:80]!r}; it must be pass_and_fail or fail_only"
            )
