"""Claims about the reporter in unittest, Django's runner and sympy's, and about Pythons that run no tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grader.reporting import run_reported
from tests.grader.runners import Environment, find_python, python_with

PYTHONS = {
    line: path for line in ("3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13") if (path := find_python(line))
}
every_python = pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)

CASES = """
import os, subprocess, sys, unittest

class A(unittest.TestCase):
    def test_documented(self):
        "One line of words."
    def test_fails(self):
        self.fail()
    def test_raises(self):
        1 / 0
    @unittest.skip("no")
    def test_skipped(self):
        pass
    @unittest.expectedFailure
    def test_expected(self):
        self.fail()
    @unittest.expectedFailure
    def test_unexpected(self):
        pass
    def test_subtests(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(1, number)
    def test_runs_another_suite(self):
        class Inner(unittest.TestCase):
            def test_inner(self):
                self.fail()
        with open(os.devnull, "w") as null:
            suite = unittest.TestLoader().loadTestsFromTestCase(Inner)
            unittest.TextTestRunner(stream=null).run(suite)
            subprocess.call([sys.executable, "-m", "unittest", "nothing"], stderr=null)
    def test_prints(self):
        print("ok\\ntest_absent (t.A) ... ok")

class B(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise ValueError
    def test_never(self):
        pass
"""
ENDS = {
    "t.A.test_documented": "passed",
    "t.A.test_fails": "failed",
    "t.A.test_raises": "error",
    "t.A.test_skipped": "skipped",
    "t.A.test_expected": "xfailed",
    "t.A.test_unexpected": "xpassed",
    "t.A.test_subtests": "failed",
    "t.A.test_runs_another_suite": "passed",
    "t.A.test_prints": "passed",
    "setUpClass (t.B)": "error",
}


@every_python
def test_unittest_is_heard(python: str, tmp_path: Path) -> None:
    """Each test of `python -m unittest` has its outcome and the name that the log gives it; suites that tests run
    themselves are not heard."""
    (tmp_path / "t.py").write_text(CASES)
    seen = run_reported([python, "-m", "unittest", "-v", "t"], cwd=tmp_path, folder=tmp_path)
    assert seen.told == ENDS, seen.output.decode()
    assert ("t.A.test_subtests (number=1)",) == seen.heard.subtests_failed
    assert [("unittest", True, 1)] == [(suite.runner, suite.whole, suite.status) for suite in seen.heard.suites]
    names = {record.test_id: record.name for record in seen.records()}
    assert names["t.A.test_documented"].endswith("\nOne line of words.")
    assert all(f"{name} ..." in seen.output.decode() for name in names.values() if name.startswith("test_d"))


STAND_IN = """
import subprocess, sys, threading, unittest
from pathlib import Path

def stand_in():
    case = type("A", (unittest.TestCase,), {"test_a": lambda self: None, "__module__": "t"})
    unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite([case("test_a")]))

class Base(unittest.TestCase):
    def __init__(self, *args):
        super().__init__(*args)
        if WHERE == "loading":
            stand_in()
            sys.exit(0)

if WHERE == "importing":
    stand_in()
elif WHERE == "thread":
    thread = threading.Thread(target=stand_in)
    thread.start()
    thread.join()
elif WHERE == "process":
    Path("elsewhere").mkdir()
    Path("elsewhere/t.py").write_text(
        "import unittest\\nclass A(unittest.TestCase):\\n    def test_a(self):\\n        pass\\n"
    )
    subprocess.call([sys.executable, "-m", "unittest", "-v", "t"], cwd="elsewhere")
if WHERE != "loading":
    sys.exit(0)
"""


@every_python
@pytest.mark.parametrize("where", ["importing", "loading", "thread", "process"])
def test_no_session_of_the_product_stands_in_for_the_tests(python: str, where: str, tmp_path: Path) -> None:
    """Where a product runs a suite of its own making while its tests are loaded, and ends Python before they begin, no
    session is heard: a runner was started and never began."""
    (tmp_path / "product.py").write_text(f"WHERE = {where!r}\n{STAND_IN}")
    (tmp_path / "t.py").write_text(
        "import product\nclass A(product.Base):\n    def test_a(self):\n        self.fail()\n"
    )
    seen = run_reported([python, "-m", "unittest", "-v", "t"], cwd=tmp_path, folder=tmp_path)
    assert b"ok\n" in seen.output, seen.output
    assert (0, 1, ()) == (seen.exit_code, len(seen.heard.commands), seen.heard.suites)


@pytest.mark.parametrize(
    "spelling", [["-W", "ignore", "-m", "unittest"], ["-Bm", "unittest"], ["-bmunittest"]], ids=" ".join
)
def test_a_runner_is_known_however_it_is_spelt(spelling: list[str], tmp_path: Path) -> None:
    """No stand-in in another process is heard either where switches stand before the runner's name."""
    (tmp_path / "product.py").write_text(f"WHERE = 'process'\n{STAND_IN}")
    (tmp_path / "t.py").write_text("import product\n")
    seen = run_reported([sys.executable, *spelling, "-v", "t"], cwd=tmp_path, folder=tmp_path)
    assert b"ok\n" in seen.output, seen.output
    assert (0, 1, ()) == (seen.exit_code, len(seen.heard.commands), seen.heard.suites)


@every_python
def test_a_python_that_runs_no_tests_only_says_that_it_started(python: str, tmp_path: Path) -> None:
    """A script runs as without the reporter, with the image's own sitecustomize, and nothing is claimed."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import sys\nsys.theirs = True\n")
    script = "import sys; print(sys.theirs, sys.path[1:2], 'sitecustomize' in sys.modules); import unittest"
    env = {"PYTHONPATH": f"{tmp_path / 'channel'}{os.pathsep}{tmp_path / 'own'}"}
    seen = run_reported([python, "-c", script], cwd=tmp_path, folder=tmp_path, env=env)
    bare = subprocess.run(
        [python, "-c", script], capture_output=True, env={"PYTHONPATH": str(tmp_path / "own")}, check=True
    )
    assert bare.stdout == seen.output
    assert (1, (), (), 0) == (len(seen.heard.commands), seen.heard.suites, seen.heard.faults, seen.heard.noise_bytes)


@pytest.mark.skipif(find_python("2.7") is None, reason="no Python 2.7 on this machine")
def test_an_old_python_is_left_alone(tmp_path: Path) -> None:
    """Python 2.7 runs its script as if nothing were there."""
    python = find_python("2.7")
    assert python is not None
    seen = run_reported([python, "-c", "print(1)"], cwd=tmp_path, folder=tmp_path)
    assert (b"1\n", 0, ()) == (seen.output, seen.exit_code, seen.heard.commands)


def test_two_sessions_of_one_command_are_both_heard(tmp_path: Path) -> None:
    """A command that runs a runner twice is heard twice, and a process that runs it twice in turn as well."""
    (tmp_path / "t.py").write_text(
        "import unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n        pass\n"
    )
    twice = "import unittest, t\nfor n in range(2):\n    unittest.main('t', exit=False)"
    command = f'"{sys.executable}" -c "{twice}"; "{sys.executable}" -m unittest t'
    seen = run_reported(["sh", "-c", command], cwd=tmp_path, folder=tmp_path)
    assert [(True, 0)] * 3 == [(suite.whole, suite.status) for suite in seen.heard.suites]
    assert 2 == len(seen.heard.commands)


DJANGO = {
    "settings.py": "SECRET_KEY = 'x'\nINSTALLED_APPS = []\nDATABASES = {'default': {'ENGINE': "
    "'django.db.backends.sqlite3', 'NAME': ':memory:'}}\n",
    "tests.py": "from django.test import SimpleTestCase, TestCase\n"
    "class A(TestCase):\n    def test_a(self):\n        'Words.'\n    def test_b(self):\n        self.fail()\n"
    "class B(SimpleTestCase):\n    def test_c(self):\n        1 / 0\n    def test_d(self):\n        pass\n",
}


@pytest.mark.parametrize("parallel", ["1", "2"])
@pytest.mark.parametrize("version", ["2.2", "4.2"])
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(600)
def test_djangos_runner_is_heard(version: str, parallel: str, tmp_path: Path) -> None:
    """Django's own runner is heard, in one process and in parallel ones."""
    python = python_with(Environment("django", version, "3.8", (f"Django=={version}.*", "tblib")))
    for name, text in DJANGO.items():
        (tmp_path / name).write_text(text)
    command = [python, "-m", "django", "test", "--settings", "settings", "-v", "2", "--parallel", parallel, "tests"]
    seen = run_reported(command, cwd=tmp_path, folder=tmp_path, env={"PYTHONPATH": f"{tmp_path}/channel:{tmp_path}"})
    expected = {"A.test_a": "passed", "A.test_b": "failed", "B.test_c": "error", "B.test_d": "passed"}
    assert {f"tests.{name}": outcome for name, outcome in expected.items()} == seen.told, seen.output.decode()
    assert [("unittest", True, 1)] == [(suite.runner, suite.whole, suite.status) for suite in seen.heard.suites]


SYMPY = """
from sympy.testing.pytest import XFAIL, skip
def test_passes():
    pass
def test_fails():
    assert False
def test_raises():
    1 / 0
def test_skips():
    skip("no")
@XFAIL
def test_xfails():
    assert False
"""


@pytest.mark.parametrize(("version", "module"), [("1.1.1", "utilities"), ("1.10.1", "testing")])
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(600)
def test_sympys_runner_is_heard(version: str, module: str, tmp_path: Path) -> None:
    """sympy's own runner is heard, also where it runs the tests in a child process."""
    python = python_with(Environment("sympy", version, "3.9", (f"sympy=={version}", "setuptools==68.0.0")))
    where = "import sympy, os; print(os.path.dirname(sympy.__file__))"
    package = Path(
        subprocess.run([python, "-W", "ignore", "-c", where], capture_output=True, check=True).stdout.decode().strip()
    )
    file = package / f"core/tests/test_graders_{os.getpid()}.py"
    file.write_text(SYMPY.replace("sympy.testing", f"sympy.{module}"))
    try:
        script = f"import sys, sympy; sys.exit(not sympy.test('{file.relative_to(package.parent)}', verbose=True))"
        seen = run_reported([python, "-W", "ignore", "-c", script], cwd=package.parent, folder=tmp_path, timeout_s=300)
    finally:
        file.unlink()
    expected = {"passes": "passed", "fails": "failed", "raises": "error", "skips": "skipped", "xfails": "xfailed"}
    told = {test_id.partition(":test_")[2]: outcome for test_id, outcome in seen.told.items()}
    assert expected == told, seen.output.decode()
    assert [("sympy", True, 1)] == [(suite.runner, suite.whole, suite.status) for suite in seen.heard.suites]
