"""Which CPUs a sandbox gets, and where this machine lets memory be limited."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.local.limits import choose_cpus, find_memory_controller, remove_cgroup

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


def test_machines_without_a_writable_cgroup_have_no_controller(tmp_path: Path) -> None:
    """A memory hierarchy that is not there, or takes no children, gives None."""
    assert None is find_memory_controller(mount=tmp_path, own="4:memory:/some/where\n0::/\n")
    assert None is find_memory_controller(mount=tmp_path, own="0::/user.slice/a.scope\n")


def test_version_2_children_go_beside_our_own_cgroup(tmp_path: Path) -> None:
    """With cgroup 2 the parent is our cgroup's parent, which may control memory; our own may not have both."""
    own = tmp_path / "user.slice" / "a.scope"
    own.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (own.parent / "cgroup.subtree_control").write_text("cpu memory\n")
    (own.parent / "cgroup.procs").write_text("")
    from sandbox.local.limits import _candidates

    assert [own.parent] == [c.parent for c in _candidates(tmp_path, {"": "/user.slice/a.scope"})]


def test_a_process_over_its_limit_is_killed_and_counted() -> None:
    """A memory cgroup that we made holds: the kernel kills what outgrows it, and says so."""
    controller = find_memory_controller()
    if controller is None:
        pytest.skip("no memory cgroup can be made here")
    cgroup = controller.name()
    try:
        cgroup.create(32)
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
