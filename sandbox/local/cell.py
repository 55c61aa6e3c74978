"""One sandbox on this machine: directories, limits, processes and the way to its daemon, started and removed whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import anyio

from sandbox.bundle import daemon_argv
from sandbox.errors import CreateError, ImageError
from sandbox.local.bwrap import OVERLAY_OPTIONS_LIMIT, ZIPAPP, Bind, Plan, command_line, overlay_options_length
from sandbox.local.image import StoredImage
from sandbox.local.limits import Allowance, Cgroup, remove_cgroup
from sandbox.local.process import SandboxProcess, Start
from sandbox.local.scratch import CGROUP_NOTE, Scratch, remove_tree
from sandbox.local.site import Site
from sandbox.local.sweep import INSTANCE_VARIABLE
from sandbox.spec import SandboxSpec

BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
"""What every command sees before the image's and the spec's own variables. Nothing of the host's is added."""

DEFAULT_SHM_MIB = 64
"""As in a container."""

DEFAULT_PROCESSES = 4096
"""Enough for any suite, and a fork bomb ends there."""

LISTEN_BACKLOG = 128
EXPLAIN_WAIT_S = 1.0

DAEMON_GRACE_S = 5.0
"""The provider ends a sandbox at its lifetime, from outside, so that the caller hears what it was; the daemon ends
itself this much later, should the provider not be able to."""


@dataclass(frozen=True)
class Request:
    """A sandbox to make, its image resolved."""

    sandbox_id: str
    spec: SandboxSpec
    image: StoredImage
    cpus: tuple[int, ...] | None
    """Which CPUs it gets. None: all that the provider has."""
    keep_upper: Path | None = None
    """An upper directory of the caller's that survives the sandbox. Its `/tmp` is then kept out of it."""


class Cell:
    """Made by `start`, ended by `kill`, taken away by `remove`. `SandboxProcess` says when all is gone."""

    def __init__(
        self, request: Request, scratch: Scratch, process: SandboxProcess, cgroups: tuple[Cgroup, ...], way: Way
    ) -> None:
        self.request = request
        self.process = process
        self.host, self.port, self.token = way.host, way.port, way.token
        self.unenforced = way.unenforced
        self.started_at = time.monotonic()
        self._scratch = scratch
        self._cgroups = cgroups
        self._ended_by_us: str | None = None

    @classmethod
    def start(cls, site: Site, request: Request) -> Cell:
        """Start bubblewrap and the daemon; a few milliseconds, on the event loop's thread. Raises `CreateError`."""
        scratch = site.instance.scratch(request.sandbox_id)
        cgroups: tuple[Cgroup, ...] = ()
        try:
            with contextlib.ExitStack() as ours:
                cgroups = _name_cgroups(site, request.spec, scratch)
                for cgroup in cgroups:
                    cgroup.create(_allowance(request.spec))
                return _start(ours, site, request, scratch, cgroups)
        except BaseException as error:
            remove_tree(scratch.root)
            for cgroup in cgroups:
                remove_cgroup(cgroup.path)
            if isinstance(error, OSError):
                raise CreateError(f"the sandbox could not be started: {error}; try again", phase="start") from error
            raise

    def kill(self, because: str) -> None:
        """End everything inside at once. The first reason given is the cause that a later question hears."""
        if not self.process.ended.is_set() and self._ended_by_us is None:
            self._ended_by_us = because
        self.process.kill()

    def remove(self) -> None:
        """Take its directories and its cgroups away. Blocking; after its end, or for good measure once more."""
        for cgroup in self._cgroups:
            remove_cgroup(cgroup.path)
        if self.request.keep_upper is not None:
            remove_tree(_work_beside(self.request.keep_upper))
        remove_tree(self._scratch.root)

    def ended_because(self) -> str | None:
        """As `cause`; None for as long as it runs and nobody has ended it."""
        running = self._ended_by_us is None and not self.process.ended.is_set()
        return None if running else self.cause()

    async def explain(self) -> str:
        """As `cause`, once the end is seen: the way to the daemon breaks a moment before its process is gone."""
        with anyio.move_on_after(EXPLAIN_WAIT_S):
            await self.process.ended.wait()
        return self.cause()

    def cause(self) -> str:
        """Why it ended, from what the host saw, never from what was said inside."""
        if self._ended_by_us is not None:
            return self._ended_by_us
        status = self.process.exit_status
        if status is None:
            return "unknown"
        if any(cgroup.oom_kills() for cgroup in self._cgroups):
            return "out_of_memory"
        if time.monotonic() - self.started_at >= self.request.spec.lifetime_s + DAEMON_GRACE_S:
            return "lifetime"
        signal_number = -status if status < 0 else status - 128
        return f"killed by signal {signal_number}" if signal_number > 0 else f"daemon exited with status {status}"


@dataclass(frozen=True)
class Way:
    """How the daemon is reached, and what of the spec could not be enforced."""

    host: str
    port: int
    token: str
    unenforced: tuple[str, ...]


