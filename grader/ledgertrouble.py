"""What goes wrong with a ledger's file, told by what is to be done: make room for it, or restore it from a copy."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grader.errors import GraderError, LedgerUnwritable, UsageError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""What the system says of a disk that takes nothing more, whoever asks."""

NOT_OURS = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""SQLite's codes for a file whose content is not what our statements ask for."""


def primary(error: sqlite3.Error) -> int:
    """SQLite's result code of an error, without what the extended code adds; 0 for one of the module's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def unwritable(path: Path, error: OSError | sqlite3.Error) -> LedgerUnwritable:
    """The disk takes nothing more, or nothing of ours."""
    if isinstance(error, OSError):
        why, forbidden = error.strerror, error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}
    else:
        why, forbidden = str(error), primary(error) in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}
    remedy = "let this user write it and its directory" if forbidden else "make room or mend the disk"
    return LedgerUnwritable(f"{path}: cannot be written ({why}); {remedy}, then give the same command again")


def damaged(path: Path, error: Exception) -> UsageError:
    """No grader wrote what is there."""
    said = str(error).partition("\n")[0]
    return UsageError(f"{path}: cannot be read as a ledger ({said}); restore it from a copy")


def refused(path: Path, error: sqlite3.Error) -> GraderError:
    """What SQLite's refusal means: a table or column that is not ours, or a disk that takes nothing more."""
    return damaged(path, error) if primary(error) in NOT_OURS else unwritable(path, error)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn content that no grader wrote, as after an edit by hand, into `UsageError`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise damaged(path, error) from error
    except sqlite3.DatabaseError as error:
        if primary(error) in NOT_OURS:
            raise damaged(path, error) from error
        raise


def file_at(path: Path) -> tuple[int, int] | None:
    """Which file has that name; None: there is none to be seen."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def deleted(path: Path) -> LedgerUnwritable:
    """What a writer has open is not what stands at `path` any more."""
    return LedgerUnwritable(
        f"{path}: was deleted or replaced while the run wrote it, and what it held went with it;"
        " restore it from a copy, or give the same command again to begin anew"
    )
