"""Claims about `grader.shortage`, in real sandboxes: the kernel's counters tell of kills, and of nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from grader.shortage import memory_kills, refuse_after_memory_kills
from sandbox import LocalConfig, SandboxSpec, open_provider
from sandbox.errors import OutOfMemory

pytestmark = pytest.mark.anyio


async def test_a_kill_for_memory_is_told_by_the_sandboxs_own_counter(tmp_path: Path) -> None:
    """A process that outgrows the limit is counted once it is killed; a run that ends by itself is not."""
    spec = SandboxSpec(image="host", memory_mib=64)
    async with open_provider(LocalConfig(state_dir=tmp_path)) as provider, provider.sandbox(spec) as box:
        if "memory_mib" in box.unenforced:
            pytest.skip("no memory cgroup can be made here")
        before = await memory_kills(box)
        assert 137 == (await box.run("bash -c 'kill -9 $$'", timeout_s=20)).exit_code
        await refuse_after_memory_kills(box, before, exit_code=1)
        assert 137 == (await box.run("python3 -c 'bytearray(400 << 20)'", timeout_s=20)).exit_code
        with pytest.raises(OutOfMemory, match="killed 1 process in the sandbox"):
            await refuse_after_memory_kills(box, before, exit_code=1)
    assert before.counter is not None
    assert before.counter.startswith("/sys/fs/cgroup/memory")


async def test_what_others_were_killed_for_is_no_evidence(tmp_path: Path) -> None:
    """The machine's counter counts everybody's: only where the tests were killed. A missing one is none."""
    async with open_provider(LocalConfig(state_dir=tmp_path)) as provider, provider.sandbox(_host()) as box:
        none = await memory_kills(box, ["/no/such/file", "/etc/passwd", "/proc"])
        machine = await memory_kills(box, ["/no/such/file", "/proc/vmstat"])
        await refuse_after_memory_kills(box, none, exit_code=137)
        earlier = replace(machine, count=-1)
        await refuse_after_memory_kills(box, earlier, exit_code=1)
        with pytest.raises(OutOfMemory, match="on its machine"):
            await refuse_after_memory_kills(box, earlier, exit_code=137)
    assert None is none.counter
    assert "/proc/vmstat" == machine.counter


def _host() -> SandboxSpec:
    return SandboxSpec(image="host")