def _start(
    ours: contextlib.ExitStack, site: Site, request: Request, scratch: Scratch, cgroups: tuple[Cgroup, ...]
) -> Cell:
    """Open what the sandbox is handed, start it, and close our copies."""
    spec = request.spec
    listener = ours.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(LISTEN_BACKLOG)
    token = secrets.token_urlsafe(32)
    config_fd = _config_fd(ours, request, token)
    status_read, status_write = os.pipe()
    ours.callback(os.close, status_write)
    plan = _plan(site, request, scratch, cgroups)
    daemon = daemon_argv(request.image.python, ZIPAPP, listen_fd=listener.fileno(), config_fd=config_fd)
    seccomp_fd = site.open_seccomp(ours)
    unenforced = _unenforced(site, spec, cgroups)
    passed = (listener.fileno(), config_fd, status_write, seccomp_fd)
    start = Start(
        argv=command_line(site.bwrap, plan, daemon, status_fd=status_write, seccomp_fd=seccomp_fd),
        pass_fds=tuple(fd for fd in passed if fd is not None),
        env={INSTANCE_VARIABLE: str(site.instance.root)},
        log=scratch.log,
        cpus=request.cpus,
        cgroups=tuple(cgroup.path for cgroup in cgroups),
        open_files=None if "open_files" in unenforced else spec.open_files,
        umask=spec.umask,
    )
    try:
        process = SandboxProcess.start(start, status_fd=status_read)
    except BaseException:
        os.close(status_read)
        raise
    host, port = listener.getsockname()
    return Cell(request, scratch, process, cgroups, Way(host, port, token, unenforced))


def _config_fd(ours: contextlib.ExitStack, request: Request, token: str) -> int:
    """A descriptor from which the daemon reads its config. It holds the token's hash, never the token."""
    spec, image = request.spec, request.image
    config = {
        "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
        "env": {**BASE_ENV, **image.env, **spec.env},
        "workdir": spec.workdir or image.workdir or "/",
        "lifetime_s": spec.lifetime_s + DAEMON_GRACE_S,
    }
    fd = os.memfd_create("execd-config")
    ours.callback(os.close, fd)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(json.dumps(config).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _plan(site: Site, request: Request, scratch: Scratch, cgroups: tuple[Cgroup, ...]) -> Plan:
    spec, image, kept = request.spec, request.image, request.keep_upper
    share_net = spec.egress == "open"
    binds = [*site.image_binds(image, share_net=share_net), Bind(site.sys_tree(request.cpus or site.cpus), "/sys")]
    binds.extend(Bind(cgroup.path, point) for cgroup in cgroups for point in cgroup.mount_points)
    if kept is not None:
        binds.append(Bind(_own_tmp(scratch), "/tmp", writable=True))
    plan = Plan(
        layers=image.layers,
        upper=kept or scratch.upper,
        work=_make_work_beside(kept) if kept else scratch.work,
        binds=tuple(binds),
        zipapp=site.zipapp_for(image),
        share_net=share_net,
        shm_mib=spec.shm_mib or spec.memory_mib or DEFAULT_SHM_MIB,
        proc_names=site.proc_names,
        user=spec.user or 0,
        processes=_by_rlimit(site, spec),
    )
    length = overlay_options_length(plan)
    if length > OVERLAY_OPTIONS_LIMIT:
        raise ImageError(
            f"image {image.reference} has {len(image.layers)} layers whose paths take {length} characters, more than "
            f"one mount takes ({OVERLAY_OPTIONS_LIMIT}): use a shorter state_dir, or an image with fewer layers",
            reference=image.reference,
        )
    return plan


def _allowance(spec: SandboxSpec) -> Allowance:
    return Allowance(spec.memory_mib, spec.cpu_quota, spec.processes or DEFAULT_PROCESSES)


def _name_cgroups(site: Site, spec: SandboxSpec, scratch: Scratch) -> tuple[Cgroup, ...]:
    """The cgroups that the spec needs, written down before they exist: a kill in between must leave a trace."""
    wanted = _allowance(spec).controllers
    cgroups = tuple(hierarchy.name() for hierarchy in site.cgroups if hierarchy.controllers & wanted)
    if cgroups:
        (scratch.root / CGROUP_NOTE).write_text("".join(f"{cgroup.path}\n" for cgroup in cgroups))
    return cgroups


def _by_rlimit(site: Site, spec: SandboxSpec) -> int | None:
    """How many processes RLIMIT_NPROC is to allow, where no cgroup does it. None: it is not to be set."""
    counted = any("pids" in hierarchy.controllers for hierarchy in site.cgroups)
    if counted or not site.powers.counts_processes:
        return None
    return min(spec.processes or DEFAULT_PROCESSES, site.powers.processes_max)


def _unenforced(site: Site, spec: SandboxSpec, cgroups: tuple[Cgroup, ...]) -> tuple[str, ...]:
    """The limits of the spec that cannot be enforced on this machine, by name."""
    controlled = frozenset[str]().union(*(cgroup.hierarchy.controllers for cgroup in cgroups))
    processes_max = site.powers.processes_max if site.powers.counts_processes else 0
    missing = {
        "cpus": spec.cpus is not None and spec.cpus > len(site.cpus),
        "memory_mib": spec.memory_mib is not None and "memory" not in controlled,
        "cpu_quota": spec.cpu_quota is not None and "cpu" not in controlled,
        "processes": spec.processes is not None and "pids" not in controlled and spec.processes > processes_max,
        "open_files": spec.open_files is not None and spec.open_files > site.powers.open_files_max,
        "seccomp": spec.seccomp is not None and spec.seccomp != ("unconfined" if site.seccomp is None else "filtered"),
    }
    return tuple(name for name, is_missing in missing.items() if is_missing)


def _own_tmp(scratch: Scratch) -> Path:
    path = scratch.root / "tmp"
    path.mkdir()
    path.chmod(0o1777)
    return path


def _work_beside(upper: Path) -> Path:
    return upper.with_name(upper.name + ".work")


def _make_work_beside(upper: Path) -> Path:
    work = _work_beside(upper)
    work.mkdir()
    upper.chmod(0o755)  # its mode is the mode of `/`
    return work
