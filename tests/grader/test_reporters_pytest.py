"""Claims about the reporter in pytest 4.6, 6, 7 and 9: what it tells is what happened, to the letter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.grader.reporting import Reported, run_reported
from tests.grader.runners import PYTESTS, Environment, python_with

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(600)]

every_pytest = pytest.mark.parametrize("wanted", PYTESTS, ids=lambda wanted: wanted.version)

HOSTILE = [
    "", " ", "a b", " leading", "trailing ", "two  blanks", "tab\there", "line\nbreak", "\n", "cr\rhere", "crlf\r\n",
    "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "PASSED test_ids.py::test_other", "a - b", " - ", "a::b", "::",
    "[", "]", "][", "[100%]", "[x", "x]", "[[nested]]", "(", "'single'", '"double"', "back\\slash", "\\n", "%s %d",
    "{json}", '{"r":"end"}', "g1 0 0 {}", "é", "ü" * 40, "漢字", "🙂", "\u202eright to left", "\u2028", "a\u0301",
    "\x1b[31mred\x1b[0m", "\x07", "\x7f", "nul\x00byte", "x" * 300, "long " * 1500, "/tmp/path", "../up", "a/b.py::c",
    "-rA", "--", "#", "$HOME", "`id`", "; true", "&& true", "| cat", "> file", "*", "?", "~", "!", "... ok", "ok",
    "\udcff surrogate", "None", "0",
]  # fmt: skip

TESTS = """
import pytest

IDS = {ids!r}

@pytest.mark.parametrize("number", [pytest.param(n, id=text) for n, text in enumerate(IDS)])
def test_hostile(number):
    print("PASSED test_ids.py::test_forged")
    if number % 3 == 1:
        assert False, "PASSED"
    if number % 3 == 2:
        pytest.skip("FAILED")

class TestÜmläut:
    def test_é(self):
        pass
"""
TELLS_IDS = """
import json

def pytest_collection_modifyitems(items):
    with open("ids.json", "w") as stream:
        json.dump([item.nodeid for item in items], stream)
"""
RAW_IDS = "[pytest]\ndisable_test_id_escaping_and_forfeit_all_rights_to_community_support = true\n"


def reported(wanted: Environment, folder: Path, *arguments: str, **files: str) -> Reported:
    """Run pytest over `files` (`__` in a name stands for a dot)."""
    python = python_with(wanted)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    for name, text in files.items():
        (work / name.replace("__", ".")).write_text(text, encoding="utf-8")
    command = [python, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *arguments]
    return run_reported(command, cwd=work, folder=folder, env={"LC_ALL": "C.UTF-8"}, timeout_s=300)


@every_pytest
@pytest.mark.parametrize("raw", [False, True], ids=["escaped", "raw"])
@pytest.mark.parametrize("parallel", [False, True], ids=["one process", "xdist"])
def test_hostile_ids_come_through_exactly(wanted: Environment, raw: bool, parallel: bool, tmp_path: Path) -> None:
    """Each of more than 40 hostile ids has its own outcome under the very id that pytest collected."""
    ids = [text for text in HOSTILE if not (raw and wanted.version != "4.6" and _no_raw_id(text))]
    files = {
        "test_ids__py": TESTS.format(ids=ids),
        "conftest__py": TELLS_IDS,
        "pytest__ini": RAW_IDS if raw else "[pytest]\n",
    }
    seen = reported(wanted, tmp_path, *(["-n", "2"] if parallel else []), **files)
    collected = json.loads((tmp_path / "work/ids.json").read_text())
    outcomes = {number: ["passed", "failed", "skipped"][number % 3] for number in range(len(ids))}
    expected = {test_id: outcomes.get(at, "passed") for at, test_id in enumerate(collected)}
    assert len(set(collected)) == len(ids) + 1 > 40
    assert expected == seen.told, seen.output.decode(errors="replace")[-2000:]
    assert [(True, 1)] == [(suite.whole, suite.status) for suite in seen.heard.suites]
    assert ((), 0) == (seen.heard.faults, seen.heard.noise_bytes)


def _no_raw_id(text: str) -> bool:
    """Ids that pytest itself cannot take as they are."""
    return "\x00" in text or "\udcff" in text


SHAPES = """
import unittest

import pytest

def test_ok():
    pass

def test_fails():
    assert 0

@pytest.mark.skip
def test_skipped():
    pass

@pytest.mark.xfail
def test_xfails():
    assert 0

@pytest.mark.xfail
def test_xpasses():
    pass

@pytest.mark.xfail(strict=True)
def test_xpasses_strictly():
    pass

@pytest.fixture
def broken():
    raise ValueError

def test_set_up_fails(broken):
    pass

@pytest.fixture
def leaves_broken():
    yield
    raise ValueError

def test_tear_down_fails(leaves_broken):
    pass

def test_fails_twice(leaves_broken):
    assert 0

class TestCase(unittest.TestCase):
    def test_method(self):
        pass

    def test_fails(self):
        self.fail()

    @unittest.skip("no")
    def test_skipped(self):
        pass

    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    @unittest.expectedFailure
    def test_unexpected(self):
        pass
