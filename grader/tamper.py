"""Which of a patch's changes can steer the tests, rather than mend what they test. Pure.

Seen by path alone, and listed, never judged: an honest patch may well change `setup.cfg`. What the campaign's policy
makes of the list is `grader.grade`'s. A file that the task's reference patch changes too is part of the task: it is
listed and left. Not seen: a change to the product's own code that acts on the runner when a test imports it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from grader.patch import ChangeKind, FileChange, Patch
from tasksets.task import TestPlan

TamperPolicy = Literal["report", "strip", "refuse"]
"""`report`: grade what was submitted, and list it. `strip`: grade the patch without such changes, and as submitted in a
second sandbox; the first is the verdict. `refuse`: reject the patch."""


class Kind(StrEnum):
    """What a changed file can do to the tests."""

    TASK_TEST = "task_test"
    """A test file of the task's own. The task's version always takes its place."""
    TEST = "test"
    """Another test, or what lies beside the tests and may be imported by them."""
    CONFIGURATION = "configuration"
    """Says how the runner behaves."""
    CONFTEST = "conftest"
    PLUGIN = "plugin"
    """Registers plugins of the runner when the project is installed."""
    START_UP = "start_up"
    """Runs in every Python that starts, or stands in for a module of the runner or of the standard library."""
    RUNNER = "runner"
    """The runner itself, or a file that the test command names."""


@dataclass(frozen=True)
class Tampering:
    """One change."""

    kind: Kind
    path: bytes
    in_reference: bool
    """The task's reference patch changes this file too."""

    def __str__(self) -> str:
        return f"{self.kind} {self.path.decode('utf-8', 'backslashreplace')}"


@dataclass(frozen=True)
class Findings:
    """All such changes of one patch, in the patch's order."""

    changes: tuple[Tampering, ...]

    @property
    def steering(self) -> tuple[Tampering, ...]:
        """Those that count against a patch: not undone anyway, and not the task's own matter."""
        return tuple(one for one in self.changes if one.kind is not Kind.TASK_TEST and not one.in_reference)

    def flags(self) -> Iterator[str]:
        """One flag for the task's tests, one for other tests, one for the rest."""
        undone = [one for one in self.changes if one.kind is Kind.TASK_TEST]
        tests = [one for one in self.changes if one.kind is Kind.TEST]
        rest = [one for one in self.changes if one.kind not in (Kind.TASK_TEST, Kind.TEST)]
        for name, what, found in (
            ("patch_touches_tests", "the submission's changes to the task's test files were undone", undone),
            ("patch_changes_tests", "the submission changes other test files", tests),
            ("patch_steers_tests", "the submission changes files that can steer the test runner", rest),
        ):
            if found:
                yield f"{name}: {what}: {_listed(found)}."


def find(patch: Patch, plan: TestPlan, *, test_files: Collection[bytes], reference: Collection[bytes] = ()) -> Findings:
    """List the tampering in `patch`. `test_files` are the task's own, `reference` what its reference patch touches."""
    named = _named(plan)
    found: dict[bytes, Tampering] = {}
    for change in patch.changes:
        for path in (change.old_path, change.new_path):
            kind = None if path is None else _kind(path, change, test_files, named)
            if path is not None and kind is not None:
                found.setdefault(path, Tampering(kind, path, path in reference))
    return Findings(tuple(found.values()))


_CONFIGURATION = frozenset(
    {b"pytest.ini", b".pytest.ini", b"pytest.toml", b".pytest.toml", b"tox.ini", b"setup.cfg", b"pyproject.toml"}
    | {b".coveragerc", b"noxfile.py", b".env"}
)
_START_UP = re.compile(rb"(?:.*/)?(?:(?:site|user)customize(?:\.py|/.*)|[^/]*\.pth|pyvenv\.cfg)")
_PLUGIN = re.compile(rb"(?:.*/)?(?:[^/]+\.(?:egg-info|dist-info)/.*|[^/]+\.egg-link|setup\.py)")
_RUNNER = re.compile(
    rb"(?:tests?/)?run_?tests?\.(?:py|sh)|bin/(?:test|doctest)|sympy/(?:testing|utilities)/(?:runtests|pytest)\.py"
    rb"|django/test/runner\.py"
)
_TEST = re.compile(rb"(?:tests?|testing)/.*|(?:.*/)?(?:test_[^/]*|[^/]*_test|tests)\.py")
_MODULES = frozenset(name.encode() for name in sys.stdlib_module_names) | {
    b"pytest",
    b"_pytest",
    b"py",
    b"pluggy",
    b"iniconfig",
    b"xdist",
    b"execnet",
}


def _kind(path: bytes, change: FileChange, test_files: Collection[bytes], named: Collection[bytes]) -> Kind | None:
    name = path.rpartition(b"/")[2]
    kinds = (
        (Kind.TASK_TEST, path in test_files),
        (Kind.START_UP, _START_UP.fullmatch(path) or (change.kind is not ChangeKind.MODIFY and _shadows(path))),
        (Kind.CONFTEST, name == b"conftest.py"),
        (Kind.CONFIGURATION, name in _CONFIGURATION),
        (Kind.PLUGIN, _PLUGIN.fullmatch(path)),
        (Kind.RUNNER, _RUNNER.fullmatch(path) or path in named),
        (Kind.TEST, _TEST.fullmatch(path)),
    )
    return next((kind for kind, applies in kinds if applies), None)


def _shadows(path: bytes) -> bool:
    """Whether a new file, in the directory that the tests start in, hides a module that they need."""
    head, _, rest = path.partition(b"/")
    return (head.removesuffix(b".py") if not rest else head) in _MODULES and path.endswith((b".py", b".so"))


def _named(plan: TestPlan) -> frozenset[bytes]:
    """The paths that the test command names."""
    try:
        words = shlex.split(plan.test_command, comments=True)
    except ValueError:
        words = plan.test_command.split()
    return frozenset(word.removeprefix("./").encode() for word in words if not word.startswith("-"))


def _listed(found: Collection[Tampering]) -> str:
    shown = ", ".join(str(one) for one in list(found)[:5])
    return shown + (f" and {len(found) - 5} more" if len(found) > 5 else "")
