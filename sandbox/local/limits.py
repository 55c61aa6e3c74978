"""The limits that this machine lets us enforce: a sandbox's CPUs, and its memory where a cgroup can be made."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CGROUP_MOUNT = Path("/sys/fs/cgroup")
PREFIX = "sandman-"


def choose_cpus(wanted: int, available: Iterable[int], in_use: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The `wanted` CPUs of `available` that the fewest live sandboxes use, in order; all of them when there are fewer.

    `in_use` has one tuple of CPUs per live sandbox that was given some.
    """
    load = Counter(cpu for cpus in in_use for cpu in cpus)
    by_load = sorted(available, key=lambda cpu: (load[cpu], cpu))
    return tuple(sorted(by_load[:wanted]))


@dataclass(frozen=True)
class MemoryController:
    """A cgroup directory in which this process may make children that limit memory."""

    parent: Path
    version: int
    """1 or 2, of the cgroup interface."""

    def name(self) -> MemoryCgroup:
        """A new child's name, which can be written down before the child exists."""
        return MemoryCgroup(self.parent / f"{PREFIX}{secrets.token_hex(6)}", self.version)


@dataclass(frozen=True)
class MemoryCgroup:
    """One sandbox's memory cgroup."""

    path: Path
    version: int

    def create(self, memory_mib: int) -> None:
        """Make it with that limit, swap included where the kernel counts it. Raises `OSError`."""
        self.path.mkdir()
        limit = str(memory_mib << 20)
        if self.version == 2:
            (self.path / "memory.max").write_text(limit)
            _write_if_present(self.path / "memory.swap.max", "0")
        else:
            (self.path / "memory.limit_in_bytes").write_text(limit)
            _write_if_present(self.path / "memory.memsw.limit_in_bytes", limit)

    @property
    def mount_point(self) -> str:
        """Where the sandbox sees it, as in a container."""
        return "/sys/fs/cgroup" if self.version == 2 else "/sys/fs/cgroup/memory"

    def oom_kills(self) -> int | None:
        """How many of its processes the kernel killed for want of memory. None: it cannot be read any more."""
        source = self.path / ("memory.events" if self.version == 2 else "memory.oom_control")
        try:
            fields = dict(line.split() for line in source.read_text().splitlines())
        except OSError:
            return None
        return int(fields["oom_kill"]) if "oom_kill" in fields else None


def remove_cgroup(path: Path, *, patience_s: float = 1.0) -> None:
    """Remove a memory cgroup of ours; its last process may still be on its way out. A missing one is fine."""
    if not path.name.startswith(PREFIX):
        return
    deadline = time.monotonic() + patience_s
    while True:
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)


def find_memory_controller(*, mount: Path = CGROUP_MOUNT, own: str | None = None) -> MemoryController | None:
    """Where this process can limit the memory of children; None where the machine does not allow it.

    `own` is the text of `/proc/self/cgroup`. Version 1: below our own cgroup. Version 2: beside our own cgroup
    (processes and controlled children exclude each other), or below the root cgroup, which is exempt from that rule.
    """
    lines = (Path("/proc/self/cgroup").read_text() if own is None else own).splitlines()
    membership = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    for candidate in _candidates(mount, membership):
        if _works(candidate):
            return candidate
    return None


def _candidates(mount: Path, membership: dict[str, str]) -> list[MemoryController]:
    found = []
    for controllers, path in membership.items():
        if "memory" in controllers.split(","):
            found.append(MemoryController(mount / controllers / path.lstrip("/"), 1))
    unified = membership.get("")
    if unified is not None and (mount / "cgroup.controllers").exists():
        own = mount / unified.lstrip("/")
        for parent in dict.fromkeys((own if own == mount else own.parent, mount)):
            if "memory" in _read(parent / "cgroup.subtree_control").split():
                found.append(MemoryController(parent, 2))
    return found


def _works(controller: MemoryController) -> bool:
    """Try it: writable by mode says little about cgroup files."""
    if not os.access(controller.parent, os.W_OK):
        return False
    cgroup = controller.name()
    try:
        cgroup.create(64)
    except OSError:
        return False
    finally:
        remove_cgroup(cgroup.path)
    # Moving a process needs write access to the common ancestor's list as well.
    return os.access(controller.parent / "cgroup.procs", os.W_OK)


def _write_if_present(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
