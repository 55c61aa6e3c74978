"""What the tests said: the types of a verdict, and the pure judge.

`resolved` equals what the official SWE-bench rules (5.0.2) give on the same test results. Anything stricter is a flag
beside it. Why there is no verdict is a typed cause. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TestStatus(StrEnum):
    """What one test did, in the words that logs use."""

    __test__ = False

    PASSED = "PASSED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    ERROR = "ERROR"
    XFAIL = "XFAIL"


class Outcome(StrEnum):
    """How one grading ended."""

    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    PATCH_REJECTED = "patch_rejected"
    TIMED_OUT = "timed_out"
    NO_VERDICT = "no_verdict"


class Cause(StrEnum):
    """Why there is no verdict. Never a score."""

    INFRASTRUCTURE = "infrastructure"
    CONDITIONS_CONTRADICTED = "conditions_contradicted"
    TASK_REFUSED = "task_refused"
    RESULTS_LOST = "results_lost"


@dataclass(frozen=True)
class TestLists:
    """The ids of one list of the task, split by what became of them, as the official report does."""

    __test__ = False

    success: tuple[str, ...]
    failure: tuple[str, ...]


@dataclass(frozen=True)
class Judgement:
    """What `judge` says of one suite run."""

    outcome: Outcome
    fail_to_pass: TestLists
    pass_to_pass: TestLists
    reasons: tuple[str, ...]
    """One sentence each, for a person: why not resolved, or why no verdict."""
    flags: tuple[str, ...] = ()
    """Stricter findings that do not change the outcome."""
    cause: Cause | None = None
    """Set when, and only when, the outcome is `no_verdict`."""
    statuses: Mapping[str, TestStatus] = field(default_factory=dict)
