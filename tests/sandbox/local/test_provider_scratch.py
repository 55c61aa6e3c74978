"""What the provider keeps on disk goes away again, whatever hostile code left in it and whoever died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import LocalConfig, open_provider
from sandbox.errors import ProviderUnavailable
from sandbox.local.scratch import Instance, dead_instances, remove_tree, state_directory
from sandbox.local.store import ImageStore
from sandbox.local.sweep import INSTANCE_VARIABLE, Swept, sweep

DEPTH = 3000


def make_deep(top: Path) -> None:
    """A tree that is deeper than a path can say and than a recursion can go."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d" * 10, dir_fd=here)
        below = os.open("d" * 10, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_a_tree_deeper_than_a_path_is_removed(tmp_path: Path) -> None:
    """Thousands of nested directories are removed without recursion or long paths."""
    make_deep(tmp_path / "top")
    remove_tree(tmp_path / "top")
    assert [] == list(tmp_path.iterdir())


def test_closed_directories_are_removed(tmp_path: Path) -> None:
    """A directory without any permission, as overlayfs leaves one, does not stop a removal."""
    closed = tmp_path / "top" / "work" / "work"
    closed.mkdir(parents=True)
    (closed / "file").write_text("x")
    closed.chmod(0)
    (tmp_path / "top").chmod(0o500)
    remove_tree(tmp_path / "top")
    assert [] == list(tmp_path.iterdir())


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    """A link out of the tree is unlinked; what it points to stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (tmp_path / "top").mkdir()
    (tmp_path / "top/dir").symlink_to(outside)
    (tmp_path / "top/file").symlink_to(outside / "kept")
    (tmp_path / "top/dangling").symlink_to("/nowhere")
    remove_tree(tmp_path / "top")
    assert [outside] == list(tmp_path.iterdir())
    assert "kept" == (outside / "kept").read_text()


def test_a_missing_tree_is_fine(tmp_path: Path) -> None:
    """Removing what is not there does nothing."""
    remove_tree(tmp_path / "nothing")
    assert [] == list(tmp_path.iterdir())


def test_a_closed_instance_leaves_nothing(tmp_path: Path) -> None:
    """Closing removes the directory and the lock."""
    instance = Instance.open(tmp_path)
    (instance.scratch("a").upper / "file").write_text("x")
    instance.close()
    assert [] == list((tmp_path / "run").iterdir())


@pytest.mark.anyio
@pytest.mark.parametrize("place", ["file", "file/below", "/dev/null", "/proc/none"])
async def test_a_state_directory_that_cannot_be_one_is_named(tmp_path: Path, place: str) -> None:
    """Who opens a provider or a store there hears which directory it is and what to do."""
    (tmp_path / "file").write_text("")
    told = rf"{tmp_path / place}: cannot be made or written \(.*\); name another --state-dir"

    with pytest.raises(ProviderUnavailable, match=told):
        async with open_provider(LocalConfig(state_dir=tmp_path / place)):
            pass
    with pytest.raises(ProviderUnavailable, match=told):
        ImageStore(tmp_path / place)


def test_a_sweep_of_what_is_no_directory_is_no_clean_sweep(tmp_path: Path) -> None:
    """Nothing was removed, and the sweep says why instead of that there was nothing."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ProviderUnavailable, match="Not a directory"):
        sweep(tmp_path / "file")
    assert Swept(0, 0, 0) == sweep(tmp_path / "not there yet")


def test_a_cache_without_a_home_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has no home is told to name a directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", "~nobody-of-that-name/cache")

    with pytest.raises(ProviderUnavailable, match="name another --state-dir"):
        state_directory(None)


def test_a_living_instance_is_not_swept(tmp_path: Path) -> None:
    """A sweep leaves an instance alone for as long as its owner holds the lock."""
    instance = Instance.open(tmp_path)
    instance.scratch("a")
    assert Swept(0, 0, 0) == sweep(tmp_path)
    assert instance.root.is_dir()
    instance.close()


OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from sandbox.local.scratch import Instance
from sandbox.local.sweep import INSTANCE_VARIABLE
instance = Instance.open(Path(sys.argv[1]))
for name in ("a", "b"):
    (instance.scratch(name).upper / "file").write_text("x")
stray = subprocess.Popen(["sleep", "60"], env={INSTANCE_VARIABLE: str(instance.root)}, start_new_session=True)
print(stray.pid, flush=True)
time.sleep(60)
"""


def test_what_a_killed_owner_left_is_swept_by_the_next(tmp_path: Path) -> None:
    """After kill -9 a sweep removes the directories and ends processes that carry the dead instance's name."""
    argv = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        stray = os.pidfd_open(int(owner.stdout.readline()))
        assert [] == dead_instances(tmp_path)
        owner.kill()
    assert Swept(instances=1, sandboxes=2, processes=1) == sweep(tmp_path)
    assert [] == list((tmp_path / "run").iterdir())
    assert gone(stray)


def test_a_sweep_ends_no_process_of_a_living_instance(tmp_path: Path) -> None:
    """Only the dead instances' names are looked for."""
    living, dead = Instance.open(tmp_path), Instance.open(tmp_path)
    os.close(dead.lock_fd)
    with subprocess.Popen(["sleep", "60"], env={INSTANCE_VARIABLE: str(living.root)}) as process:
        assert Swept(instances=1, sandboxes=0, processes=0) == sweep(tmp_path)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    living.close()


def gone(pidfd: int) -> bool:
    """Whether the process ends within two seconds; closes `pidfd`."""
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    ended = bool(poller.poll(2000))
    os.close(pidfd)
    return ended
