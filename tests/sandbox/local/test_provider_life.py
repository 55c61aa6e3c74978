"""The local provider's own promises: limits, lost sandboxes, image builds, and what stays after a violent end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from sandbox import LocalConfig, SandboxSpec, open_provider
from sandbox.errors import AcquireTimeout, CreateError, ImageError, ProviderUnavailable, SandboxLost
from sandbox.local.provider import LocalProvider
from sandbox.local.site import _find_bwrap, remedy
from sandbox.testing import output
from tests.sandbox.deaf import Deaf
from tests.sandbox.local.leftovers import cgroups, leftovers

pytestmark = pytest.mark.anyio

HOST = SandboxSpec(image="host")
TIMEOUT_S = 30.0


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(LocalConfig(state_dir=tmp_path)) as provider:
        yield provider


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_every_way_of_counting_cpus_agrees(provider: LocalProvider) -> None:
    """nproc, affinity, libc and the facts all count the CPUs that the spec gives."""
    async with provider.sandbox(SandboxSpec(image="host", cpus=1)) as box:
        count = "import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))"
        assert b"1 1\n1\n" == await output(box, f'python3 -c "{count}"; nproc')
        assert 1 == (await box.facts()).visible_cpus


async def test_sandboxes_spread_over_the_cpus(provider: LocalProvider) -> None:
    """Two sandboxes of one CPU each run on two different ones, where there are two."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine gives us one CPU")
    spec = SandboxSpec(image="host", cpus=1)
    async with provider.sandbox(spec) as first, provider.sandbox(spec) as second:
        which = "taskset -cp $$ | sed 's/.*: //'"
        assert await output(first, which) != await output(second, which)


async def test_the_provider_keeps_its_own_cpus(provider: LocalProvider) -> None:
    """Starting a sandbox on one CPU leaves the affinity of the thread that starts it as it was."""
    before = os.sched_getaffinity(0)
    async with provider.sandbox(SandboxSpec(image="host", cpus=1)):
        assert before == os.sched_getaffinity(0)


async def test_more_cpus_than_there_are_is_reported(provider: LocalProvider) -> None:
    """A spec that asks for more CPUs than the machine has gets all, and says that this is not enforced."""
    async with provider.sandbox(SandboxSpec(image="host", cpus=4096)) as box:
        assert ("cpus",) == box.unenforced


async def test_at_most_max_live_at_once(tmp_path: Path) -> None:
    """With `max_live` taken an acquire waits in the queue phase, and says so; it goes on when one is given back."""
    async with open_provider(LocalConfig(state_dir=tmp_path, max_live=1)) as provider:
        async with provider.sandbox(HOST):
            with pytest.raises(AcquireTimeout) as late:
                async with provider.sandbox(HOST, acquire_timeout_s=0.2):
                    pass
            assert ["queue"] == list(late.value.waited_in)
        async with provider.sandbox(HOST) as box:
            assert box.phases.queue_s is not None


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def test_a_sandbox_killed_from_outside_is_lost_with_its_cause(provider: LocalProvider) -> None:
    """When its processes are killed the running command raises `SandboxLost`, whose cause is the signal."""
    async with provider.sandbox(HOST) as box:
        running = asyncio.create_task(box.run("sleep 60", timeout_s=60))
        await output(box, "true", session="other")
        child = provider._cells[box.identity.sandbox_id].process._child_fd
        assert child is not None
        signal.pidfd_send_signal(child, signal.SIGKILL)
        with pytest.raises(SandboxLost) as lost:
            await running
        assert "killed by signal 9" == lost.value.cause
        with pytest.raises(SandboxLost):
            await box.read("/etc/passwd")


async def test_a_daemon_killed_for_memory_says_so(provider: LocalProvider) -> None:
    """When the kernel's memory killer ends the first process itself, the cause is out_of_memory, from its counter."""
    async with provider.sandbox(SandboxSpec(image="host", memory_mib=64)) as box:
        if "memory_mib" in box.unenforced:
            pytest.skip("no memory cgroup can be made here")
        cell = provider._cells[box.identity.sandbox_id]
        assert 137 == (await box.run("python3 -c 'x = b\"x\" * (200 << 20)'", timeout_s=TIMEOUT_S)).exit_code
        assert cell.ended_because() is None
        assert cell.process._child_fd is not None
        signal.pidfd_send_signal(cell.process._child_fd, signal.SIGKILL)
        await cell.process.ended.wait()
        assert "out_of_memory" == cell.cause()


async def test_a_directory_that_is_not_there_fails_the_create(provider: LocalProvider) -> None:
    """A sandbox whose image cannot be mounted raises `CreateError` with what bubblewrap said."""
    image = provider.host_image
    broken = type(image)(**{**vars(image), "layers": (Path("/no/such/layer"),)})
    upper = provider.state_dir / "upper"
    upper.mkdir()
    with pytest.raises(CreateError, match="/no/such/layer"):
        async with provider.build_sandbox(broken, upper):
            pass


OPEN = """
import asyncio, sys
from pathlib import Path
from sandbox import LocalConfig, open_provider
from sandbox.errors import ProviderUnavailable

async def main():
    async with open_provider(LocalConfig(state_dir=Path(sys.argv[1]))):
        print("opened")

try:
    asyncio.run(main())
except ProviderUnavailable as error:
    print(error)
"""


async def test_without_user_namespaces_one_sentence_says_what_to_enable(tmp_path: Path) -> None:
    """Where the kernel makes no user namespace, opening raises `ProviderUnavailable` with the remedy."""
    forbidding = [str(_find_bwrap()), "--dev-bind", "/", "/", "--unshare-user", "--disable-userns"]
    argv = [*forbidding, sys.executable, "-c", OPEN, str(tmp_path)]
    said = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True).stdout
    assert "user namespaces" in said
    assert "enable them" in said
    assert [] == leftovers(tmp_path)


