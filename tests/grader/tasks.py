"""A little task of our own: a repository with a fault, the tests that show it, and patches of every kind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox import LocalConfig, Provider, Sandbox, SandboxSpec, open_provider
from tasksets.task import Task, TestPlan

SOURCE = """\
def total(numbers):
    result = 0
    for number in numbers:
        result -= number
    return result


def mean(numbers):
    return total(numbers) / len(numbers)


def first(numbers):
    return numbers[0]
"""
MENDED = SOURCE.replace("result -= number", "result += number")

TESTS = """\
from sums import first


def test_first():
    assert first([3, 4]) == 3
"""
NEW_TESTS = (
    TESTS.replace("import first", "import first, total")
    + """\


def test_total():
    assert total([3, 4]) == 7
"""
)
OTHER_TESTS = """\
def test_other():
    assert True
"""
RUNNER = """\
import importlib
import sys

sys.path.insert(0, ".")
failed = 0
for path in sys.argv[1:]:
    module = importlib.import_module(path[:-3].replace("/", "."))
    for name in sorted(name for name in dir(module) if name.startswith("test_")):
        try:
            getattr(module, name)()
            print("PASSED %s::%s" % (path, name))
        except AssertionError:
            failed += 1
            print("FAILED %s::%s" % (path, name))
sys.exit(failed > 0)
"""
"""Runs test functions with nothing but the standard library, and tells of them as `pytest -rA` does."""

COMMAND = "python3 run_tests.py tests/test_sums.py"


def git(repo: Path, *arguments: str) -> bytes:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", *who, "-C", str(repo), *arguments], check=True, capture_output=True, env=environment
    ).stdout


@dataclass(frozen=True)
class Repo:
    """The task's repository on this host, at its base."""

    path: Path

    def diff(self, edit: Callable[[Path], object]) -> bytes:
        """The patch that `edit`, done in the work tree, amounts to. The tree is then as before."""
        edit(self.path)
        git(self.path, "add", "--all", "--force")
        patch = git(self.path, "diff", "--cached", "--binary", "HEAD")
        git(self.path, "reset", "--quiet", "--hard")
        git(self.path, "clean", "-qfdx")
        return patch

    @property
    def reference(self) -> bytes:
        return self.diff(lambda root: (root / "sums.py").write_text(MENDED))

    @property
    def test_patch(self) -> bytes:
        def edit(root: Path) -> None:
            (root / "tests/test_sums.py").write_text(NEW_TESTS)
            (root / "tests/test_other.py").write_text(OTHER_TESTS)

        return self.diff(edit)


def make_repo(path: Path) -> Repo:
    """A repository with a fault in `sums.py`, committed."""
    (path / "tests").mkdir(parents=True)
    (path / "sums.py").write_text(SOURCE)
    (path / "tests/__init__.py").write_text("")
    (path / "tests/test_sums.py").write_text(TESTS)
    (path / "run_tests.py").write_text(RUNNER)
    (path / "README").write_text("Sums.\n")
    git(path, "init", "--quiet")
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--message", "base")
    return Repo(path)


def make_task(repo: Repo, *, setup: str = "", command: str = COMMAND) -> Task:
    return Task(
        task_id="toy__sums-1",
        repo="toy/sums",
        base_commit=git(repo.path, "rev-parse", "HEAD").decode().strip(),
        version="1",
        image="host",
        reference_patch=repo.reference,
        test_patch=repo.test_patch,
        fail_to_pass=("tests/test_sums.py::test_total",),
        pass_to_pass=("tests/test_sums.py::test_first",),
        plan=TestPlan(setup=setup, test_command=command, parser="parse_log_pytest"),
        problem_statement="total([3, 4]) is -7",
        source="tests",
        schema="toy",
    )


@asynccontextmanager
async def toy(folder: Path) -> AsyncIterator[tuple[Repo, Seeded]]:
    """The repository, and an open local provider whose sandboxes hold it. All state lies in `folder`."""
    repo = make_repo(folder / "repo")
    async with open_provider(LocalConfig(state_dir=folder / "state")) as provider:
        yield repo, Seeded(provider, repo.path)


@dataclass
class Seeded:
    """A provider whose sandboxes hold the repository at /testbed, as a task's own image would."""

    provider: Provider
    repo: Path
    name: str = "seeded"
    made: int = 0

    @asynccontextmanager
    async def sandbox(self, spec: SandboxSpec, *, acquire_timeout_s: float = 120.0) -> AsyncIterator[Sandbox]:
        async with self.provider.sandbox(spec, acquire_timeout_s=acquire_timeout_s) as box:
            self.made += 1
            tar = subprocess.run(["tar", "-C", str(self.repo), "-c", "."], check=True, capture_output=True).stdout
            await box.run("mkdir -p /testbed && tar -C /testbed -x", timeout_s=30, stdin=tar, session="seed")
            yield box
