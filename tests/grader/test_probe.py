"""Claims about `grader.probe`: what is read in a sandbox before anything of a submission is there."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import cast

import pytest

from grader import probe
from grader.campaign import Conditions
from grader.conditions import UNSET, Look, Observed, Promises, environment
from sandbox import ExecResult, Sandbox, SandboxSpec
from sandbox.spec import Egress
from tasksets.task import TestPlan
from tests.execd.conftest import PYTHONS
from tests.grader.tasks import Seeded, toy

pytestmark = pytest.mark.anyio

PLAN = TestPlan(setup="", test_command="true", parser="parse_log_pytest")


PROMISES = Promises(test_time_limit_s=7, attempts=1)


async def observed(
    provider: Seeded, spec: SandboxSpec, plan: TestPlan = PLAN, conditions: Conditions | None = None
) -> Observed:
    async with probe.Canary() as canary, provider.sandbox(spec) as box:
        return await probe.observe(box, plan, conditions or Conditions(), PROMISES, canary=canary)


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
        seen = await probe.observe(box, PLAN, Conditions(), PROMISES, canary=None)
    assert "egress" not in seen.values


async def test_declared_variables_reach_the_tests_shell(tmp_path: Path) -> None:
    """Hash seed, time zone and locale are observed as the sandbox was asked to have them."""
    wanted = Conditions(hash_seed=3, time_zone="Asia/Tokyo", locale="C.UTF-8")
    async with toy(tmp_path) as (_, provider):
        seen = await observed(provider, SandboxSpec(image="host", env=environment(wanted)), conditions=wanted)
    assert (3, "Asia/Tokyo", "C.UTF-8") == tuple(seen.values[name] for name in ("hash_seed", "time_zone", "locale"))
    assert seen.values["test_time_limit_s"] == 7


async def test_undeclared_variables_are_unset(tmp_path: Path) -> None:
    """The host's own settings do not reach the tests' shell: its hash seed is unset, its time that of the image."""
    async with toy(tmp_path) as (_, provider):
        seen = await observed(provider, SandboxSpec(image="host"))
    assert (UNSET, "UTC+00:00 UTC") == (seen.values["hash_seed"], seen.values["time_zone"])


async def test_what_activation_changes_is_seen(tmp_path: Path) -> None:
    """The environment is read after the task's own activation, in the shell that will run the tests."""
    plan = dataclasses.replace(PLAN, setup="set -uo pipefail\nexport TZ=Europe/Berlin\nmake\n")
    async with toy(tmp_path) as (_, provider):
        seen = await observed(provider, SandboxSpec(image="host", env={"TZ": "UTC"}), plan)
    assert seen.values["time_zone"] == "UTC+01:00 CET / UTC+02:00 CEST (TZ=Europe/Berlin)"


async def test_visible_cpus_are_counted_inside(tmp_path: Path) -> None:
    """The CPUs that a spec asks for are the CPUs that are seen inside."""
    async with toy(tmp_path) as (_, provider):
        seen = await observed(provider, SandboxSpec(image="host", cpus=1))
    assert seen.values["visible_cpus"] == 1


class Late:
    """A sandbox whose way out is shut only after `looks` looks, as where a policy comes into force late: a real one
    with egress open, then a real one with egress denied."""

    def __init__(self, opened: Sandbox, denied: Sandbox, looks: int, egress: Egress) -> None:
        self._opened, self._denied, self.left = opened, denied, looks
        self.spec = denied.spec.model_copy(update={"egress": egress})

    async def run(self, command: str, *, timeout_s: float, stdin: bytes) -> ExecResult:
        self.left -= 1
        box = self._opened if self.left >= 0 else self._denied
        return await box.run(command, timeout_s=timeout_s, stdin=stdin)

    def __getattr__(self, name: str) -> object:
        return getattr(self._denied, name)