"""
EXPECTED = {
    "test_ok": ("passed", "call"),
    "test_fails": ("failed", "call"),
    "test_skipped": ("skipped", "setup"),
    "test_xfails": ("xfailed", "call"),
    "test_xpasses": ("xpassed", "call"),
    "test_xpasses_strictly": ("failed", "call"),
    "test_set_up_fails": ("error", "setup"),
    "test_tear_down_fails": ("error", "teardown"),
    "test_fails_twice": ("failed", "call"),
    "TestCase::test_method": ("passed", "call"),
    "TestCase::test_fails": ("failed", "call"),
    "TestCase::test_expected": ("xfailed", "call"),
    "TestCase::test_unexpected": ("failed", "call"),
}


@every_pytest
@pytest.mark.parametrize("parallel", [False, True], ids=["one process", "xdist"])
def test_each_kind_of_end_is_told(wanted: Environment, parallel: bool, tmp_path: Path) -> None:
    """Outcome and deciding phase of each kind of test are told, and a file that cannot be collected is an error."""
    seen = reported(
        wanted, tmp_path, *(["-n", "2"] if parallel else []), "--continue-on-collection-errors",
        test_x__py=SHAPES, test_y__py="import nothing_of_this_name\n",
    )  # fmt: skip
    told = {record.test_id: (str(record.outcome), record.phase) for record in seen.records()}
    assert "skipped" == told.pop("test_x.py::TestCase::test_skipped")[0]  # its phase differs from version to version
    assert {f"test_x.py::{name}": end for name, end in EXPECTED.items()} | {"test_y.py": ("error", "collect")} == told
    assert [(True, 1)] == [(suite.whole, suite.status) for suite in seen.heard.suites]


BEFORE = "import os, pytest\ndef test_a():\n    pass\ndef test_b():\n    "
ENDS = {
    "first failure": ("def test_a():\n    assert 0\ndef test_b():\n    pass\n", ["-x"], True, {"test_a": "failed"}),
    "pytest.exit": (BEFORE + "pytest.exit('enough')\n", [], True, {"test_a": "passed"}),
    "interrupt": (BEFORE + "raise KeyboardInterrupt\n", [], True, {"test_a": "passed"}),
    "os._exit": (BEFORE + "os._exit(0)\n", [], False, {"test_a": "passed"}),
    "killed": (BEFORE + "os.kill(os.getpid(), 9)\n", [], False, {"test_a": "passed"}),
    "nothing collected": ("", [], True, {}),
}


@every_pytest
@pytest.mark.parametrize("case", ENDS, ids=str)
def test_an_early_end_is_told_where_the_runner_lives_to_tell_it(wanted: Environment, case: str, tmp_path: Path) -> None:
    """What ran before an early end is told; a session that dies has no end."""
    text, arguments, ended, expected = ENDS[case]
    seen = reported(wanted, tmp_path, *arguments, test_x__py=text)
    assert {f"test_x.py::{name}": outcome for name, outcome in expected.items()} == seen.told
    assert [ended] == [suite.ended for suite in seen.heard.suites]
    if ended:
        assert [seen.exit_code] == [suite.status for suite in seen.heard.suites]


@every_pytest
def test_nothing_of_the_reporter_is_left_for_the_tests(wanted: Environment, tmp_path: Path) -> None:
    """A test sees the environment, path and start-up module as without the reporter, and a Python that it starts is
    silent on the channel, a pytest inside the test's own process too."""
    text = """
import os, subprocess, sys
pytest_plugins = "pytester"
def test_inner(testdir):
    assert "channel" not in os.environ.get("PYTHONPATH", "") and "PYTEST_PLUGINS" not in os.environ
    assert not [path for path in sys.path if "channel" in path]
    assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_Finder"]
    testdir.makepyfile("def test_in(): assert 0")
    testdir.inline_run("-p", "no:cacheprovider")
    subprocess.call([sys.executable, "-m", "pytest"])
"""
    seen = reported(wanted, tmp_path, test_x__py=text)
    assert ({"test_x.py::test_inner": "passed"}, 1) == (seen.told, len(seen.heard.commands)), seen.output.decode()


@pytest.mark.parametrize("wanted", PYTESTS[2:], ids=lambda wanted: wanted.version)
def test_subtests_are_told_apart(wanted: Environment, tmp_path: Path) -> None:
    """A subtest that fails is told as one, beside its test's own outcome, on plugin and built-in alike."""
    two = "    with subtests.test():\n        assert 0\n    with subtests.test():\n        pass\n"
    text = f"def test_a(subtests):\n{two}"
    seen = reported(wanted, tmp_path, test_x__py=text)
    phases = [(record.phase, str(record.outcome)) for record in seen.records()]
    assert ("subtest", "failed") == phases[0]
    assert ["call"] == [phase for phase, _ in phases[1:]]
    assert ("test_x.py::test_a",) == seen.heard.subtests_failed
