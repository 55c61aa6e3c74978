"""What the daemon says of its cgroup: a number, that there is no limit, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from execd import facts

HUGE = str((1 << 63) - 4096)
V2 = {"/proc/self/cgroup": "0::/pod/box", "/sys/fs/cgroup/cpu.max": "max 100000"}
V1 = {"/sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000"}


def read(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]) -> dict[str, object]:
    def text(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    monkeypatch.setattr(facts, "_text", text)
    return dict(facts.read({}, "boot", None))


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        pytest.param({}, (None, None, None), id="no cgroup to see"),
        pytest.param(
            {**V2, "/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/pids.max": "max"},
            ("unlimited", "unlimited", "unlimited"),
            id="version 2, no limits",
        ),
        pytest.param(
            {
                **V2,
                "/sys/fs/cgroup/pod/box/cpu.max": "150000 100000",
                "/sys/fs/cgroup/memory.max": "1048576",
                "/sys/fs/cgroup/pod/memory.max": "2097152",
                "/sys/fs/cgroup/pod/box/memory.max": "max",
                "/sys/fs/cgroup/pids.max": "7",
            },
            (1.5, 1048576, 7),
            id="version 2, the tightest of our own group and its parents",
        ),
        pytest.param(
            {
                **V1,
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "25000",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576",
                "/sys/fs/cgroup/pids/pids.max": "7",
            },
            (0.5, 1048576, 7),
            id="version 1",
        ),
        pytest.param(
            {
                **V1,
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": HUGE,
                "/sys/fs/cgroup/pids/pids.max": "max",
            },
            ("unlimited", "unlimited", "unlimited"),
            id="version 1, no limits",
        ),
    ],
)
def test_no_limit_is_told_from_nothing_read(
    monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str], limits: tuple[object, object, object]
) -> None:
    """Limits are numbers; that there is none is said, and differs from not having been able to look."""
    cgroup = read(monkeypatch, files)["cgroup"]
    assert dict(zip(("cpus", "memory_bytes", "processes"), limits, strict=True)) == cgroup


def test_the_older_names_hold_numbers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpu_quota` and `memory_limit_bytes` are numbers, or null where no limit is known."""
    open_ended = read(monkeypatch, {**V2, "/sys/fs/cgroup/memory.max": "max"})
    assert (None, None) == (open_ended["cpu_quota"], open_ended["memory_limit_bytes"])
    tight = read(monkeypatch, {"/sys/fs/cgroup/cpu.max": "100000 100000", "/sys/fs/cgroup/memory.max": "4096"})
    assert (1.0, 4096) == (tight["cpu_quota"], tight["memory_limit_bytes"])
