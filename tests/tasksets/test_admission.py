"""What the static check says of a task, each finding on a row that has the fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasksets.admission import Code, Finding, Known, Severity, ambiguous, check, is_truncated, refused
from tasksets.fields import Row
from tasksets.images import Recipe
from tasksets.schema import task_of
from tests.tasksets import rows

PINNED = {"image": "lamps/lamp-1@sha256:" + "0" * 64}


def findings(fields: dict[str, Any], known: Known | None = None) -> dict[Code, Finding]:
    return {finding.code: finding for finding in check(task_of(Row(fields, "line 1")), known or Known())}


def only(fields: dict[str, Any], known: Known | None = None) -> Finding:
    found = findings(fields, known)
    assert 1 == len(found)
    return next(iter(found.values()))


def test_a_sound_row_has_no_findings() -> None:
    """A pinned image, whole ids, a plan with a known parser: nothing to say."""
    assert {} == findings(rows.verified_2026(**PINNED), Known(parsers={"parse_log_pytest"}))


@pytest.mark.parametrize(
    ("changes", "code", "severity", "items"),
    [
        ({"FAIL_TO_PASS": "[]"}, Code.NO_F2P, Severity.ERROR, ()),
        ({"PASS_TO_PASS": "[]"}, Code.NO_P2P, Severity.WARNING, ()),
        ({"PASS_TO_PASS": '["t.py::a[x"]'}, Code.TRUNCATED_ID, Severity.WARNING, ("t.py::a[x",)),
        ({"PASS_TO_PASS": '["t::a", "t::a"]'}, Code.DUPLICATE_ID, Severity.WARNING, ("t::a",)),
        (
            {"PASS_TO_PASS": '["tests/test_switch.py::test_on"]'},
            Code.ID_IN_BOTH_LISTS,
            Severity.ERROR,
            ("tests/test_switch.py::test_on",),
        ),
        ({"PASS_TO_PASS": '["[100%]"]'}, Code.PROGRESS_MARK, Severity.WARNING, ("[100%]",)),
        ({"PASS_TO_PASS": '["[  7%]"]'}, Code.PROGRESS_MARK, Severity.WARNING, ("[  7%]",)),
        ({"patch": "I mended it"}, Code.BAD_PATCH, Severity.ERROR, ()),
        ({"patch": rows.PATCH.replace("-1,2", "-1,9")}, Code.BAD_PATCH, Severity.ERROR, ()),
        ({"test_patch": "see above"}, Code.BAD_TEST_PATCH, Severity.ERROR, ()),
        ({"patch": ""}, Code.NO_PATCH, Severity.WARNING, ()),
        ({"test_patch": rows.PATCH}, Code.SAME_FILE, Severity.WARNING, ("lamp/switch.py",)),
        ({"image": None}, Code.NO_IMAGE, Severity.ERROR, ()),
        ({"image": "lamps/lamp-1:latest"}, Code.UNPINNED_IMAGE, Severity.WARNING, ("lamps/lamp-1:latest",)),
        ({"eval_script": None}, Code.NO_PLAN, Severity.ERROR, ()),
        ({"log_parser": "parse_log_odd"}, Code.UNKNOWN_PARSER, Severity.ERROR, ("parse_log_odd",)),
    ],
)
def test_each_fault_is_found_alone(
    changes: dict[str, Any], code: Code, severity: Severity, items: tuple[str, ...]
) -> None:
    """One fault gives one finding, with its severity, what it is about, and a remedy."""
    finding = only(rows.verified_2026(**PINNED | changes), Known(parsers={"parse_log_pytest"}))

    assert (code, severity, items) == (finding.code, finding.severity, finding.items)
    assert "lamp__lamp-1" == finding.task_id
    assert ({"lamp__lamp-1"} if severity is Severity.ERROR else set()) == refused([finding])


def test_a_row_without_a_plan_says_what_would_give_one() -> None:
    """The remedy fits the schema: the 2024 rows can take plans from the official package."""
    assert "--specs swebench" in findings(rows.verified_2024())[Code.NO_PLAN].message
    assert "add `eval_script`" in findings(rows.swe_smith())[Code.NO_PLAN].message


def test_a_recipe_gives_image_plan_and_ids() -> None:
    """A task is checked as its recipe runs it, so that a bare row with a recipe is sound."""
    recipe = Recipe.model_validate(
        {
            "instance_id": "lamp__lamp-1",
            "python": "3.11",
            "source": {"kind": "sdist", "file": "lamp-1.2.tar.gz", "sha256": "0" * 64},
            "install": ["python -m pip install -e ."],
            "test_cmd": "python -m pytest -rA",
            "pass_to_pass": ["t::a[cut"],
        }
    )

    found = findings(rows.verified_2024(), Known({"lamp__lamp-1": recipe}, {"parse_log_pytest"}))

    assert {Code.TRUNCATED_ID} == set(found)


@pytest.mark.parametrize("image", ["host", "sha256:" + "a" * 64, "oci:images/lamp.tar", "r/x@sha256:" + "b" * 64])
def test_an_image_that_cannot_move_is_not_warned_of(image: str) -> None:
    """Digests, local archives and the host's own programs are what they are."""
    assert {} == findings(rows.verified_2026(image=image))