@pytest.mark.parametrize(
    ("looks", "egress", "seen"),
    [(3, "denied", "denied"), (10**6, "denied", "open"), (1, "open", "open")],
    ids=["late", "never", "open"],
)
async def test_a_late_policy_is_waited_for_and_a_missing_one_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int, egress: Egress, seen: str
) -> None:
    """A way out that shuts a little after the start is denied; one that stays open, or is to be open, is open."""
    monkeypatch.setattr(probe, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(probe, "SETTLE_S", 30 if seen == "denied" else 0.5)
    opened, denied = SandboxSpec(image="host", egress="open"), SandboxSpec(image="host")
    async with (
        probe.Canary() as canary,
        toy(tmp_path) as (_, provider),
        provider.sandbox(opened) as first,
        provider.sandbox(denied) as then,
    ):
        late = cast("Sandbox", Late(first, then, looks, egress))
        found = await probe.observe(late, PLAN, Conditions(), PROMISES, canary=canary)
    assert found.values["egress"] == seen


async def test_the_tests_shell_is_as_before(tmp_path: Path) -> None:
    """The probe leaves no variable, option, directory, file or process of its own behind."""
    own = "BASH_|RANDOM|SECONDS|EPOCH|PIPESTATUS|_execd| _="
    show = f"set +x; pwd; set -o; declare -p | grep -vE '{own}'; ls -A /tmp /dev/shm; jobs; set -x"
    plan = dataclasses.replace(PLAN, setup="set -uxo pipefail\ncd /testbed\nexport A=b\n")
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        await box.run(plan.setup * 2, timeout_s=30)  # the probe activates it as well
        before = await box.run(show, timeout_s=30)
        seen = await probe.observe(box, plan, Conditions(), PROMISES, canary=None)
        after = await box.run(show, timeout_s=30)
    assert "python" in seen.values
    assert before.output.splitlines() == after.output.splitlines()


async def test_modules_of_the_task_do_not_stand_for_the_librarys(tmp_path: Path) -> None:
    """A repository that has a `json` or `locale` of its own in the working directory changes nothing that is read."""
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        for name in ("json", "locale", "select", "errno", "resource"):
            await box.write(f"/testbed/{name}.py", b"raise SystemExit(1)")
        plan = dataclasses.replace(PLAN, setup="cd /testbed\nexport PYTHONPATH=/testbed\n")
        seen = await probe.observe(box, plan, Conditions(), PROMISES, canary=None)
    assert {"python", "locale", "hash_seed", "umask"} <= seen.values.keys()


@pytest.mark.parametrize(
    ("setup", "command", "silent"),
    [
        ("export PYTHONHOME=/nowhere", "pytest", "python3"),
        ("export PATH=/testbed/shims:$PATH", "python -m pytest", "/testbed/shims/python"),
        ("export PATH=/testbed/shims:$PATH", "python3 -m pytest", None),
        ("export PATH=/testbed/shims:$PATH", "make test", None),
    ],
    ids=["home", "named", "another", "unnamed"],
)
async def test_a_python_that_does_not_run_is_told(tmp_path: Path, setup: str, command: str, silent: str | None) -> None:
    """Where it is the tests' own, or there is none that does. One that only stands in the way is passed by."""
    plan = dataclasses.replace(PLAN, setup=f"{setup}\n", test_command=command)
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        await box.write("/testbed/shims/python", b"#!/bin/sh\ncat >/dev/null; exit 127\n", mode=0o755)
        seen = await probe.observe(box, plan, Conditions(), PROMISES, canary=None)
    assert (silent is None) == ("python" in seen.values) == ("silent_python" not in seen.values)
    assert str(seen.values.get("silent_python")).endswith(silent or "None")


async def test_strict_shells_survive_the_probe(tmp_path: Path) -> None:
    """Under `set -eu`, without any Python, the tests' shell goes on with all that the activation has set."""
    plan = dataclasses.replace(PLAN, setup="set -eu\nexport PATH=/nowhere\nexport A=b\n")
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        seen = await probe.observe(box, plan, Conditions(), PROMISES, canary=None)
        after = await box.run("echo $A $-", timeout_s=30)
    assert "python" not in seen.values
    assert not after.shell_restarted
    assert after.output.startswith(b"b e")


async def test_without_python_egress_is_tried_by_the_daemon(tmp_path: Path) -> None:
    """Where the tests' shell has no Python, the daemon tries the canary."""
    plan = dataclasses.replace(PLAN, setup="export PATH=/nowhere\n")
    async with toy(tmp_path) as (_, provider):
        denied = await observed(provider, SandboxSpec(image="host"), plan)
        opened = await observed(provider, SandboxSpec(image="host", egress="open"), plan)
    assert ("denied", "open") == (denied.values["egress"], opened.values["egress"])


async def test_another_sandboxs_daemon_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour that can be reached is a way out, told by its name; from a sandbox with egress denied none can."""
    monkeypatch.setattr(probe, "SETTLE_S", 0.2)
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as neighbour:
        assert neighbour.neighbour is None
        async with provider.sandbox(SandboxSpec(image="host")) as denied:
            assert denied.neighbour is not None
            shut = await probe.observe(denied, PLAN, Conditions(), PROMISES, canary=("127.0.0.1", 9))
        async with provider.sandbox(SandboxSpec(image="host", egress="open")) as leaky:
            claims = cast("Sandbox", Late(leaky, leaky, 0, "denied"))
            found = await probe.observe(claims, PLAN, Conditions(), PROMISES, canary=("127.0.0.1", 9))
    assert ("denied", None) == (shut.values["egress"], shut.values.get("reached"))
    assert "open" == found.values["egress"]
    assert "neighbour" in cast("list[str]", found.values["reached"])


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("pytest -rA tests", []),
        ("python3 run_tests.py", ["python3"]),
        ("cd x && /opt/venv/bin/python3.9 -m pytest", ["/opt/venv/bin/python3.9"]),
        ("PYTHONPATH=. bin/test -C", []),
        ("pypy3 -m pytest; python -V", ["pypy3", "python"]),
    ],
)
def test_the_tests_own_python_is_known_by_its_name(command: str, named: list[str]) -> None:
    """Whatever the test command calls it; what only begins like one is none."""
    assert named == probe.named_pythons(command)


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_every_python_can_look(python: str) -> None:
    """On each Python found the script reads every fact, in one line, after the one that says where it is."""
    asked = probe.Asked((python,), ("A",), (), 10.0)
    script = files("grader").joinpath("look.py").read_bytes()
    ran = subprocess.run(
        ["bash", "-c", asked.command("nonce", denied=True)],
        input=script,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "5", "A": "b", "SECRET": "s"},
        check=True,
    )
    look = asked.seen("nonce", ran.stdout).look
    assert set() == {name for name in Look.model_fields if getattr(look, name) is None} - {"tzdata_version"}
    assert python == look.executable
    assert "b" == (look.environment or {})["A"]
    assert "SECRET" not in (look.environment or {})


def test_packages_are_those_that_are_installed() -> None:
    """What is listed is what the interpreter's own metadata reader lists."""
    listed = "import importlib.metadata as m; print([(d.metadata['Name'], d.version) for d in m.distributions()])"
    expected = {
        (re.sub(r"[-_.]+", "-", name).lower(), version)
        for name, version in ast.literal_eval(
            subprocess.run([sys.executable, "-c", listed], capture_output=True, check=True).stdout.decode()
        )
    }
    script = files("grader").joinpath("look.py").read_bytes()
    asked = probe.Asked((sys.executable,), (), (), 10.0)
    command = ["bash", "-c", asked.command("nonce", denied=True)]
    look = asked.seen("nonce", subprocess.run(command, input=script, capture_output=True, check=True).stdout).look
    pairs = (one.split("==") for one in look.packages or ())
    assert expected == {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in pairs}
