"""Which CPUs a sandbox gets, and where this machine lets memory, CPU time and processes be limited."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.local.limits import Allowance, Hierarchy, _candidates, choose_cpus, find_hierarchies, remove_cgroup

CPUS = st.sets(st.integers(0, 63), min_size=1)


@given(st.integers(1, 70), CPUS, st.lists(st.lists(st.integers(0, 63), max_size=4).map(tuple), max_size=8))
def test_as_many_cpus_as_wanted_or_all(wanted: int, available: set[int], in_use: list[tuple[int, ...]]) -> None:
    """The choice has the wanted number of distinct available CPUs, or all of them when there are fewer."""
    chosen = choose_cpus(wanted, available, in_use)
    assert min(wanted, len(available)) == len(set(chosen)) == len(chosen)
    assert set(chosen) <= available


def test_the_least_used_cpus_are_chosen() -> None:
    """CPUs that fewer live sandboxes use come first, lower numbers before higher ones."""
    assert (2, 3) == choose_cpus(2, range(4), [(0,), (1,), (0, 1)])
    assert (0, 1) == choose_cpus(2, range(4), [])
    assert (1,) == choose_cpus(1, range(3), [(0,), (2,)])


def test_machines_without_a_writable_cgroup_have_no_hierarchy(tmp_path: Path) -> None:
    """Hierarchies that are not there, or take no children, give none."""
    assert () == find_hierarchies(mount=tmp_path, own="4:memory:/some/where\n3:cpu,cpuacct:/\n0::/\n")
    assert () == find_hierarchies(mount=tmp_path, own="0::/user.slice/a.scope\n")


def test_version_2_children_go_beside_our_own_cgroup(tmp_path: Path) -> None:
    """With cgroup 2 the parent is our cgroup's parent, with the controllers that it gives its children."""
    own = tmp_path / "user.slice" / "a.scope"
    own.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    (own.parent / "cgroup.subtree_control").write_text("io memory pids\n")
    (own.parent / "cgroup.procs").write_text("")
    found = list(_candidates(tmp_path, {"": "/user.slice/a.scope"}))
    assert [Hierarchy(own.parent, 2, frozenset({"memory", "pids"}))] == found


def test_version_1_hierarchies_are_taken_one_by_one(tmp_path: Path) -> None:
    """With cgroup 1 each hierarchy gives those of the controllers that it was mounted with, below our own group."""
    found = list(_candidates(tmp_path, {"cpu,cpuacct": "/", "pids": "/a", "freezer": "/", "": "/"}))
    assert [
        Hierarchy(tmp_path / "cpu,cpuacct", 1, frozenset({"cpu"})),
        Hierarchy(tmp_path / "pids/a", 1, frozenset({"pids"})),
    ] == found


@pytest.mark.parametrize(
    ("version", "written"),
    [
        (1, {"memory.limit_in_bytes": "1048576", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}),
        (2, {"memory.max": "1048576", "cpu.max": "150000 100000"}),
    ],
)
def test_limits_are_written_as_the_version_spells_them(tmp_path: Path, version: int, written: dict[str, str]) -> None:
    """Each limit lands in the kernel's file of that version; files that not every kernel has are left out."""
    cgroup = Hierarchy(tmp_path, version, frozenset({"memory", "cpu", "pids"})).name()
    cgroup.create(Allowance(memory_mib=1, cpu_quota=1.5, processes=7))
    assert {**written, "pids.max": "7"} == {path.name: path.read_text() for path in cgroup.path.iterdir()}


def test_a_hierarchy_writes_only_what_it_controls(tmp_path: Path) -> None:
    """A limit whose controller is elsewhere is not written here."""
    cgroup = Hierarchy(tmp_path, 1, frozenset({"pids"})).name()
    cgroup.create(Allowance(memory_mib=1, processes=7))
    assert ["pids.max"] == [path.name for path in cgroup.path.iterdir()]


def test_each_controller_is_used_once() -> None:
    """What is found on this machine divides the controllers, and each takes a child."""
    controllers = [name for hierarchy in find_hierarchies() for name in hierarchy.controllers]
    assert len(set(controllers)) == len(controllers)


def test_a_process_over_its_limit_is_killed_and_counted() -> None:
    """A memory cgroup that we made holds: the kernel kills what outgrows it, and says so."""
    hierarchy = next((one for one in find_hierarchies() if "memory" in one.controllers), None)
    if hierarchy is None:
        pytest.skip("no memory cgroup can be made here")
    cgroup = hierarchy.name()
    try:
        cgroup.create(Allowance(memory_mib=32))
        greedy = f'echo $$ > "{cgroup.path}/cgroup.procs" && exec {sys.executable} -c "x = bytearray(200 << 20)"'
        ended = subprocess.run(["/bin/sh", "-c", greedy], check=False)
        assert -9 == ended.returncode
        assert 1 == cgroup.oom_kills()
    finally:
        remove_cgroup(cgroup.path)
    assert not cgroup.path.exists()


def test_only_cgroups_of_ours_are_removed(tmp_path: Path) -> None:
    """A directory whose name we did not give stays."""
    (tmp_path / "other").mkdir()
    remove_cgroup(tmp_path / "other")
    assert (tmp_path / "other").is_dir()
