"""SWE-rebench V2: any language, an image by name, and an `install_config` that says how tests are run and read.

Its images are built at the base commit with the install commands already run, and its own evaluation runs only the
test commands after the patches. The repository lies in the image at `/` followed by the repository's short name.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasksets.errors import TaskSetError
from tasksets.fields import Row
from tasksets.jsontext import JsonFault, load
from tasksets.task import Task, TestPlan

REQUIRED = (
    "instance_id",
    "repo",
    "base_commit",
    "patch",
    "test_patch",
    "problem_statement",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "install_config",
    "image_name",
)


def task_of(row: Row, schema: str) -> Task:
    """A row of SWE-rebench V2."""
    return Task(
        task_id=row.task_id(),
        repo=row.text("repo"),
        base_commit=row.text("base_commit"),
        version=row.optional_text("version") or "",
        image=row.optional_text("image_name"),
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
    config = row.fields["install_config"]
    if isinstance(config, str):
        try:
            config = load(config)
        except JsonFault as fault:
            raise TaskSetError(f"{row.name}: field 'install_config' {fault}") from fault
    if not isinstance(config, Mapping):
        raise TaskSetError(f"{row.name}: field 'install_config' must be an object with test_cmd and log_parser")
    commands, parser = config.get("test_cmd"), config.get("log_parser")
    if not commands or not isinstance(parser, str):
        return None
    lines = row.strings("install_config.test_cmd", [commands] if isinstance(commands, str) else commands)
    return TestPlan(
        setup="",
        test_command="\n".join(lines),
        parser=parser,
        workdir=f"/{row.text('repo').rsplit('/', 1)[-1]}",
    )
