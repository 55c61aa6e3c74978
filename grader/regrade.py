"""Judge a saved log again, without a sandbox: of the official harness, of a run of ours, or of someone else.

The log is evidence of what was printed, not of what ran: what it cannot show (whether the suite was cut off, its exit
status) is what the caller says.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.errors import UsageError
from grader.parsers import parse_log
from grader.parsers.frame import Framing
from grader.verdict import Judgement, judge
from tasksets import Task, open_taskset


@dataclass(frozen=True)
class Regraded:
    """A judgement, and what it was made from."""

    task_id: str
    parser: str
    log_sha256: str
    judgement: Judgement

    def as_json(self) -> dict[str, Any]:
        """One line of `--json`. `statuses` counts the tests of the log, not only the listed ones."""
        told = self.judgement
        return {
            "task_id": self.task_id,
            "outcome": told.outcome,
            "cause": told.cause,
            "reasons": told.reasons,
            "flags": told.flags,
            "fail_to_pass": {"success": told.fail_to_pass.success, "failure": told.fail_to_pass.failure},
            "pass_to_pass": {"success": told.pass_to_pass.success, "failure": told.pass_to_pass.failure},
            "missing": told.missing,
            "statuses": dict(sorted(Counter(told.statuses.values()).items())),
            "parser": self.parser,
            "log_sha256": self.log_sha256,
        }


def regrade(
    taskset: str,
    task_id: str,
    log: Path,
    *,
    parser: str | None = None,
    exit_code: int | None = None,
    framing: Framing = "auto",
) -> Regraded:
    """Judge the log in file `log` by the lists of task `task_id`. Raises GraderError or TaskSetError on bad input.

    `parser` wins over the one that the task's row names. `exit_code` is the test command's, None where it is not known.
    """
    task = open_taskset(taskset).get(task_id)
    name = parser or _parser_of(task)
    content = _read(log)
    judgement = judge(
        task.fail_to_pass,
        task.pass_to_pass,
        parse_log(name, content, framing=framing),
        exit_code=exit_code,
        eval_type=task.plan.eval_type if task.plan else "pass_and_fail",
    )
    return Regraded(task.task_id, name, hashlib.sha256(content).hexdigest(), judgement)


def _parser_of(task: Task) -> str:
    if task.plan is None:
        raise UsageError(f"{task.source}: task {task.task_id} names no log parser; give one with --parser")
    return task.plan.parser


def _read(log: Path) -> bytes:
    try:
        return log.read_bytes()
    except OSError as error:
        raise UsageError(f"{log}: the log cannot be read ({error.strerror}); name a file that holds one") from error
