"""Who is below a process: chains of forks whose links end while they are looked for hide nobody."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execd import procs


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process and its child."""
    script = "sleep 300 & echo $!; wait"
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        yield parent.pid, child
        procs.kill_trees(lambda: procs.descendants(parent.pid))
        parent.kill()


def test_a_tree_is_found_and_spared_by_its_heads(family: tuple[int, int]) -> None:
    """All below a process, each with its start; what is spared takes its own with it."""
    parent, child = family
    here = procs.identity(parent)

    below = procs.descendants(procs.os.getpid())

    assert {here, procs.identity(child)} <= below
    assert {procs.identity(child)} == procs.descendants(parent)
    assert not {here, procs.identity(child)} & procs.descendants(procs.os.getpid(), {here})


@pytest.mark.parametrize("seen", [0, 1])
def test_a_link_that_ends_meanwhile_hides_no_later_link(
    family: tuple[int, int], seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a parent is gone when its turn to be read comes, or goes right after it was read once."""
    parent, child = family
    read, reads = procs._stat_fields, 0

    def ends(pid: int) -> object:
        nonlocal reads
        if pid != parent:
            return read(pid)
        reads += 1
        return read(pid) if (reads == 1) == bool(seen) else None

    monkeypatch.setattr(procs, "_stat_fields", ends)

    assert procs.identity(child) in procs.descendants(procs.os.getpid())


LEFT_BY_ITS_FIRST_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(30,)).start()
print("there", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_lives_and_is_killed() -> None:
    """Its state reads as that of a zombie, while another thread goes on."""
    line = [sys.executable, "-c", LEFT_BY_ITS_FIRST_THREAD]
    with subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None and b"there\n" == process.stdout.readline()
        stat = Path(f"/proc/{process.pid}/stat")
        deadline = time.monotonic() + 20
        while b") Z " not in stat.read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert b") Z " in stat.read_bytes()

        here = procs.identity(process.pid)
        assert here in procs.descendants(procs.os.getpid())
        procs.kill_trees(lambda: {here} & procs.descendants(procs.os.getpid()))

        assert -9 == process.wait(timeout=20)
        assert procs.identity(process.pid) is None
