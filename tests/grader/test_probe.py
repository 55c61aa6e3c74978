"""Claims about `grader.probe`: what is read in a sandbox before anything of a submission is there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from grader import probe
from grader.campaign import Conditions
from grader.conditions import UNSET, Observed, environment
from sandbox import SandboxSpec
from tasksets.task import TestPlan
from tests.grader.tasks import Seeded, toy

pytestmark = pytest.mark.anyio

PLAN = TestPlan(setup="", test_command="true", parser="parse_log_pytest")


async def observed(provider: Seeded, spec: SandboxSpec, plan: TestPlan = PLAN) -> Observed:
    async with probe.Canary() as canary, provider.sandbox(spec) as box:
        return await probe.observe(box, plan, canary=canary, test_time_limit_s=7)


async def test_egress_is_proved_by_trying(tmp_path: Path) -> None:
    """Egress is observed as it is: denied where it is denied, open where it is open."""
    async with toy(tmp_path) as (_, provider):
        denied = await observed(provider, SandboxSpec(image="host", egress="denied"))
        opened = await observed(provider, SandboxSpec(image="host", egress="open"))
    assert denied.values["egress"] == "denied"
    assert opened.values["egress"] == "open"


async def test_without_a_canary_egress_is_unread(tmp_path: Path) -> None:
    """Where nothing was tried, egress is not among what was read."""
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        seen = await probe.observe(box, PLAN, canary=None, test_time_limit_s=7)
    assert "egress" not in seen.values


async def test_declared_variables_reach_the_tests_shell(tmp_path: Path) -> None:
    """Hash seed, time zone and locale are observed as the sandbox was asked to have them."""
    wanted = Conditions(hash_seed=3, time_zone="Asia/Tokyo", locale="C.UTF-8")
    async with toy(tmp_path) as (_, provider):
        seen = await observed(provider, SandboxSpec(image="host", env=environment(wanted)))
    assert (3, "Asia/Tokyo", "C.UTF-8") == tuple(seen.values[name] for name in ("hash_seed", "time_zone", "locale"))
    assert seen.values["test_time_limit_s"] == 7


async def test_undeclared_variables_are_unset(tmp_path: Path) -> None:
    """The host's own settings do not reach the tests' shell: its hash seed and time zone are unset."""
    async with toy(tmp_path) as (_, provider):
        seen = await observed(provider, SandboxSpec(image="host"))
    assert (UNSET, UNSET) == (seen.values["hash_seed"], seen.values["time_zone"])


async def test_what_activation_changes_is_seen(tmp_path: Path) -> None:
    """The environment is read after the task's own activation, in the shell that will run the tests."""
    plan = dataclasses.replace(PLAN, setup="set -uo pipefail\nexport TZ=Europe/Berlin\nmake\n")
    async with toy(tmp_path) as (_, provider):
        seen = await observed(provider, SandboxSpec(image="host", env={"TZ": "UTC"}), plan)
    assert seen.values["time_zone"] == "Europe/Berlin"


async def test_visible_cpus_are_counted_inside(tmp_path: Path) -> None:
    """The CPUs that a spec asks for are the CPUs that are seen inside."""
    async with toy(tmp_path) as (_, provider):
        seen = await observed(provider, SandboxSpec(image="host", cpus=1))
    assert seen.values["visible_cpus"] == 1
