"""Errors of the task-set room.

    TaskSetError    a file, a row or an id that cannot be used: what the caller gave, never infrastructure

The message is one sentence that names the file, and the row or field where there is one, and says what to do.
Commands print it and exit with status 2.
"""

from __future__ import annotations


class TaskSetError(Exception):
    """Something that the caller named cannot be read as tasks. `str(error)` is what a person should see."""