@pytest.mark.parametrize(
    ("test_id", "cut"),
    [
        ("t.py::a[x", True),
        ("t.py::a[", True),
        ("t.py::C::a[x-[y]-z", True),
        ("t.py::a[x]", False),
        ("t.py::a[[]", False),
        ("t.py::a", False),
        ("dir[1]/t.py::a", False),
        ("test_x (pkg.Case) [case", False),
        ("It isn't cut (only a docstring's first", False),
    ],
)
def test_only_pytest_parameters_can_be_cut(test_id: str, cut: bool) -> None:
    """Other runners write sentences, with any brackets and quotes."""
    assert cut is is_truncated(test_id)


def test_an_ambiguous_id_is_a_prefix_of_another() -> None:
    """A cut id that begins another listed id matches both; a whole id never counts."""
    ids = ("t::a[1", "t::a[1]", "t::b[x", "t::c", "t::cd")

    assert ("t::a[1",) == ambiguous(ids)


@given(st.lists(st.text("ab[]:x", max_size=8).map(lambda tail: "t::" + tail)))
def test_ambiguity_is_what_comparing_all_pairs_gives(ids: list[str]) -> None:
    """The sorted search finds exactly the pairs that the definition names."""
    expected = tuple(i for i in ids if is_truncated(i) and any(j != i and j.startswith(i) for j in ids))

    assert expected == ambiguous(ids)


GIT_TAKES = {
    "mode": "diff --git a/x.sh b/x.sh\nold mode 100644\nnew mode 100755\n",
    "rename": "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n",
    "empty file": "diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n",
    "text before": "hello\n" + rows.PATCH,
    "no final newline": rows.PATCH.rstrip("\n"),
    "mail signature": rows.PATCH + "-- \n2.39.0\n",
    "removed dashes": "--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n--- foo\n c\n",
    "carriage returns": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\r\n+b\u2028\r\n",
    "symlink": "diff --git a/l b/l\nnew file mode 120000\nindex 0000000..1de5659\n--- /dev/null\n+++ b/l\n"
    "@@ -0,0 +1 @@\n+target\n\\ No newline at end of file\n",
    "binary": "diff --git a/x b/x\nnew file mode 100644\nindex 0000000..1111111\nGIT binary patch\nliteral 4\n"
    "LcmZQzWMT#Y01f~L\n\nliteral 0\nHcmV?d00001\n\n",
}


@pytest.mark.parametrize("kind", GIT_TAKES)
def test_a_patch_that_git_takes_is_not_called_bad(kind: str) -> None:
    """Odd but good patches pass."""
    assert Code.BAD_PATCH not in findings(rows.verified_2026(patch=GIT_TAKES[kind]))


def test_a_renamed_test_file_counts_under_both_names() -> None:
    """A reference patch that edits what the test patch moves away touches the same file."""
    moved = "diff --git a/lamp/switch.py b/tests/s.py\nsimilarity index 100%\nrename from lamp/switch.py\n"
    moved += "rename to tests/s.py\n"

    assert ("lamp/switch.py",) == findings(rows.verified_2026(test_patch=moved))[Code.SAME_FILE].items


def test_findings_serialise_with_their_words() -> None:
    """Codes and severities are plain words in JSON."""
    finding = only(rows.verified_2026(PASS_TO_PASS="[]", **PINNED))

    assert '["no-pass-to-pass", "warning"]' == json.dumps([finding.code, finding.severity])
