"""The probe of run conditions on a warm sandbox: everything declared, on the host's Python and on a task's own."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path

from grader import probe
from grader.campaign import Conditions, Limits
from grader.conditions import Promises, compare, environment
from sandbox import LocalConfig, SandboxSpec, open_provider
from tasksets.task import TestPlan
from tests.bench.measure import Measurement, measurement, timed, timed_async

PLAN = TestPlan(setup="", test_command="python3 -m pytest", parser="parse_log_pytest")
CONDITIONS = Conditions(hash_seed=0, time_zone="Europe/Berlin", locale="C.UTF-8", visible_cpus=1)


async def measure(state_dir: Path) -> list[Measurement]:
    """One probe, its comparison included, in a sandbox that was probed once before."""
    python = timed(lambda: subprocess.run(["/usr/bin/python3", "-c", "import json, locale"], check=True), 20)
    spec = SandboxSpec(image="host", cpus=1, env=environment(CONDITIONS))
    promises = Promises.of(CONDITIONS, Limits())
    async with (
        probe.Canary() as canary,
        open_provider(LocalConfig(state_dir=state_dir)) as provider,
        provider.sandbox(spec) as box,
    ):

        async def once() -> None:
            seen = await probe.observe(box, PLAN, CONDITIONS, promises, canary=canary)
            comparison = compare(CONDITIONS, seen)
            assert not comparison.contradicted
            assert not comparison.unread

        await once()
        taken = await timed_async(once, 20)
    return [
        measurement(
            "probe of run conditions, warm",
            taken,
            beside="a Python that imports json and locale",
            beside_ms=statistics.median(python),
            aim="under 150 ms",
        )
    ]
