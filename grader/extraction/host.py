"""Trouble of this host in an extraction is an error of ours: a full disk, a temporary folder that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from grader.errors import GraderError


class HostFailed(GraderError):
    """This host did not do its part. The sandbox stands, and can be asked again."""


@contextmanager
def files_of_ours() -> Iterator[None]:
    """Where only this host's own files are touched beside sandboxes: their trouble is raised as `HostFailed`."""
    try:
        yield
    except OSError as error:
        raise HostFailed(f"this host could not keep an extraction's files ({error}); look at its disk") from error
