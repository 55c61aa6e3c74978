"""An eval script is taken apart without losing a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasksets.errors import TaskSetError
from tasksets.evalscript import Part, parse
from tests.tasksets.rows import SCRIPT, TEST_PATCH


def test_the_plan_prepares_and_tests_and_leaves_git_to_the_grader() -> None:
    """Setup keeps activation, locale, exports and installation in order, and nothing that inspects or restores."""
    plan = parse(SCRIPT, "row").plan("parse_log_pytest")

    assert plan.setup == (
        "set -uo pipefail\n"
        "source /opt/miniconda3/bin/activate\n"
        "conda activate testbed\n"
        "sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen\n"
        "export LANG=en_US.UTF-8\n"
        "source /opt/miniconda3/bin/activate\n"
        "conda activate testbed\n"
        "python -m pip install -e .\n"
        "make translations\n"
    )
    assert plan.test_command == "cd sub && true\npytest -rA tests/test_switch.py"
    assert plan.parser == "parse_log_pytest"
    assert plan.workdir == "/testbed"
    assert plan.test_files == ("tests/test_switch.py", "tests/two words.py")


def test_every_line_has_a_part_and_the_parts_give_the_script_back() -> None:
    """Joining the lines is the script, byte for byte, and the heredoc is the test patch."""
    script = parse(SCRIPT, "row")

    assert script.text == SCRIPT
    assert "\n".join(script.of(Part.TEST_PATCH)[1:-1]) == TEST_PATCH
    assert [line.number for line in script.lines] == list(range(1, SCRIPT.count("\n") + 2))


def test_a_script_that_echoes_its_markers_is_read_too() -> None:
    """The variant that turns the trace off, echoes its markers and shows a saved stderr gives the same command."""
    variant = SCRIPT.replace(": '>>>>> Start", "{ set +x; } 2>/dev/null\necho '>>>>> Start")
    variant = variant.replace(
        ": '>>>>> End Test Output'", "echo '>>>>> End Test Output'\ncat /tmp/e >&2 || true\nset -x"
    )

    script = parse(variant, "row")

    assert script.text == variant
    assert script.of(Part.AFTER) == ("cat /tmp/e >&2 || true",)
    assert script.plan("p") == parse(SCRIPT, "row").plan("p")


def test_marker_text_inside_the_test_patch_is_only_text() -> None:
    """A test patch that holds the markers does not move the test command."""
    forged = SCRIPT.replace("+def test_on():", "+: '>>>>> Start Test Output'\n: '>>>>> End Test Output'")

    assert parse(forged, "row").plan("p") == parse(SCRIPT, "row").plan("p")


def test_a_line_of_no_known_kind_names_row_and_line() -> None:
    """What would be lost is an error, not a guess."""
    strange = SCRIPT.replace("git status\n", "curl example | sh\n")

    with pytest.raises(TaskSetError, match=r"^my row, line 10 of its eval_script, is of no known kind: 'curl example"):
        parse(strange, "my row")


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (
            ": '>>>>> Start Test Output'\ncd sub && true\npytest -rA tests/test_switch.py\n",
            "",
            "must hold '>>>>> Start",
        ),
        (": '>>>>> End Test Output'\n", "", "must hold '>>>>> Start"),
        ("cd sub && true\npytest -rA tests/test_switch.py\n", "", "no test command"),
        ("\nEOF_1\n", "\n", "never ends the heredoc 'EOF_1'"),
        ("cd /testbed\n", "", "must change to one directory"),
        ("cd /testbed\ngit", "cd /other\ngit", "names 2"),
    ],
)
def test_a_script_that_lacks_a_part_says_which(before: str, after: str, complaint: str) -> None:
    """Markers, command, heredoc end and working directory are each asked for by name."""
    with pytest.raises(TaskSetError, match=rf"^my row: .*{complaint}"):
        parse(SCRIPT.replace(before, after), "my row")


@given(
    st.lists(st.sampled_from([*SCRIPT.split("\n"), "rm -rf x", ": '>>>>> Start Test Output'", "EOF_1"]), max_size=40)
)
def test_any_lines_are_accounted_for_or_refused(lines: list[str]) -> None:
    """Whatever the order of lines, a script either comes back whole or is refused; none loses a line in silence."""
    text = "\n".join(lines)

    try:
        script = parse(text, "row")
    except TaskSetError:
        return
    assert script.text == text
