"""What a spec limits holds inside, as a program there meets it; or `unenforced` names it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import LocalConfig, SandboxSpec
from sandbox.local.cell import DEFAULT_PROCESSES
from sandbox.local.provider import LocalProvider
from sandbox.provider import Sandbox
from sandbox.testing import output

pytestmark = pytest.mark.anyio

BOMB = "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 1; echo on"
BUSY = """python3 -c '
import os, time
end = time.monotonic() + 1.5
while time.monotonic() < end: pass
print(sum(os.times()[:2]) / 1.5)
'"""


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(LocalConfig(state_dir=tmp_path)) as provider:
        yield provider


def limited(**limits: Any) -> SandboxSpec:
    return SandboxSpec(image="host", **limits)


def held(box: Sandbox, name: str) -> None:
    """Skip where this machine cannot enforce it; that it is named is then what was claimed."""
    if name in box.unenforced:
        pytest.skip(f"{name} cannot be enforced on this machine, and the sandbox says so")


async def test_a_fork_bomb_ends_at_the_limit_of_processes(provider: LocalProvider) -> None:
    """A fork bomb gets no further than the limit; the sandbox still answers, and its end takes the bomb along."""
    async with provider.sandbox(limited(processes=60)) as box:
        held(box, "processes")
        assert b"on\n" == await output(box, "echo on")  # so that its shell is there: nothing new starts beside a bomb
        bombed = await box.run(BOMB, timeout_s=20, session="bomb")
        alive = len([pid for pid in (await output(box, "echo /proc/[0-9]*")).split() if pid])
        calm = await output(box, "echo calm")
    assert b"on\n" in bombed.output
    assert 20 < alive <= 60
    assert b"calm" in calm


async def test_a_sandbox_has_a_limit_of_processes_unasked(provider: LocalProvider) -> None:
    """A spec that names no limit gets the provider's own, so that no suite can take the machine's last process."""
    async with provider.sandbox(limited()) as box:
        read = await output(box, "cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null; ulimit -u")
    site = provider._open_site()
    counted = any("pids" in hierarchy.controllers for hierarchy in site.cgroups)
    own = DEFAULT_PROCESSES if counted else min(DEFAULT_PROCESSES, site.powers.processes_max)
    assert (counted or site.powers.counts_processes) == (b"%d" % own in read.split())


async def test_a_process_opens_no_more_files_than_its_limit(provider: LocalProvider) -> None:
    """Soft and hard limit are the spec's."""
    async with provider.sandbox(limited(open_files=256)) as box:
        held(box, "open_files")
        assert b"256\n256\n" == await output(box, "ulimit -Sn; ulimit -Hn")
        opened = "import os; [os.open('/dev/null', os.O_RDONLY) for _ in range(256)]"
        assert b"Too many open files" in (await box.run(f'python3 -c "{opened}"', timeout_s=20)).output


async def test_a_limit_of_files_beyond_what_we_may_set_is_reported(provider: LocalProvider) -> None:
    """More than the kernel takes is named as not enforced, and the sandbox still comes."""
    async with provider.sandbox(limited(open_files=1 << 40)) as box:
        assert ("open_files",) == box.unenforced
        assert b"on\n" == await output(box, "echo on")


async def test_half_a_cpu_is_half_a_cpu(provider: LocalProvider) -> None:
    """A busy program gets the share that the quota names, not more."""
    async with provider.sandbox(limited(cpu_quota=0.4)) as box:
        held(box, "cpu_quota")
        assert float(await output(box, BUSY)) < 0.55


async def test_shared_memory_has_the_size_that_was_asked_for(provider: LocalProvider) -> None:
    """`/dev/shm` is as large as the spec says, whatever the memory limit."""
    async with provider.sandbox(limited(shm_mib=8, memory_mib=512)) as box:
        assert b"8192\n" == await output(box, "df -k --output=size /dev/shm | tail -1 | tr -d ' '")


async def test_the_umask_is_the_specs_and_not_the_hosts(provider: LocalProvider) -> None:
    """New files get the spec's umask; without one it is 022, whatever the provider's own process has."""
    async with provider.sandbox(limited(umask=0o077)) as box, provider.sandbox(limited()) as usual:
        assert b"600\n" == await output(box, "touch /tmp/file && stat -c %a /tmp/file")
        assert b"644\n" == await output(usual, "touch /tmp/file && stat -c %a /tmp/file")


async def test_another_user_has_no_power_over_the_system(provider: LocalProvider) -> None:
    """With a user id, everything inside is that user, without a single capability."""
    async with provider.sandbox(limited(user=1000)) as box:
        assert b"1000 1000\n" == await output(box, "echo $(id -u) $(id -g)")
        assert b"0000000000000000" in await output(box, "grep CapEff /proc/self/status")
        assert 0 != (await box.run("chroot / true", timeout_s=20)).exit_code


async def test_an_unfiltered_sandbox_is_not_given(provider: LocalProvider) -> None:
    """The filter of system calls stays, and that it does is reported."""
    async with provider.sandbox(limited(seccomp="unconfined")) as box:
        filtered = b"Seccomp:\t2" in await output(box, "grep Seccomp: /proc/self/status")
    assert filtered == ("seccomp" in box.unenforced)


async def test_nothing_of_the_limits_is_left_behind(provider: LocalProvider) -> None:
    """The cgroups of a sandbox go with it."""
    async with provider.sandbox(limited(memory_mib=256, cpu_quota=1, processes=100)) as box:
        cell = provider._cells[box.identity.sandbox_id]
        made = [cgroup.path for cgroup in cell._cgroups]
        assert all(path.is_dir() for path in made)
    await provider.__aexit__(None, None, None)
    try:
        assert not any(path.exists() for path in made)
    finally:
        await provider.__aenter__()
