"""Looks at this machine as the local provider will use it: what it enforces, what not, and what to mend.

What is said to be enforced was read back inside a sandbox of the doctor's own.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import anyio.to_thread

from sandbox.bundle import bundle
from sandbox.config import LocalConfig
from sandbox.errors import ImageError, ProviderUnavailable, SandboxError
from sandbox.finding import ONE_SANDBOX, Asked, Finding, Level, first_command
from sandbox.local.provider import LocalProvider
from sandbox.local.scratch import Instance, state_directory, usable
from sandbox.local.site import Site
from sandbox.spec import Facts, SandboxSpec

ROOM_GIB = 5
TRIED_MIB = 256
TRIED_PROCESSES = 1000
TRIED_FILES = 1024
CGROUP_REMEDY = "run as root, or as a user with a delegated cgroup (`systemd-run --user --scope -p Delegate=yes ...`)"
_FILTER = 2
"""What `Seccomp:` in /proc/PID/status says of a process with a filter."""


async def examine(config: LocalConfig, *, asked: Asked = ONE_SANDBOX, image: str | None = None) -> list[Finding]:
    """What this machine gives, in the order in which to mend it. `image` None: the machine's own programs are tried."""
    try:
        state_dir = state_directory(config.state_dir)
        findings = await anyio.to_thread.run_sync(_machine, state_dir, config.host_python)
    except (SandboxError, OSError) as error:
        return [Finding("sandboxes", "error", str(error))]
    return findings + await _tried_out(config, image or "host", asked)


def _machine(state_dir: Path, host_python: Path | None) -> list[Finding]:
    """What can be seen from outside. Opening the site proves with a sandbox that the kernel lets us make some."""
    with usable(state_dir):
        instance = Instance.open(state_dir)
    try:
        with usable(state_dir):
            site = Site.prepare(instance, state_dir, bundle(), host_python)
        version = subprocess.run([site.bwrap, "--version"], capture_output=True, text=True, timeout=20, check=False)
    finally:
        instance.close()
    free_gib = shutil.disk_usage(state_dir).free / 2**30
    room = f"{free_gib:.0f} GiB free in {state_dir}"
    return [
        Finding("bubblewrap", "ok", f"{version.stdout.strip()} at {site.bwrap}"),
        Finding("user namespaces", "ok", "a sandbox was made in its own user, pid, mount, ipc, uts and net namespaces"),
        Finding("overlay", "ok", "the sandbox's root was an overlay in its user namespace"),
        Finding("disk", "ok", room, {"free_gib": round(free_gib, 1)})
        if free_gib >= ROOM_GIB
        else Finding("disk", "warning", f"{room}; make room, or set state_dir to a larger disk"),
    ]


async def _tried_out(config: LocalConfig, image: str, asked: Asked) -> list[Finding]:
    """Sandboxes like a campaign's, and what their own daemon reads there."""
    spec = SandboxSpec(
        image=image,
        cpus=asked.cpus or 1,
        memory_mib=asked.memory_mib or TRIED_MIB,
        cpu_quota=1.0,
        processes=TRIED_PROCESSES,
        open_files=TRIED_FILES,
        egress="denied",
        lifetime_s=300,
    )
    try:
        async with LocalProvider(config) as provider, _Listener() as canary:
            began = time.monotonic()
            async with provider.sandbox(spec) as box:
                took_s = time.monotonic() - began
                ran = await box.run("echo well", timeout_s=30)
                trip = first_command(ran.output, took_s, ran.duration_s, box.phases, "")
                denied, unenforced = await box.facts(canary=canary), box.unenforced
            async with provider.sandbox(spec.model_copy(update={"egress": "open"})) as box:
                opened = await box.facts(canary=canary)
    except (SandboxError, OSError) as error:
        level: Level = "error" if isinstance(error, ProviderUnavailable | ImageError) else "failure"
        return [Finding("round trip", level, str(error))]
    return [
        trip,
        _egress(denied, opened),
        _memory(spec, denied, unenforced),
        _cpus(spec, denied, asked),
        *_others(spec, denied, unenforced),
        _seccomp(denied),
        Finding("not limited", "note", "disk space and I/O of sandboxes"),
    ]


def _egress(denied: Facts, opened: Facts) -> Finding:
    if denied.canary == "unreachable" and opened.canary == "reached":
        return Finding("egress", "ok", "tried: a denied sandbox does not reach this machine, an open one does")
    said = f"a denied sandbox found this machine {denied.canary}, an open one {opened.canary}; please report this"
    return Finding("egress", "error", said)


def _memory(spec: SandboxSpec, facts: Facts, unenforced: tuple[str, ...]) -> Finding:
    if "memory_mib" not in unenforced and facts.memory_limit_mib == spec.memory_mib:
        return Finding("memory", "ok", f"enforced: {facts.memory_limit_mib} MiB were asked for and read back")
    return Finding(
        "memory",
        "warning",
        f"memory_mib is not enforced, since no memory cgroup can be made here: {CGROUP_REMEDY}",
    )


def _others(spec: SandboxSpec, facts: Facts, unenforced: tuple[str, ...]) -> Iterator[Finding]:
    cgroup = facts.raw.get("cgroup")
    counted = cgroup.get("processes") if isinstance(cgroup, Mapping) else None
    tried = {
        "cpu_quota": (spec.cpu_quota, facts.cpu_quota),
        "processes": (spec.processes, counted if isinstance(counted, int) else facts.raw.get("processes_limit")),
        "open_files": (spec.open_files, facts.raw.get("open_files_limit")),
    }
    for name, (amount, read) in tried.items():
        if name in unenforced:
            yield Finding(name, "warning", f"not enforced here: {CGROUP_REMEDY}")
        elif read != amount:
            yield Finding(name, "error", f"{amount:g} was asked for and {read} read back; please report this")
        else:
            yield Finding(name, "ok", f"enforced: {amount:g} was asked for and read back")


def _cpus(spec: SandboxSpec, facts: Facts, asked: Asked) -> Finding:
    if facts.visible_cpus == spec.cpus:
        return Finding("cpus", "ok", f"enforced by affinity: {spec.cpus} asked for and seen")
    said = f"{spec.cpus} asked for and {facts.visible_cpus} seen: the machine has no more; declare at most as many"
    return Finding("cpus", "error" if asked.cpus else "warning", said)


def _seccomp(facts: Facts) -> Finding:
    if facts.raw.get("seccomp") == _FILTER:
        return Finding("seccomp", "ok", "a filter denies the system calls that reach past namespaces")
    said = f"no filter for {facts.architecture}: keyrings, bpf and their like are open; use x86_64 or aarch64"
    return Finding("seccomp", "warning", said)


class _Listener:
    """Something on this machine's loopback that an open sandbox can connect to."""

    async def __aenter__(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(lambda _, writer: writer.close(), host="127.0.0.1", port=0)
        host, port = self._server.sockets[0].getsockname()
        return str(host), int(port)

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
