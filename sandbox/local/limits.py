"""The limits that this machine lets us enforce: a sandbox's CPUs by affinity, its memory, CPU time and processes where
a cgroup can be made, and its resource limits."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUP_MOUNT = Path("/sys/fs/cgroup")
PREFIX = "sandman-"
CPU_PERIOD_US = 100_000
"""The kernel's own default, and what container runtimes use."""
CAP_SYS_RESOURCE = 24
NPROC_IS_NAMESPACED = (5, 14)
"""From this kernel on a user namespace counts its own processes against RLIMIT_NPROC."""


def choose_cpus(wanted: int, available: Iterable[int], in_use: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The `wanted` CPUs of `available` that the fewest live sandboxes use, in order; all of them when there are fewer.

    `in_use` has one tuple of CPUs per live sandbox that was given some.
    """
    load = Counter(cpu for cpus in in_use for cpu in cpus)
    by_load = sorted(available, key=lambda cpu: (load[cpu], cpu))
    return tuple(sorted(by_load[:wanted]))


@dataclass(frozen=True)
class Allowance:
    """What a sandbox may use at most. None: no limit of ours."""

    memory_mib: int | None = None
    cpu_quota: float | None = None
    """CPU seconds per second."""
    processes: int | None = None
    """Processes and threads that exist at once."""

    def writes(self, version: int) -> Iterator[tuple[str, str, str, bool]]:
        """Controller, file, text, and whether every kernel has the file, for cgroups of that version."""
        if self.memory_mib is not None:
            limit = str(self.memory_mib << 20)
            if version == 2:
                yield from (("memory", "memory.max", limit, True), ("memory", "memory.swap.max", "0", False))
            else:
                yield ("memory", "memory.limit_in_bytes", limit, True)
                yield ("memory", "memory.memsw.limit_in_bytes", limit, False)
        if self.cpu_quota is not None:
            quota = str(round(self.cpu_quota * CPU_PERIOD_US))
            if version == 2:
                yield ("cpu", "cpu.max", f"{quota} {CPU_PERIOD_US}", True)
            else:
                yield ("cpu", "cpu.cfs_period_us", str(CPU_PERIOD_US), True)
                yield ("cpu", "cpu.cfs_quota_us", quota, True)
        if self.processes is not None:
            yield ("pids", "pids.max", str(self.processes), True)

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that it takes: of `memory`, `cpu`, `pids`."""
        return frozenset(controller for controller, *_ in self.writes(2))


TRIAL = Allowance(memory_mib=64, cpu_quota=1.0, processes=64)


@dataclass(frozen=True)
class Hierarchy:
    """A cgroup directory in which this process may make children that limit `controllers`."""

    parent: Path
    version: int
    """1 or 2, of the cgroup interface."""
    controllers: frozenset[str]

    def name(self) -> Cgroup:
        """A new child's name, which can be written down before the child exists."""
        return Cgroup(self.parent / f"{PREFIX}{secrets.token_hex(6)}", self)


@dataclass(frozen=True)
class Cgroup:
    """One sandbox's cgroup in one hierarchy."""

    path: Path
    hierarchy: Hierarchy

    def create(self, allowance: Allowance) -> None:
        """Make it with those of the limits that its hierarchy has controllers for, swap included where the kernel
        counts it. Raises `OSError`."""
        self.path.mkdir()
        for controller, file, text, always in allowance.writes(self.hierarchy.version):
            if controller in self.hierarchy.controllers and (always or (self.path / file).exists()):
                (self.path / file).write_text(text)

    @property
    def mount_points(self) -> tuple[str, ...]:
        """Where the sandbox sees it, as in a container."""
        if self.hierarchy.version == 2:
            return ("/sys/fs/cgroup",)
        return tuple(f"/sys/fs/cgroup/{controller}" for controller in sorted(self.hierarchy.controllers))

    def oom_kills(self) -> int | None:
        """How many of its processes the kernel killed for want of memory. None: it does not count them, or it cannot
        be read any more."""
        source = self.path / ("memory.events" if self.hierarchy.version == 2 else "memory.oom_control")
        try:
            fields = dict(line.split() for line in source.read_text().splitlines())
        except OSError:
            return None
        return int(fields["oom_kill"]) if "oom_kill" in fields else None


def remove_cgroup(path: Path, *, patience_s: float = 1.0) -> None:
    """Remove a cgroup of ours; its last process may still be on its way out. A missing one is fine."""
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


def find_hierarchies(*, mount: Path = CGROUP_MOUNT, own: str | None = None) -> tuple[Hierarchy, ...]:
    """Where this process can limit children: each controller once, none where the machine does not allow it.

    `own` is the text of `/proc/self/cgroup`. Version 1: below our own cgroup. Version 2: beside our own cgroup
    (processes and controlled children exclude each other), or below the root cgroup, which is exempt from that rule.
    """
    lines = (Path("/proc/self/cgroup").read_text() if own is None else own).splitlines()
    membership = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    found: list[Hierarchy] = []
    covered: frozenset[str] = frozenset()
    for candidate in _candidates(mount, membership):
        usable = Hierarchy(candidate.parent, candidate.version, candidate.controllers - covered)
        if usable.controllers and _works(usable):
            found.append(usable)
            covered |= usable.controllers
    return tuple(found)


def _candidates(mount: Path, membership: dict[str, str]) -> Iterator[Hierarchy]:
    for controllers, path in membership.items():
        if ours := TRIAL.controllers.intersection(controllers.split(",")):
            yield Hierarchy(mount / controllers / path.lstrip("/"), 1, ours)
    unified = membership.get("")
    if unified is not None and (mount / "cgroup.controllers").exists():
        own = mount / unified.lstrip("/")
        for parent in dict.fromkeys((own if own == mount else own.parent, mount)):
            if ours := TRIAL.controllers.intersection(_read(parent / "cgroup.subtree_control").split()):
                yield Hierarchy(parent, 2, ours)


def _works(hierarchy: Hierarchy) -> bool:
    """Try it: writable by mode says little about cgroup files."""
    if not os.access(hierarchy.parent, os.W_OK):
        return False
    cgroup = hierarchy.name()
    try:
        cgroup.create(TRIAL)
    except OSError:
        return False
    finally:
        remove_cgroup(cgroup.path)
    # Moving a process needs write access to the common ancestor's list as well.
    return os.access(hierarchy.parent / "cgroup.procs", os.W_OK)


@dataclass(frozen=True)
class Powers:
    """What of the resource limits this process can set for a sandbox."""

    open_files_max: int
    """The highest RLIMIT_NOFILE that it can give."""
    counts_processes: bool
    """Whether RLIMIT_NPROC, set inside, counts a sandbox's own processes and binds them."""
    processes_max: int
    """The highest RLIMIT_NPROC that can be set inside: our own, which no user namespace raises."""

    @classmethod
    def of_this_process(cls) -> Powers:
        """Look at our own limits, capabilities and kernel."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        ceiling = int(_read(Path("/proc/sys/fs/nr_open")) or hard)
        highest = ceiling if _has_capability(CAP_SYS_RESOURCE) or hard == resource.RLIM_INFINITY else hard
        # The machine's real root is exempt from RLIMIT_NPROC in every namespace that maps it.
        counts = os.getuid() != 0 and _kernel() >= NPROC_IS_NAMESPACED
        most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        return cls(min(highest, ceiling), counts, sys.maxsize if most == resource.RLIM_INFINITY else most)


def _has_capability(number: int) -> bool:
    for line in _read(Path("/proc/self/status")).splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def _kernel() -> tuple[int, ...]:
    with contextlib.suppress(ValueError):
        return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    return (0,)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
