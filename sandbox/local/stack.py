"""Layer directories in overlayfs form, seen as the one tree that they show: looking up, merging, their marks."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from sandbox.local.scratch import remove_tree as remove_directory

OPAQUE = "user.overlay.opaque"
"""The extended attribute by which an unprivileged overlay hides what lies under a directory."""


class LayerStack:
    """Layer directories seen as the one tree that an overlay of them shows. Lowest first; reads only."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self._layers = tuple(reversed(layers))

    def lstat(self, parts: Sequence[str]) -> Path | None:
        """Where the entry `parts` lies on disk, or None. No symbolic link is followed, in any component."""
        for layer in self._layers:
            found, final = self._in_layer(layer, parts)
            if found is not None or final:
                return found
        return None

    def _in_layer(self, layer: Path, parts: Sequence[str]) -> tuple[Path | None, bool]:
        """The entry in one layer, and whether the layers underneath are hidden there."""
        here, opaque = layer, False
        for depth, part in enumerate(parts, start=1):
            here = here / part
            try:
                found = here.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None, opaque
            if is_whiteout_status(found):
                return None, True
            if depth == len(parts):
                return here, True
            if not stat.S_ISDIR(found.st_mode):
                return None, True
            opaque = opaque or is_opaque(here)
        return here, True

    def find(self, path: str) -> Path | None:
        """Where the file that `path` names inside the image lies on disk, following links as the image would."""
        pending = [part for part in reversed(path.split("/")) if part not in {"", "."}]
        done: list[str] = []
        found: Path | None = None
        for _ in range(256):  # more steps than any path needs: a loop of links ends here
            if not pending:
                return found
            part = pending.pop()
            if part == "..":
                del done[-1:]
                continue
            found = self.lstat([*done, part])
            if found is None:
                return None
            if found.is_symlink():
                target = str(found.readlink())
                done = [] if target.startswith("/") else done
                pending.extend(part for part in reversed(target.split("/")) if part not in {"", "."})
            else:
                done.append(part)
        return None


def merge_layer(upper: Path, into: Path) -> None:
    """Move the tree `upper`, in overlayfs form, over the plain tree `into`, as an overlay of the two would look."""
    for entry in sorted(os.scandir(upper), key=lambda entry: entry.name):
        target = into / entry.name
        status = entry.stat(follow_symlinks=False)
        if is_whiteout_status(status):
            remove_tree(target)
        elif stat.S_ISDIR(status.st_mode) and not target.is_symlink() and target.is_dir():
            if is_opaque(Path(entry.path)):
                for old in list(target.iterdir()):
                    remove_tree(old)
            merge_layer(Path(entry.path), target)
            target.chmod(stat.S_IMODE(status.st_mode))
            os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
        else:
            remove_tree(target)
            Path(entry.path).rename(target)
            if stat.S_ISDIR(status.st_mode):
                _drop_whiteouts(target)


def _drop_whiteouts(tree: Path) -> None:
    for folder, _, names in os.walk(tree):
        if is_opaque(Path(folder)):
            os.removexattr(folder, OPAQUE)
        for name in names:
            path = Path(folder, name)
            if is_whiteout_status(path.lstat()):
                path.unlink()


def remove_tree(path: Path) -> None:
    """Remove whatever is at `path`, a directory's unwritable children included. Nothing there is fine."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    remove_directory(path)


def is_whiteout(path: Path) -> bool:
    """Whether the entry says that what lies underneath is removed."""
    return is_whiteout_status(path.lstat())


def is_opaque(directory: Path) -> bool:
    """Whether the directory hides what lies underneath."""
    try:
        return os.getxattr(directory, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def is_whiteout_status(status: os.stat_result) -> bool:
    """As `is_whiteout`, of what `lstat` gave."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
