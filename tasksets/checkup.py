"""A whole task set checked, row by row, with its totals. A row that cannot be typed is a finding, not the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasksets.admission import Code, Finding, Known, Severity, check, refused
from tasksets.errors import TaskSetError
from tasksets.taskset import TaskSet


@dataclass(frozen=True)
class Total:
    """One code over the whole set."""

    code: Code
    severity: Severity
    tasks: int
    items: int
    """Test ids, files or names that the findings are about, in all."""
    first_task: str
    message: str


@dataclass(frozen=True)
class Checkup:
    """What was found, task by task, in the set's order. A task without findings has an empty tuple."""

    source: str
    revision: str
    findings: dict[str, tuple[Finding, ...]]

    @property
    def refused(self) -> frozenset[str]:
        """Ids of the tasks that would be refused."""
        return refused(finding for found in self.findings.values() for finding in found)

    def totals(self) -> tuple[Total, ...]:
        """One line per code that was found: errors first, then in the order of the table of codes."""
        by_code = {code: [f for found in self.findings.values() for f in found if f.code is code] for code in Code}
        totals = [
            Total(code, first.severity, len(found), sum(len(f.items) for f in found), first.task_id, first.message)
            for code, found in by_code.items()
            for first in found[:1]
        ]
        return tuple(sorted(totals, key=lambda total: total.severity is not Severity.ERROR))

    def sentence(self) -> str:
        """The denominators: checked = refused + admitted."""
        checked, refused_count = len(self.findings), len(self.refused)
        noted = sum(1 for task_id, found in self.findings.items() if found and task_id not in self.refused)
        return (
            f"{self.source}: {checked} tasks checked, {refused_count} would be refused, "
            f"{checked - refused_count} admitted ({noted} of them with warnings)"
        )

    def lines(self) -> Iterator[dict[str, object]]:
        """One JSON-ready object per task."""
        for task_id, found in self.findings.items():
            yield {
                "task_id": task_id,
                "refused": task_id in self.refused,
                "findings": [
                    {"code": f.code, "severity": f.severity, "message": f.message, "items": list(f.items)}
                    for f in found
                ],
            }


def check_all(taskset: TaskSet, task_ids: Sequence[str], *, repo: str | None = None, known: Known) -> Checkup:
    """Check these tasks; with `repo`, only those of that repository and those whose rows cannot be read."""
    findings: dict[str, tuple[Finding, ...]] = {}
    for task_id in task_ids:
        try:
            task = taskset.get(task_id)
        except TaskSetError as error:
            findings[task_id] = (Finding(task_id, Code.UNREADABLE_ROW, str(error)),)
            continue
        if repo in (None, task.repo):
            findings[task_id] = check(task, known)
    return Checkup(taskset.source, taskset.revision, findings)
