"""Removes what killed providers left behind: processes, cgroups, directories.

A sandbox dies with its owner (`--die-with-parent`). Between bubblewrap's start and that setting there is a moment in
which a killed owner leaves it running; so a sweep kills what still carries a dead instance's path: a bubblewrap in its
environment, what it has started in its mounts.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

from sandbox.local.limits import remove_cgroup
from sandbox.local.scratch import CGROUP_NOTE, Instance, dead_instances, usable

INSTANCE_VARIABLE = "SANDMAN_INSTANCE"
DEATH_WAIT_MS = 2000


@dataclass(frozen=True)
class Swept:
    """What one sweep removed."""

    instances: int
    sandboxes: int
    processes: int


def sweep(state_dir: Path) -> Swept:
    """Remove what every dead instance under `state_dir` left. Living instances are not touched.

    Raises `ProviderUnavailable` where `state_dir` cannot be looked into.
    """
    with usable(state_dir):
        dead = dead_instances(state_dir)
    processes = _kill_survivors({str(instance.root) for instance in dead}) if dead else 0
    sandboxes = sum(_remove(instance) for instance in dead)
    return Swept(len(dead), sandboxes, processes)


def _remove(instance: Instance) -> int:
    notes = list(instance.root.glob(f"*/{CGROUP_NOTE}"))
    for note in notes:
        for path in note.read_text().splitlines():
            remove_cgroup(Path(path))
    sandboxes = len(list(instance.root.glob("*/upper")))
    instance.close()
    return sandboxes


def _kill_survivors(roots: set[str]) -> int:
    """Kill every process that carries one of `roots` and wait for its end. Its pid cannot be reused under our pidfd."""
    killed = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(int(entry.name))
            if _carries(entry, roots):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                killed.append(pidfd)
            else:
                os.close(pidfd)
    for pidfd in killed:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(DEATH_WAIT_MS)
        os.close(pidfd)
    return len(killed)


def _carries(process: Path, roots: set[str]) -> bool:
    prefix = f"{INSTANCE_VARIABLE}=".encode()
    variables = (process / "environ").read_bytes().split(b"\0")
    if any(os.fsdecode(v.removeprefix(prefix)) in roots for v in variables if v.startswith(prefix)):
        return True
    mounts = (process / "mounts").read_text(errors="surrogateescape")
    return any(f"upperdir=/oldroot{root}/" in mounts for root in roots)
