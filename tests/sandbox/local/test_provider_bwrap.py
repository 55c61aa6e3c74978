"""The command line of bubblewrap is a pure function of its plan."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.local.bwrap import CAPABILITIES, LIMIT_PROCESSES, ZIPAPP, Bind, Plan, command_line, overlay_options_length

PLAN = Plan(
    layers=(Path("/store/low"), Path("/store/high")),
    upper=Path("/run/sb/upper"),
    work=Path("/run/sb/work"),
    binds=(Bind(Path("/usr"), "/usr"), Bind(Path("/run/sb/tmp"), "/tmp", writable=True)),
    zipapp=Path("/run/execd.pyz"),
    share_net=False,
    shm_mib=64,
    proc_names=frozenset({"sys", "keys"}),
)


def line(plan: Plan = PLAN) -> list[str]:
    return command_line(Path("/bin/bwrap"), plan, ["/usr/bin/python3", "x"], status_fd=7)


def contains(argv: list[str], *part: str) -> bool:
    return any(tuple(argv[at : at + len(part)]) == part for at in range(len(argv)))


def test_layers_lie_lowest_first_under_the_upper() -> None:
    """Overlay sources are given lowest first, then the upper and work directories at `/`."""
    root = ("--overlay-src", "/store/low", "--overlay-src", "/store/high")
    assert contains(line(), *root, "--overlay", "/run/sb/upper", "/run/sb/work", "/")


def test_binds_are_read_only_unless_writable() -> None:
    """A bind is `--ro-bind` unless its plan says writable."""
    assert contains(line(), "--ro-bind", "/usr", "/usr", "--bind", "/run/sb/tmp", "/tmp")


def test_denied_egress_has_its_own_network_and_open_shares_it() -> None:
    """`--share-net` appears for shared networks only; every other namespace is new in both."""
    assert "--share-net" not in line()
    shared = line(replace(PLAN, share_net=True))
    assert shared.index("--unshare-all") < shared.index("--share-net")


def test_powers_are_dropped_before_the_kept_ones_are_named() -> None:
    """All capabilities go, then the listed ones come back; none over tracing, mounting or devices is listed."""
    argv = line()
    assert contains(argv, "--cap-drop", "ALL", "--cap-add", CAPABILITIES[0])
    assert set(CAPABILITIES).isdisjoint({"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_MKNOD", "CAP_NET_ADMIN"})
    assert len(CAPABILITIES) == argv.count("--cap-add")


def test_dangerous_proc_names_are_closed_where_the_kernel_has_them() -> None:
    """What the plan lists of `/proc` is read-only or covered, after `/proc` itself is mounted; what it lacks is not."""
    argv = line()
    assert argv.index("--proc") < argv.index("/proc/sys")
    assert contains(argv, "--ro-bind", "/proc/sys", "/proc/sys")
    assert contains(argv, "--dev-bind", "/dev/null", "/proc/keys")
    assert "/proc/timer_list" not in argv


def test_the_command_comes_last_in_a_cleared_environment() -> None:
    """The daemon starts as PID 1, dies with its parent, and inherits no variable."""
    argv = line()
    assert argv[-3:] == ["--", "/usr/bin/python3", "x"]
    assert {"--clearenv", "--as-pid-1", "--die-with-parent", "--disable-userns", "--new-session"} <= set(argv)
    assert contains(argv, "--ro-bind", "/run/execd.pyz", ZIPAPP)


def test_the_length_of_the_overlay_options_counts_every_layer() -> None:
    """Each further layer adds its path and bubblewrap's prefix to what one mount must take."""
    deeper = replace(PLAN, layers=(*PLAN.layers, Path("/store/x")))
    assert len("/oldroot:/store/x") == overlay_options_length(deeper) - overlay_options_length(PLAN)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_limit_of_processes_that_cannot_be_set_starts_nothing_and_says_so(shell: str) -> None:
    """The limit holds for what is started, or nothing is, and the sandbox's log has the reason."""
    argv = [shell, "-c", LIMIT_PROCESSES]
    limited = subprocess.run([*argv, "321", "bash", "-c", "ulimit -u"], capture_output=True, check=True)
    assert b"321\n" == limited.stdout
    refused = subprocess.run([*argv, "nonsense", "echo", "started"], capture_output=True, check=False)
    assert (1, b"") == (refused.returncode, refused.stdout)
    assert b"its processes could not be limited to nonsense\n" == refused.stderr
