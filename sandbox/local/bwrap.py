"""The bubblewrap command line of one sandbox, as a pure function of a frozen plan. Runs nothing and reads no disk.

What every sandbox gets, whoever runs the provider: new user, pid, ipc, uts, cgroup and (unless egress is open) net
namespaces; one mapped id, which is root inside unless the plan says otherwise; no further user namespaces; for root a
bounded set of capabilities over what its own namespaces own; no new privileges; the kernel's knobs in `/proc`
read-only or covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOSTNAME = "sandbox"

ZIPAPP = "/dev/execd.pyz"
"""Where execd's zipapp lies inside. `/dev` is a fresh tmpfs in every sandbox, so the mount point lands in no image."""

CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_SETFCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SYS_CHROOT",
)
"""Docker's default set less MKNOD and AUDIT_WRITE, which mean nothing in a user namespace."""

READ_ONLY_PROC = ("sys", "fs", "acpi", "sysrq-trigger")
"""Names in `/proc` that change the whole machine when its real root writes them. bubblewrap itself covers directories
there that root may write; what it leaves are directories with a read-only mode and writable files in them."""

COVERED_PROC = ("keys", "timer_list", "sched_debug", "latency_stats")
"""Names in `/proc` that tell its real root of other processes on the machine. Containers mask the same ones; what else
they mask needs a capability over the machine, which no sandbox has."""

LIMIT_PROCESSES = """{ ulimit -u "$0" || ulimit -p "$0"; } 2>/dev/null && exec "$@"
echo "its processes could not be limited to $0" >&2
exit 1"""
"""bash says `-u`, where dash says `-p`."""

OVERLAY_OPTIONS_LIMIT = 4000
"""mount(2) takes one page of options; the layers' paths, bubblewrap's `/oldroot` before each, must fit."""


@dataclass(frozen=True)
class Bind:
    """A path of the host at a path inside, read-only unless `writable`."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Plan:
    """What one sandbox is built from."""

    layers: tuple[Path, ...]
    """Overlay layers, lowest first; at least one."""
    upper: Path
    work: Path
    binds: tuple[Bind, ...]
    """Mounted in this order, after the root and before `/proc` and `/dev`."""
    zipapp: Path
    share_net: bool
    shm_mib: int
    """Size of `/dev/shm`."""
    proc_names: frozenset[str]
    """Which of `READ_ONLY_PROC` and `COVERED_PROC` this kernel has."""
    user: int = 0
    """Which id the one mapped user has inside. Any but 0 has no capabilities."""
    processes: int | None = None
    """RLIMIT_NPROC, set inside, where the user namespace counts its own. None: none of ours."""


def overlay_options_length(plan: Plan) -> int:
    """How many characters of mount options the plan's overlay needs; more than `OVERLAY_OPTIONS_LIMIT` cannot mount."""
    paths = (*plan.layers, plan.upper, plan.work)
    return sum(len(str(path)) + len("/oldroot:") for path in paths) + len("lowerdir=,upperdir=,workdir=,userxattr")


def command_line(
    bwrap: Path, plan: Plan, command: Sequence[str], *, status_fd: int, seccomp_fd: int | None = None
) -> list[str]:
    """The argument vector that runs `command` as PID 1 of the planned sandbox.

    `status_fd` gets bubblewrap's JSON lines: `child-pid` once the sandbox's first process exists, `exit-code` at its
    end. `seccomp_fd` is read by bubblewrap: a filter of system calls.
    """
    return [
        str(bwrap),
        *_namespaces(plan),
        *_root(plan),
        *_proc_and_dev(plan),
        *_powers(plan, seccomp_fd),
        *("--json-status-fd", str(status_fd), "--clearenv", "--chdir", "/", "--"),
        *([] if plan.processes is None else ["/bin/sh", "-c", LIMIT_PROCESSES, str(plan.processes)]),
        *command,
    ]


def _namespaces(plan: Plan) -> list[str]:
    share = ["--share-net"] if plan.share_net else []
    identity = ["--disable-userns", "--uid", str(plan.user), "--gid", str(plan.user), "--hostname", HOSTNAME]
    life = ["--as-pid-1", "--die-with-parent", "--new-session"]
    return ["--unshare-all", "--unshare-user", *share, *identity, *life]


def _root(plan: Plan) -> list[str]:
    sources = [argument for layer in plan.layers for argument in ("--overlay-src", str(layer))]
    binds = [
        argument
        for bind in plan.binds
        for argument in ("--bind" if bind.writable else "--ro-bind", str(bind.source), bind.target)
    ]
    return [*sources, "--overlay", str(plan.upper), str(plan.work), "/", *binds]


def _proc_and_dev(plan: Plan) -> list[str]:
    read_only = [
        argument
        for name in READ_ONLY_PROC
        if name in plan.proc_names
        for argument in ("--ro-bind", f"/proc/{name}", f"/proc/{name}")
    ]
    covered = [
        argument
        for name in COVERED_PROC
        if name in plan.proc_names
        for argument in ("--dev-bind", "/dev/null", f"/proc/{name}")
    ]
    shm = ["--perms", "1777", "--size", str(plan.shm_mib << 20), "--tmpfs", "/dev/shm"]
    return ["--proc", "/proc", *read_only, *covered, "--dev", "/dev", *shm, "--ro-bind", str(plan.zipapp), ZIPAPP]


def _powers(plan: Plan, seccomp_fd: int | None) -> list[str]:
    capabilities = () if plan.user else CAPABILITIES
    kept = [argument for capability in capabilities for argument in ("--cap-add", capability)]
    filtered = [] if seccomp_fd is None else ["--seccomp", str(seccomp_fd)]
    return ["--cap-drop", "ALL", *kept, *filtered]
