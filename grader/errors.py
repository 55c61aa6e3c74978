"""Errors of the grader's commands: what a person typed or handed in cannot be used as it is.

    GraderError          anything below
    ├── UsageError       flags, files or names that cannot be used; nothing was started (exit 2)
    │   ├── RunChanged   a run of that name exists and was made with other settings (exit 2)
    │   └── RunBusy      a run of that name is being written by another process (exit 2)
    ├── LedgerUnwritable the disk does not take a row or its log; what was recorded before stays (exit 4)
    └── OutputUnwritable standard output does not take a result; what was recorded stays (exit 4)

What a patch or its tests did is a value in the verdict, never one of these. Trouble with sandboxes is a
`sandbox.SandboxError`. Each message names the file, row or flag, and ends with what to do.
"""

from __future__ import annotations


class GraderError(Exception):
    """A command cannot do what was asked; the message says why and what to do."""


class UsageError(GraderError):
    """Flags, files or names cannot be used as they are. Nothing was started."""


class RunChanged(UsageError):
    """A run of that name exists with other settings. `changes` has one line for each difference."""

    def __init__(self, message: str, *, changes: tuple[str, ...]) -> None:
        super().__init__(message)
        self.changes = changes


class RunBusy(UsageError):
    """Another process writes the run of that name."""


class LedgerUnwritable(GraderError):
    """The run's disk refused a write. Gradings recorded before stay; the same command resumes from them."""


class OutputUnwritable(GraderError):
    """Standard output refused a result. What a run has recorded stays."""
