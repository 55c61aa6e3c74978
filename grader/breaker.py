"""When infrastructure fails so often that a run should stop and wait for somebody to mend it. Pure.

Law: it looks at gradings as they end, and at nothing else. A single task whose image is broken does not stop the
others: failures of fewer than three tasks count only when nothing else is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from grader.record import Grading
from grader.verdict import Cause

WINDOW = 20
"""Gradings that it looks back on. Fewer never trip it."""
SHARE = 0.5
"""Of the window, at which it trips."""
TASKS = 3
"""Different tasks that must have failed, unless all of the window failed."""

_OURS = frozenset({Cause.INFRASTRUCTURE, Cause.RESULTS_LOST})


@dataclass(frozen=True)
class Breaker:
    """The last gradings that ended."""

    recent: tuple[tuple[str, str | None], ...] = ()
    """Task, and why infrastructure left it without a verdict (None: it did not), oldest first."""

    def after(self, grading: Grading) -> Breaker:
        """The breaker once `grading` has ended."""
        why = (grading.reasons[0] if grading.reasons else "") if grading.cause in _OURS else None
        return replace(self, recent=(*self.recent, (grading.task_id, why))[-WINDOW:])

    def tripped(self) -> str | None:
        """Why the run should stop, in a sentence that ends with what to do. None: go on."""
        failed = [(task_id, why) for task_id, why in self.recent if why is not None]
        if len(self.recent) < WINDOW or len(failed) < SHARE * WINDOW:
            return None
        if len(failed) < WINDOW and _different(failed) < TASKS:
            return None
        task_id, why = failed[-1]
        return (
            f"{len(failed)} of the last {WINDOW} gradings were lost to infrastructure, such as {task_id}: {why};"
            " what has ended is kept. Mend it, then give the same command again"
        )


def _different(failed: Sequence[tuple[str, str | None]]) -> int:
    return len({task_id for task_id, _ in failed})
