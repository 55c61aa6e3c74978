"""One sandbox's processes as the host sees them: a bubblewrap, the daemon that it started, and how they ended.

Everything inside lives in one pid namespace, whose first process is the daemon: when that is gone, all is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SHELL = "/bin/sh"

ENTER = """for cgroup in $CGROUPS; do echo $$ > "$cgroup/cgroup.procs" || exit; done
[ -z "$OPEN_FILES" ] || ulimit -n "$OPEN_FILES" || exit
unset CGROUPS OPEN_FILES
exec "$@\""""
"""Run by a shell of its own, so that bubblewrap and all its children are charged to the cgroups from their start."""

LOG_TAIL_BYTES = 2000


@dataclass(frozen=True)
class Start:
    """How to start one sandbox's bubblewrap."""

    argv: Sequence[str]
    pass_fds: tuple[int, ...]
    env: dict[str, str]
    """Of bubblewrap itself; it clears the daemon's."""
    log: Path
    cpus: tuple[int, ...] | None
    cgroups: tuple[Path, ...]
    """Their names have no white space: the kernel's mount point, and names of ours."""
    open_files: int | None
    umask: int


class SandboxProcess:
    """Started by `start` on the event loop's thread: `--die-with-parent` means the thread that started it."""

    def __init__(self, process: subprocess.Popen[bytes], status_fd: int, log: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._log = log
        self._status = b""
        self._killed = False
        self._status_fd: int | None = status_fd
        self._child_fd: int | None = None
        self._outer_fd: int | None = os.pidfd_open(process.pid)
        self.spawned = asyncio.Event()
        """The sandbox's first process exists, or never will (then `ended` follows)."""
        self.ended = asyncio.Event()
        """bubblewrap and everything inside are gone."""
        os.set_blocking(status_fd, False)
        self._loop.add_reader(status_fd, self._read_status)
        self._loop.add_reader(self._outer_fd, self._outer_ended)

    @classmethod
    def start(cls, start: Start, *, status_fd: int) -> SandboxProcess:
        """Start it. `status_fd` is our end of bubblewrap's status pipe and is closed by us. Raises `OSError`."""
        argv, env = list(start.argv), dict(start.env)
        if start.cgroups or start.open_files is not None:
            argv = [SHELL, "-c", ENTER, SHELL, *argv]
            env |= {"CGROUPS": " ".join(map(str, start.cgroups)), "OPEN_FILES": str(start.open_files or "")}
        before = os.sched_getaffinity(0)
        with start.log.open("wb") as log:
            # Affinity belongs to this thread and is inherited by the child: no moment in which it runs elsewhere.
            if start.cpus is not None:
                os.sched_setaffinity(0, start.cpus)
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    pass_fds=start.pass_fds,
                    cwd="/",
                    umask=start.umask,
                )
            finally:
                if start.cpus is not None:
                    os.sched_setaffinity(0, before)
        return cls(process, status_fd, start.log)

    @property
    def exit_status(self) -> int | None:
        """bubblewrap's own: the daemon's exit code, or 128+N when signal N ended it. None while it runs."""
        return self._process.returncode

    def log_tail(self) -> str:
        """The end of what bubblewrap and the daemon wrote to stderr, for an error message."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def kill(self) -> None:
        """Kill everything inside, at once. Safe to call again, and after the end.

        The child is killed, never bubblewrap before it: a child whose parent dies before it has asked to die with it
        lives on. bubblewrap names its child within milliseconds, or ends.
        """
        self._killed = True
        if self._child_fd is not None:
            _send_kill(self._child_fd)

    def kill_and_wait(self, *, timeout_s: float) -> bool:
        """As `kill`, then wait without the event loop, for a loop that is going down. True when all is gone."""
        deadline = time.monotonic() + timeout_s
        self._loop_forgets()
        if not self.spawned.is_set() and self._status_fd is not None:
            _wait(self._status_fd, deadline - time.monotonic())
            self._read_status()
        self.kill()
        for pidfd in (self._outer_fd, self._child_fd):
            if pidfd is not None and not _wait(pidfd, deadline - time.monotonic()):
                return False
        self._process.wait(timeout=1)
        self._close()
        return True

    def _read_status(self) -> None:
        """Take the first line, which names the child. The pipe stays open: bubblewrap writes to it at its end."""
        if self._status_fd is None or self.spawned.is_set():
            return
        try:
            data = os.read(self._status_fd, 4096)
        except BlockingIOError:
            return
        self._status += data
        line, newline, _ = self._status.partition(b"\n")
        if data and not newline:
            return
        if newline:
            with contextlib.suppress(ProcessLookupError):
                self._child_fd = os.pidfd_open(json.loads(line)["child-pid"])
        if self._killed:
            self.kill()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._status_fd)
        self.spawned.set()

    def _outer_ended(self) -> None:
        if self._outer_fd is None or self._process.poll() is None:
            return
        self._loop.remove_reader(self._outer_fd)
        self._read_status()
        if self._child_fd is None:
            self._child_ended()
        else:
            self.kill()
            self._loop.add_reader(self._child_fd, self._child_ended)

    def _child_ended(self) -> None:
        self._loop_forgets()
        self._close()

    def _loop_forgets(self) -> None:
        for fd in (self._status_fd, self._outer_fd, self._child_fd):
            if fd is not None and not self._loop.is_closed():
                self._loop.remove_reader(fd)

    def _close(self) -> None:
        for fd in (self._status_fd, self._outer_fd, self._child_fd):
            if fd is not None:
                os.close(fd)
        self._status_fd = self._outer_fd = self._child_fd = None
        self.spawned.set()
        self.ended.set()


def _send_kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _wait(pidfd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))
