"""Sandboxes as this machine's process table shows them, and how faults strike them from outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Seen:
    """A sandbox in which a suite sleeps."""

    space: str
    """Its pid namespace. The kernel gives a name again once its namespace is gone."""
    first: int
    """The host's number of its PID 1, which is execd."""
    sleeper: int
    """The host's number of the suite's sleep."""

    @property
    def parent(self) -> int:
        """Of its first process: bubblewrap's outer process, or the container's shim."""
        return int(re.findall(r"^PPid:\s*(\d+)$", Path(f"/proc/{self.first}/status").read_text(), re.MULTILINE)[0])


def sandboxes_beside(asleep: bytes) -> list[Seen]:
    """The pid namespaces in which a process with this command line runs, each with its PID 1."""
    firsts: dict[str, int] = {}
    sleepers: dict[str, int] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            ids = re.findall(r"^NSpid:(.*)$", (process / "status").read_text(), re.MULTILINE)[0].split()
            if len(ids) < 2:
                continue
            space = str((process / "ns/pid").readlink())
            if ids[-1] == "1":
                firsts[space] = int(process.name)
            if (process / "cmdline").read_bytes() == asleep:
                sleepers[space] = int(process.name)
    return [Seen(space, firsts[space], sleeper) for space, sleeper in sleepers.items() if space in firsts]


def bubblewraps(state_dir: bytes) -> list[int]:
    """The outer processes of all sandboxes of a local provider, whatever they are at."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes()
                if b"bwrap" in command.split(b"\0", 1)[0] and state_dir in command:
                    found.append(int(process.name))
    return found


@contextlib.contextmanager
def held_asleep(asleep: bytes, count: int, *, timeout_s: float = 120.0) -> Iterator[list[Seen]]:
    """`count` sandboxes whose suites sleep, for as long as the `with` lasts: the first waits for the last, however slow
    the machine is. Whose time is over wakes at its end."""
    deadline = time.monotonic() + timeout_s
    held: set[Seen] = set()
    try:
        while len(held) < count:
            assert time.monotonic() < deadline, f"{len(held)} of {count} suites slept within {timeout_s} s"
            there = set(sandboxes_beside(asleep))
            held &= there  # what has ended meanwhile sleeps no more
            for seen in there - held:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(seen.sleeper, signal.SIGSTOP)
                    held.add(seen)
            time.sleep(0.05)
        yield list(held)
    finally:
        for seen in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(seen.sleeper, signal.SIGCONT)


@dataclass
class Striker:
    """Does `act` to each sandbox that sleeps, once each, and to no more than `most` of them."""

    asleep: bytes
    act: Callable[[Seen], None]
    most: int

    def __post_init__(self) -> None:
        self.struck: set[Seen] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._strike)

    def _strike(self) -> None:
        while len(self.struck) < self.most and not self._stop.wait(0.05):
            for seen in sandboxes_beside(self.asleep):
                if seen not in self.struck and len(self.struck) < self.most:
                    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                        self.act(seen)
                        self.struck.add(seen)

    def __enter__(self) -> Striker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def kill_first(seen: Seen) -> None:
    """SIGKILL to execd, from outside: from inside nobody can."""
    os.kill(seen.first, signal.SIGKILL)


def kill_outer(seen: Seen) -> None:
    """SIGKILL to the bubblewrap that holds the sandbox."""
    outer = seen.parent
    assert b"bwrap" in Path(f"/proc/{outer}/cmdline").read_bytes()
    os.kill(outer, signal.SIGKILL)


@contextlib.contextmanager
def frozen(sandboxes: Iterable[Seen]) -> Iterator[None]:
    """All that runs in them stands still for the length of the `with`, as on a machine that hangs."""
    spaces = {seen.space for seen in sandboxes}
    inside = [pid for pid, space in _spaces() if space in spaces]
    for pid in inside:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _spaces() -> Iterator[tuple[int, str]]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(process.name), str((process / "ns/pid").readlink())
