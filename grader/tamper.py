"""Which of a patch's changes can steer the tests, rather than mend what they test. Pure.

Seen by path alone, and listed, never judged: an honest patch may well change `setup.cfg`. What the campaign's policy
makes of the list is `grader.grade`'s. A file that the task's reference patch changes too is part of the task: it is
listed and left. Not seen: a change to the product's own code that acts on the runner when a test imports it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
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
    words = _words(plan)
    named = frozenset(word.removeprefix("./").encode() for word in words if not word.startswith("-"))
    beside = _script_folders(words)
    found: dict[bytes, Tampering] = {}
    for change in patch.changes:
        for path in (change.old_path, change.new_path):
            kind = None if path is None else _kind(path, change, test_files, named, beside)
            if path is not None and kind is not None:
                found.setdefault(path, Tampering(kind, path, path in reference))
    return Findings(tuple(found.values()))


_CONFIGURATION = frozenset(
    {b"pytest.ini", b".pytest.ini", b"pytest.toml", b".pytest.toml", b"tox.ini", b"setup.cfg", b"pyproject.toml"}
    | {b".coveragerc", b"noxfile.py", b".env"}
)
_MODULE_FILE = rb"(?:\.pyc?|(?:\.[\w-]+)?\.so)"
"""What a module's file ends in: source, byte code alone, or an extension for whichever Python."""
_START_UP = re.compile(rb"(?:.*/)?(?:(?:site|user)customize(?:" + _MODULE_FILE + rb"|/.*)?|[^/]*\.pth|pyvenv\.cfg)")
_SHADOW = re.compile(rb"(\w+)(?:" + _MODULE_FILE + rb"|/.*" + _MODULE_FILE + rb")?")
_PLUGIN = re.compile(rb"(?:.*/)?(?:[^/]+\.(?:egg-info|dist-info)/.*|[^/]+\.egg-link|setup\.py)")
_RUNNER = re.compile(
    rb"(?:tests?/)?run_?tests?\.(?:py|sh)|bin/(?:test|doctest)|sympy/(?:testing|utilities)/(?:runtests|pytest)\.py"
    rb"|django/test/runner\.py"
)
_SEPARATOR = re.compile(r".*;|&&|\|\|?|&")
_BEFORE_A_SCRIPT = re.compile(r"\w+=.*|(?:.*/)?python[0-9.]*|-.*|env|exec|time", re.DOTALL)
"""Words of a command that stand before what it runs."""
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


def _kind(
    path: bytes, change: FileChange, test_files: Collection[bytes], named: Collection[bytes], beside: Collection[bytes]
) -> Kind | None:
    name = path.rpartition(b"/")[2]
    kinds = (
        (Kind.TASK_TEST, path in test_files),
        (Kind.START_UP, _START_UP.fullmatch(path) or (change.kind is not ChangeKind.MODIFY and _shadows(path, beside))),
        (Kind.CONFTEST, name == b"conftest.py"),
        (Kind.CONFIGURATION, name in _CONFIGURATION),
        (Kind.PLUGIN, _PLUGIN.fullmatch(path)),
        (Kind.RUNNER, _RUNNER.fullmatch(path) or path in named),
        (Kind.TEST, _TEST.fullmatch(path)),
    )
    return next((kind for kind, applies in kinds if applies), None)


def _shadows(path: bytes, beside: Collection[bytes]) -> bool:
    """Whether a new file hides a module that the tests need: it is where they start, or beside a script that they run.

    A name without an ending may be a link to a directory.
    """
    tails = (path, *(path.removeprefix(folder) for folder in beside if path.startswith(folder)))
    found = (_SHADOW.fullmatch(tail) for tail in tails)
    return any(match is not None and match[1] in _MODULES for match in found)


def _words(plan: TestPlan) -> list[str]:
    """The words of the test command."""
    try:
        return shlex.split(plan.test_command, comments=True)
    except ValueError:
        return plan.test_command.split()


def _script_folders(words: Sequence[str]) -> frozenset[bytes]:
    """Where the scripts lie that the command runs: Python looks for modules there first."""
    folders, before = set(), True
    for word in words:
        if _SEPARATOR.fullmatch(word):
            before = True
        elif before and not _BEFORE_A_SCRIPT.fullmatch(word):
            before = False
            folder, slash, _ = word.removeprefix("./").rpartition("/")
            folders |= {f"{folder}/".encode()} if slash else set()
    return frozenset(folders)


def _listed(found: Collection[Tampering]) -> str:
    shown = ", ".join(str(one) for one in list(found)[:5])
    return shown + (f" and {len(found) - 5} more" if len(found) > 5 else "")