async def test_the_remedy_names_the_setting_that_forbids(tmp_path: Path) -> None:
    """What to type is read from the kernel's settings; a failing overlay asks for another state_dir."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user/max_user_namespaces").write_text("0\n")
    assert "`sysctl user.max_user_namespaces=15000`" in remedy(
        "No permissions to create a namespace", settings=tmp_path
    )
    assert "state_dir" in remedy("Can't make overlay mount on /newroot/: Invalid argument", settings=tmp_path)


async def test_a_machine_that_forbids_sandboxes_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When bubblewrap fails, opening raises `ProviderUnavailable` and leaves nothing behind."""
    monkeypatch.setattr("sandbox.local.site._find_bwrap", lambda: Path("/bin/false"))
    with pytest.raises(ProviderUnavailable):
        async with open_provider(LocalConfig(state_dir=tmp_path)):
            pass
    assert [] == leftovers(tmp_path)


async def test_a_closed_provider_refuses(tmp_path: Path) -> None:
    """After its end a provider makes no sandbox."""
    async with LocalProvider(LocalConfig(state_dir=tmp_path)) as provider:
        pass
    with pytest.raises(CreateError):
        async with provider.sandbox(HOST):
            pass


# -- builds ------------------------------------------------------------------------------------------------------------


async def test_a_build_keeps_what_was_written(provider: LocalProvider, tmp_path: Path) -> None:
    """The upper directory of a build becomes a layer that a later sandbox sees; `/tmp` is not in it."""
    upper = tmp_path / "build" / "upper"
    upper.mkdir(parents=True)
    async with provider.build_sandbox(provider.host_image, upper, egress="denied") as box:
        await output(box, "mkdir -p /srv/repo && cd /srv/repo && git init -q . && echo one > file && git add file")
        await output(box, "echo scrap > /tmp/scrap; rm -r /media")
    assert [upper] == list(upper.parent.iterdir())
    assert not (upper / "tmp" / "scrap").exists()
    built = type(provider.host_image)(**{**vars(provider.host_image), "layers": (*provider.host_image.layers, upper)})
    second = tmp_path / "build" / "second"
    second.mkdir()
    async with provider.build_sandbox(built, second) as box:
        assert b"A  file\n" == await output(box, "cd /srv/repo && git status --porcelain")
        assert b"0:0\n" == await output(box, "stat -c %u:%g /srv/repo/file")
        assert 0 != (await box.run("ls -d /media", timeout_s=TIMEOUT_S)).exit_code


# -- nothing stays -----------------------------------------------------------------------------------------------------


async def test_a_log_that_cannot_be_written_loses_no_sandbox(tmp_path: Path) -> None:
    """While every log line raises, a sandbox works, a create that fails tells why, and nothing is left at the end."""
    deaf = Deaf()
    structlog.configure(logger_factory=deaf)
    async with open_provider(LocalConfig(state_dir=tmp_path)) as provider:
        async with provider.sandbox(HOST) as box:
            assert b"on\n" == await output(box, "echo on")
        with pytest.raises(ImageError):
            async with provider.sandbox(SandboxSpec(image="no-such-image")):
                pass
    assert [] == leftovers(tmp_path)
    assert deaf.lines >= 2


async def test_after_a_run_nothing_is_left(tmp_path: Path) -> None:
    """When the provider has closed there is no process, mount, cgroup or directory of its sandboxes."""
    spec = SandboxSpec(image="host", memory_mib=256)
    async with open_provider(LocalConfig(state_dir=tmp_path)) as provider, provider.sandbox(spec) as box:
        await output(box, "mkdir -p /a/b && chmod 0 /a/b /a; sleep 600 & (setsid sleep 600 &) ; echo x > /tmp/x")
        assert [] != leftovers(tmp_path)
        made = cgroups(tmp_path)
        assert ("memory_mib" in box.unenforced) == (not made)
    assert [] == leftovers(tmp_path)
    assert [] == [path for path in made if path.exists()]
    assert ["execd", "host"] == sorted(path.name for path in tmp_path.iterdir() if any(path.iterdir()))


OWNER = """
import asyncio, sys
from pathlib import Path
from sandbox import LocalConfig, SandboxSpec, open_provider

async def use(provider):
    while True:
        async with provider.sandbox(SandboxSpec(image="host", memory_mib=256)) as box:
            print("got one", flush=True)
            await box.run("(setsid sleep 600 &); sleep 0.2", timeout_s=60)

async def main():
    async with open_provider(LocalConfig(state_dir=Path(sys.argv[1]))) as provider:
        await asyncio.gather(*(use(provider) for _ in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("after_s", [0.0, 0.13, 0.31])
async def test_a_killed_owner_takes_its_sandboxes_along(tmp_path: Path, after_s: float) -> None:
    """After kill -9 amid creates and commands no process stays, and the next start removes directories and cgroups."""
    argv = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        assert b"got one\n" == owner.stdout.readline()
        time.sleep(after_s)
        owner.kill()
    assert [] != [line for line in leftovers(tmp_path) if "process" not in line]
    made = cgroups(tmp_path)
    async with open_provider(LocalConfig(state_dir=tmp_path)):
        pass
    assert [] == leftovers(tmp_path)
    assert [] == [path for path in made if path.exists()]


async def test_an_interrupted_program_leaves_nothing(tmp_path: Path) -> None:
    """SIGINT, as by Ctrl-C, twice in a row, ends the program with everything removed."""
    argv = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        assert b"got one\n" == owner.stdout.readline()
        owner.send_signal(signal.SIGINT)
        owner.wait(timeout=60)
    assert [] == leftovers(tmp_path)
