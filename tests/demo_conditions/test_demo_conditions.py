"""The preflight demo must name what each of its tasks depends on, whatever the dice say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox import LocalConfig, SandboxSpec, open_provider
from tests.demo_conditions.__main__ import preflight

TIMES = 2


async def _limits_are_enforced() -> bool:
    spec = SandboxSpec(image="host", cpus=1, memory_mib=256)
    async with open_provider(LocalConfig()) as provider, provider.sandbox(spec) as box:
        return not box.unenforced


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.anyio
async def test_each_task_is_of_its_class_every_time(tmp_path: Path) -> None:
    """Each dependence is named, and no other; the healthy task alone is admitted. Several runs, all right."""
    if (os.cpu_count() or 1) < 2 or not await _limits_are_enforced():
        pytest.skip("this machine has one CPU, or no memory cgroup can be made, so that two of the cases cannot fail")

    wrong = [
        (time, named.case.name, named.kind, named.needs)
        for time in range(TIMES)
        for named in preflight(tmp_path / str(time))
        if not named.is_right
    ]

    assert [] == wrong
