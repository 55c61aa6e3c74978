"""The frozen `Task`: one SWE-bench-style instance, as every other room sees it. No I/O here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

EvalType = Literal["pass_and_fail", "fail_only"]
"""`pass_and_fail`: a listed test that the log does not name did not pass. `fail_only`: the log names failures only."""


@dataclass(frozen=True)
class TestPlan:
    """How a task's tests are run and how their log is read."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    setup: str
    """Shell text that runs after the patches are applied and before the tests, in the same shell: activating the
    environment, re-installing. May be empty."""
    test_command: str
    """Shell text whose output is the log and whose exit status is the suite's."""
    parser: str
    """Name of the log parser, such as `parse_log_django`."""
    workdir: str = "/testbed"
    """Where the repository lies in the image."""
    eval_type: EvalType = "pass_and_fail"
    """How a listed test that the log does not name is judged."""
    test_files: tuple[str, ...] = ()
    """Files, relative to `workdir`, that the row's own script checks out of the base commit before the test patch. Some
    rows name files that the base commit lacks, because the test patch adds them or moves another there (18 rows of
    Verified). Not part of the digest: they follow from the test patch."""
    reference_s: float | None = None
    """Seconds that the tests took with the reference patch where the task was made. None: not known. A suite that
    outlives a limit near it says nothing of the patch. Not part of the digest."""


@dataclass(frozen=True)
class Task:
    """A task. Patches are bytes as the row's UTF-8 text gives them; test ids are as the row lists them."""

    task_id: str
    repo: str
    base_commit: str
    version: str
    image: str | None
    """Image reference, None where the row names none and no recipe was given."""
    reference_patch: bytes
    test_patch: bytes
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    plan: TestPlan | None
    """None: the row does not say how to run its tests."""
    problem_statement: str
    source: str
    """Where the row came from: file and line, or data set and split; for messages."""
    schema: str
    """Name of the schema the row was read as, such as `swebench-2026`."""
    created_at: str = ""
    """When the change was made, as the row says it (ISO 8601). Empty where it does not. Not part of the digest."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over all that decides a verdict: patches, ids, plan, base commit. Not the image."""
        plan = self.plan
        parts = [
            self.task_id,
            self.base_commit,
            self.test_patch.hex(),
            list(self.fail_to_pass),
            list(self.pass_to_pass),
            [plan.setup, plan.test_command, plan.parser, plan.workdir, plan.eval_type] if plan else None,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
