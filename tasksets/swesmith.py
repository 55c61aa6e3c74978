"""SWE-smith: the row's `patch` makes the bug, so that the reference patch is its reverse.

The official harness applies the row's patch with `git apply --reverse` when it grades the reference. The rows have no
test patch (the tests are in the image) and do not say how to run them.
"""

from __future__ import annotations

from tasksets.fields import Row
from tasksets.reverse import reverse_patch
from tasksets.task import Task

REQUIRED = ("instance_id", "repo", "patch", "FAIL_TO_PASS", "PASS_TO_PASS", "image_name")


def task_of(row: Row, schema: str) -> Task:
    """A row of SWE-smith. Older rows have no base commit or problem statement; these become empty."""
    return Task(
        task_id=row.task_id(),
        repo=row.text("repo"),
        base_commit=row.optional_text("base_commit") or "",
        version="",
        image=row.optional_text("image_name"),
        reference_patch=reverse_patch(row.patch("patch"), row.name),
        test_patch=b"",
        fail_to_pass=row.ids("FAIL_TO_PASS"),
        pass_to_pass=row.ids("PASS_TO_PASS"),
        plan=None,
        problem_statement=row.optional_text("problem_statement") or "",
        source=row.where,
        schema=schema,
        created_at=row.plain_text("created_at"),
    )
