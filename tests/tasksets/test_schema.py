"""Rows of every schema become one kind of Task, and a row that cannot says why."""

from __future__ import annotations

from typing import Any

import pytest

from tasksets.errors import TaskSetError
from tasksets.fields import Row
from tasksets.schema import task_of
from tests.tasksets import rows

WHERE = "set.jsonl, line 7"


def typed(fields: dict[str, Any]) -> Any:
    return task_of(Row(fields, WHERE))


@pytest.mark.parametrize(
    ("fields", "schema", "planned", "image"),
    [
        (rows.verified_2024(), "swebench-2024", False, None),
        (rows.verified_2024(difficulty="1-4 hours"), "swebench-2024", False, None),
        (rows.verified_2026(), "swebench-2026", True, "lamps/lamp-1:latest"),
        (rows.multilingual(), "swebench-multilingual", True, "lamps/lamp-1:latest"),
        (rows.swe_gym(), "swe-gym", False, None),
        (rows.swe_gym(**rows.swe_gym_scripts()), "swe-gym", True, None),
        (rows.swe_smith(), "swe-smith", False, "swesmith.x86_64.lamp__lamp.01234567"),
        (rows.rebench_v2(), "swe-rebench-v2", True, "lamps/lamp-c:1"),
    ],
)
def test_each_schema_is_recognised_by_its_fields(
    fields: dict[str, Any], schema: str, planned: bool, image: str | None
) -> None:
    """The schema is named, and image and plan are there exactly where the row gives them."""
    task = typed(fields)

    assert (schema, planned, image) == (task.schema, task.plan is not None, task.image)
    assert fields["instance_id"] == task.task_id
    assert task.source == WHERE


def test_ids_may_be_a_list_or_json_in_a_string() -> None:
    """Both spellings give the same ids, in the row's order."""
    as_text, as_list = (
        typed(rows.verified_2024(FAIL_TO_PASS='["b", "a"]')),
        typed(rows.swe_gym(FAIL_TO_PASS=["b", "a"])),
    )

    assert ("b", "a") == as_text.fail_to_pass == as_list.fail_to_pass


def test_patches_are_the_bytes_of_the_rows_text() -> None:
    """No newline is added, removed or changed."""
    text = "diff --git a/x b/x\r\n--- a/x\n+é\u2028 no end"

    assert text.encode() == typed(rows.verified_2024(patch=text)).reference_patch


def test_the_eval_type_reaches_the_plan_and_the_digest() -> None:
    """A row whose log names failures only is another task to the judge; a type that is not known is refused."""
    both, failures = typed(rows.verified_2026()), typed(rows.verified_2026(eval_type="fail_only"))

    assert ("pass_and_fail", "fail_only") == (both.plan.eval_type, failures.plan.eval_type)
    assert both.digest != failures.digest
    with pytest.raises(TaskSetError, match="field 'eval_type' is 'odd'; it must be"):
        typed(rows.verified_2026(eval_type="odd"))


def test_the_reference_of_swe_smith_is_its_patch_turned_around() -> None:
    """The row's patch makes the bug; what mends it removes what was added."""
    reference = typed(rows.swe_smith()).reference_patch

    assert b"\n-    return presses % 2 == 1\n+    return presses > 1\n" in reference


def test_swe_rebench_runs_its_own_commands_in_its_own_directory() -> None:
    """Commands keep their order, installation stays in the image, and the repository lies under its short name."""
    plan = typed(rows.rebench_v2()).plan

    assert ("", "make tests\nmake check", "parse_log_make", "/lamp-c") == (
        plan.setup,
        plan.test_command,
        plan.parser,
        plan.workdir,
    )


def test_swe_rebench_takes_its_config_as_json_too() -> None:
    """Parquet copies of the set hold the configuration as text."""
    plan = typed(rows.rebench_v2(install_config='{"test_cmd": "make check", "log_parser": "p"}')).plan

    assert ("make check", "p") == (plan.test_command, plan.parser)


def test_scripts_of_swe_gym_become_a_plan() -> None:
    """Free-form installation is kept, and the test script's last line is the command."""
    plan = typed(rows.swe_gym(**rows.swe_gym_scripts())).plan

    assert "echo x >> reqs; pip install .; hash -r\n" in plan.setup
    assert ("pytest -rA tests/test_switch.py", "parse_log_pytest") == (plan.test_command, plan.parser)
    assert plan.test_files == ("tests/test_switch.py",)


def test_an_unknown_row_says_what_the_nearest_schema_needs() -> None:
    """The message names the row, the schema and each missing field."""
    row = rows.verified_2024()
    del row["test_patch"], row["version"]

    with pytest.raises(TaskSetError, match=r"line 7\): .*nearest is .*lacks version, test_patch; add"):
        typed(row)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"patch": None}, "field 'patch' must be a string and is missing"),
        ({"patch": ["x"]}, "field 'patch' must be a string and is a list"),
        ({"repo": 3}, "field 'repo' must be a string and is a number"),
        ({"patch": "x\ud800"}, "field 'patch' holds a lone surrogate at character 1"),
        ({"FAIL_TO_PASS": "tests::a"}, "field 'FAIL_TO_PASS' must be a list of test ids, and is not JSON: Expecting"),
        (
            {"FAIL_TO_PASS": "[" * 200_000},
            "field 'FAIL_TO_PASS' must be a list of test ids, and is JSON that is nested",
        ),
        ({"FAIL_TO_PASS": '"a"'}, "field 'FAIL_TO_PASS' must be a list of strings and is a string"),
        ({"PASS_TO_PASS": "[1]"}, "item 0 of field 'PASS_TO_PASS' must be a string and is a number"),
        ({"PASS_TO_PASS": ["\udc80"]}, "item 0 of field 'PASS_TO_PASS' holds a lone surrogate"),
        ({"PASS_TO_PASS": None}, "field 'PASS_TO_PASS' must be a list of strings and is missing"),
        ({"version": True}, "field 'version' must be a string and is true or false"),
    ],
)
def test_a_wrong_field_is_named_with_its_row(changes: dict[str, Any], complaint: str) -> None:
    """Row, field and what was found stand in one sentence."""
    with pytest.raises(TaskSetError) as caught:
        typed(rows.verified_2024(**changes))

    assert str(caught.value).startswith(f"lamp__lamp-1 ({WHERE}): {complaint}")


@pytest.mark.parametrize("task_id", ["", "../../etc/passwd", "a b", "a\nb", ".hidden", "-rf", "x" * 201, "a/b", "ä"])
def test_an_id_that_could_not_name_a_file_is_refused(task_id: str) -> None:
    """Ids name directories and sandboxes later, so that only one plain word will do."""
    with pytest.raises(TaskSetError, match="must be one word"):
        typed(rows.verified_2024(instance_id=task_id))
