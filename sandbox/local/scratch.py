"""What the provider keeps on disk while it runs, and how it goes away again.

    <state>/run/<instance>.lock      flock-ed for as long as the owner lives; the kernel lets go when it dies
    <state>/run/<instance>/          the zipapp and other files that its sandboxes share
    <state>/run/<instance>/<id>/     one sandbox: upper, work, log

Overlay directories are on disk, since tmpfs has user xattrs only from Linux 6.6 on. Nothing here follows a path that
a sandbox chose: every tree is emptied from its top, one directory at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import ProviderUnavailable

CGROUP_NOTE = "cgroup"
"""File in a sandbox's directory that names its cgroups, one a line, so that a later sweep can remove them as well."""

GRAVE = ".gone-"
"""Stands in the name of a directory whose removal is under way."""


def state_directory(named: Path | None) -> Path:
    """The absolute path of the directory that was named; None: `sandman-grader` under `$XDG_CACHE_HOME`, else under
    `~/.cache`. Raises `ProviderUnavailable` where the user it means has no home.
    """
    path = named or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "sandman-grader"
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ProviderUnavailable(f"{path}: no such home directory is known; name another --state-dir") from error


@contextlib.contextmanager
def usable(state_dir: Path) -> Iterator[None]:
    """Turn what the system says against the files of `state_dir` into `ProviderUnavailable`."""
    try:
        yield
    except OSError as error:
        raise ProviderUnavailable(
            f"{state_dir}: cannot be made or written ({error.strerror or error}); name another --state-dir"
        ) from error


@dataclass(frozen=True)
class Scratch:
    """The directories of one sandbox."""

    root: Path

    @property
    def upper(self) -> Path:
        return self.root / "upper"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def log(self) -> Path:
        """What bubblewrap and the daemon wrote to their stderr."""
        return self.root / "log"


@dataclass(frozen=True)
class Instance:
    """One running provider's directory, locked until `close` or the death of this process."""

    root: Path
    lock_fd: int

    @classmethod
    def open(cls, state_dir: Path) -> Instance:
        """Make and lock a new instance directory under `state_dir`."""
        run = state_dir / "run"
        run.mkdir(parents=True, exist_ok=True)
        while True:
            root = run / secrets.token_hex(4)
            lock = _lock_path(root)
            try:
                lock_fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            fcntl.flock(lock_fd, fcntl.LOCK_EX)
            # A sweep may have taken the lock, and unlinked the file, between our two calls.
            if os.fstat(lock_fd).st_nlink:
                root.mkdir(mode=0o700)
                return cls(root, lock_fd)
            os.close(lock_fd)

    def scratch(self, sandbox_id: str) -> Scratch:
        """Make the directories of a new sandbox. The upper's own mode is the mode of `/` inside."""
        scratch = Scratch(self.root / sandbox_id)
        scratch.root.mkdir(mode=0o700)
        for directory in (scratch.upper, scratch.work):
            directory.mkdir()
            directory.chmod(0o755)
        return scratch

    def close(self) -> None:
        """Remove everything, a half-done removal's leavings too, and let the lock go."""
        try:
            for left in (self.root, *self.root.parent.glob(f"{self.root.name}{GRAVE}*")):
                remove_tree(left)
            _lock_path(self.root).unlink(missing_ok=True)
        finally:
            os.close(self.lock_fd)


def _lock_path(root: Path) -> Path:
    return root.with_name(root.name + ".lock")


def dead_instances(state_dir: Path) -> list[Instance]:
    """The instances whose owner has died, each locked by us now. `close` removes one.

    Raises `OSError` where `state_dir` cannot be one; one that is not there yet has none.
    """
    dead = []
    run = state_dir / "run"
    with contextlib.suppress(FileNotFoundError):
        os.scandir(run).close()
    for lock in sorted(run.glob("*.lock")):
        try:
            lock_fd = os.open(lock, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock_fd)  # its owner lives
            continue
        if os.fstat(lock_fd).st_nlink:
            dead.append(Instance(lock.with_suffix(""), lock_fd))
        else:
            os.close(lock_fd)  # another sweep was faster
    return dead


def remove_tree(top: Path) -> None:
    """Remove a directory tree that hostile code has written; a missing one is fine. No process may be writing in it.

    Each directory found is first moved up beside the top, so neither depth nor path length matters, and gets the mode
    that its removal needs (overlayfs itself leaves a directory with mode 000).
    """
    if not top.exists():
        return
    grave = top.with_name(f"{top.name}{GRAVE}{secrets.token_hex(4)}")
    grave.mkdir(mode=0o700)
    try:
        top.rename(grave / "0")
    except FileNotFoundError:  # removed by another in the meantime
        grave.rmdir()
        return
    pending, count = [grave / "0"], 1
    while pending:
        directory = pending.pop()
        _make_removable(directory)
        with os.scandir(directory) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_directory in names:
            path = directory / name
            if not is_directory:
                path.unlink()
                continue
            _make_removable(path)
            moved = grave / str(count)
            count += 1
            path.rename(moved)
            pending.append(moved)
        directory.rmdir()
    grave.rmdir()


def _make_removable(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        mode = directory.lstat().st_mode
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            directory.chmod(0o700)
