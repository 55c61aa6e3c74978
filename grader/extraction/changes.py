"""What an agent changed against the image, and which of it a patch carries. Pure.

A patch carries files and links: their bytes and whether a file is executable. What it cannot carry is left as the image
ships it; comparing the trees then finds it and says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from grader.extraction.baseline import Baseline
from grader.extraction.exclusions import Exclusions, excluded_at
from sandbox.manifest import Entry, Kind, Manifest, check

_SHA256 = re.compile(r"[0-9a-f]{64}")
_EXECUTABLE = 0o100


@dataclass(frozen=True)
class Change:
    """A path whose file or link differs. None: there is none."""

    path: bytes
    old: Entry | None
    new: Entry | None


@dataclass(frozen=True)
class Excluded:
    """What was left out at one path by declaration."""

    path: bytes
    entries: int
    """How many paths at and below it differ from the image."""
    size: int
    """Bytes of the files among them, as they are now."""


@dataclass(frozen=True)
class Changes:
    """What a patch is to carry, and what stays behind by declaration."""

    carried: tuple[Change, ...]
    excluded: tuple[Excluded, ...]


def find(baseline: Baseline, now: Manifest, exclusions: Exclusions) -> Changes:
    """Split what differs between the image and now."""
    pattern, most = exclusions.pattern(), exclusions.max_file_mib << 20
    carried = []
    excluded: dict[bytes, Excluded] = {}
    for path, (old, new) in check(baseline.manifest, now).items():
        top = excluded_at(path, pattern, baseline.tracked)
        if top is not None:
            so_far = excluded.get(top, Excluded(top, 0, 0))
            size = new.size if new is not None and new.kind is Kind.FILE else 0
            excluded[top] = Excluded(top, so_far.entries + 1, so_far.size + size)
        elif (git_mode(old) != git_mode(new) or (old and old.content) != (new and new.content)) and _can_be_carried(
            old, new, most
        ):
            carried.append(Change(path, as_git(old), as_git(new)))
    changes = [change for change in carried if change.old is not None or change.new is not None]
    return Changes(tuple(_unobstructed(changes, baseline.manifest)), tuple(excluded.values()))


def _unobstructed(changes: list[Change], shipped: Manifest) -> list[Change]:
    """Without what git could not put in its place, and would refuse the whole patch for: a file where a directory
    stays, because something below it is not carried; a file below what is no directory and stays."""
    gone = {change.path for change in changes if change.new is None}

    def stands_free(change: Change) -> bool:
        if change.new is None:
            return True
        at = shipped.get(change.path)
        if at is not None and at.kind is Kind.DIRECTORY and not _goes(change.path, shipped, gone):
            return False
        above = _above(change.path)
        return all(shipped[path].kind is Kind.DIRECTORY or path in gone for path in above if path in shipped)

    return [change for change in changes if stands_free(change)]


def _goes(directory: bytes, shipped: Manifest, gone: set[bytes]) -> bool:
    """Whether git makes room where a directory is: when the last file in it goes, or when it is empty."""
    below = [path for path in shipped if path.startswith(directory + b"/")]
    emptied = {parent for path in below if path in gone for parent in _above(path)}
    return not below or (directory in emptied and all(path in gone or path in emptied for path in below))


def _above(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:length]) for length in range(1, len(parts))]


def git_mode(entry: Entry | None) -> bytes | None:
    """The mode as git writes it; None for what is neither a file nor a link."""
    if entry is None or entry.kind not in (Kind.FILE, Kind.LINK):
        return None
    if entry.kind is Kind.LINK:
        return b"120000"
    return b"100755" if entry.mode & _EXECUTABLE else b"100644"


def as_git(entry: Entry | None) -> Entry | None:
    """The entry where git has a word for it: a file or a link."""
    return None if git_mode(entry) is None else entry


def _can_be_carried(old: Entry | None, new: Entry | None, most: int) -> bool:
    """Whether both sides can be written as git objects of a bearable size, or are a directory or nothing."""
    for entry in (old, new):
        if entry is None or entry.kind in (Kind.DIRECTORY, Kind.LINK):
            continue
        if entry.kind is not Kind.FILE or entry.size > most or not _SHA256.fullmatch(entry.digest):
            return False
    return True
