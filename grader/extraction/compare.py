"""How the tree that a patch makes differs from the agent's, in words, and which of it can change a test. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from grader.extraction.changes import git_mode
from grader.extraction.exclusions import Exclusions, excluded_at
from sandbox.manifest import Entry, Kind, Manifest, check

_SPECIAL_BITS = 0o7400
"""Set-id and sticky, and whether the owner may read."""


class What(StrEnum):
    """What about a path the patch does not give."""

    CONTENT = "content"
    EXECUTABLE = "executable"
    KIND = "kind"
    EMPTY_DIRECTORY = "empty_directory"
    NESTED_REPOSITORY = "nested_repository"
    SUBMODULE = "submodule"
    SPECIAL_FILE = "special_file"
    MOUNT = "mount"
    SPECIAL_MODE = "special_mode"
    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    MOVING = "moving"
    REFUSED = "refused"
    PERMISSIONS = "permissions"
    OWNER = "owner"
    HARD_LINK = "hard_link"


NOTES = frozenset({What.PERMISSIONS, What.OWNER, What.HARD_LINK})
"""Said, and no reason to call a patch unfaithful: the bytes are the agent's, and git carries no more of a mode."""

_WORDLESS = {"unread": What.UNREADABLE, "large": What.TOO_LARGE, "moving": What.MOVING, "deep": What.UNREADABLE}
_BY_KIND = {
    Kind.GIT: What.NESTED_REPOSITORY,
    Kind.MOUNT: What.MOUNT,
    **dict.fromkeys(
        (Kind.FIFO, Kind.SOCKET, Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE, Kind.UNKNOWN), What.SPECIAL_FILE
    ),
}


@dataclass(frozen=True)
class Difference:
    """One thing about one path that the patch does not carry."""

    path: bytes
    what: What
    detail: str

    @property
    def matters(self) -> bool:
        """Whether the patch is not faithful for it."""
        return self.what not in NOTES

    def __str__(self) -> str:
        return f"{self.path.decode('utf-8', 'backslashreplace')}: {self.what}: {self.detail}"


def differences(
    wanted: Manifest,
    given: Manifest,
    *,
    exclusions: Exclusions,
    tracked: Collection[bytes],
    moving: Collection[bytes] = (),
) -> Iterator[Difference]:
    """What differs between the agent's tree and the one that the patch gave, less what is left out by declaration."""
    pattern = exclusions.pattern()
    trees = _Trees(wanted), _Trees(given)

    def left_out(path: bytes) -> bool:
        return path == b".git" or excluded_at(path, pattern, tracked) is not None

    for path, (want, give) in check(wanted, given).items():
        if left_out(path):
            continue
        if path in moving:
            yield Difference(path, What.MOVING, "it did not hold still")
        elif _is_directory(want) != _is_directory(give) and (want is None or give is None):
            yield from trees[give is not None].lone_directory(path, "kept" if give is not None else "not made")
        elif (found := _of_entry(want, give, exclusions.max_file_mib << 20)) is not None:
            yield Difference(path, *found)
    for path, entry in wanted.items():
        if entry.digest in _WORDLESS and not left_out(path) and path in given and given[path].digest == entry.digest:
            yield Difference(path, _WORDLESS[entry.digest], "what it holds is not known")


def moved_submodules(old: Mapping[bytes, bytes], new: Mapping[bytes, bytes]) -> Iterator[Difference]:
    """Submodules that have another commit checked out. Their files are carried like all others."""
    for path, commit in old.items():
        if new.get(path) != commit:
            now = new.get(path) or b"none"
            yield Difference(path, What.SUBMODULE, f"{(commit or b'none').decode()} became {now.decode()}")


def hard_links(now: Manifest, carried: Collection[bytes]) -> Iterator[Difference]:
    """Carried files that are one file under several names of the tree."""
    by_inode: dict[tuple[int, int], list[bytes]] = {}
    for path, entry in now.items():
        if entry.kind is Kind.FILE and entry.links > 1:
            by_inode.setdefault(entry.inode, []).append(path)
    for paths in by_inode.values():
        if len(paths) > 1 and any(path in carried for path in paths):
            for path in paths[1:]:
                first = paths[0].decode("utf-8", "backslashreplace")
                yield Difference(path, What.HARD_LINK, f"the same file as {first}; the patch makes two")


def _is_directory(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is Kind.DIRECTORY


class _Trees:
    """Asks a manifest what lies below a path."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._children: dict[bytes, list[bytes]] | None = None

    def lone_directory(self, path: bytes, said: str) -> Iterator[Difference]:
        """A directory that only one tree has: said where nothing below it says it already."""
        if not self._below(path):
            yield Difference(path, What.EMPTY_DIRECTORY, f"an empty directory was {said}")

    def _below(self, path: bytes) -> list[bytes]:
        if self._children is None:
            self._children = {}
            for each in self._manifest:
                self._children.setdefault(each.rpartition(b"/")[0], []).append(each)
        return self._children.get(path, [])


def _of_entry(want: Entry | None, give: Entry | None, most: int) -> tuple[What, str] | None:
    shown = f"{_shown(want)} there, {_shown(give)} by the patch"
    for entry in (want, give):
        if (what := _uncarried(entry, most)) is not None:
            return what, shown if entry is None or entry.kind is not Kind.FILE else f"{shown}, {entry.size} bytes"
    if want is None or give is None or want.kind is not give.kind:
        return What.KIND, shown
    return (What.CONTENT, shown) if want.content != give.content else _of_mode(want, give)


def _uncarried(entry: Entry | None, most: int) -> What | None:
    """Why a patch cannot carry what lies there; None where it can."""
    if entry is None:
        return None
    if entry.kind is Kind.FILE and entry.size > most:
        return What.TOO_LARGE
    return _BY_KIND.get(entry.kind) or _WORDLESS.get(entry.digest)


def _of_mode(want: Entry, give: Entry) -> tuple[What, str] | None:
    modes = f"{want.mode:o} there, {give.mode:o} by the patch"
    if (want.mode ^ give.mode) & _SPECIAL_BITS:
        return What.SPECIAL_MODE, modes
    if git_mode(want) != git_mode(give):
        return What.EXECUTABLE, modes
    if want.mode != give.mode and want.kind is not Kind.LINK:
        return What.PERMISSIONS, modes
    if want.owner != give.owner:
        return What.OWNER, f"{want.owner} there, {give.owner} by the patch"
    return None


def _shown(entry: Entry | None) -> str:
    return "nothing" if entry is None else f"a {entry.kind.name.lower().replace('_', ' ')}"
