"""Claims about `grader.suite`: what runs before the submission, and how a suite's end is told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader import suite
from sandbox import SandboxSpec
from tasksets.evalscript import parse
from tasksets.task import TestPlan
from tests.grader.tasks import toy

PLAN = TestPlan(setup="", test_command="true", parser="parse_log_pytest")


@pytest.mark.parametrize(
    ("setup", "activation"),
    [
        ("", ""),
        ("set -uo pipefail\nsource /opt/x/bin/activate\nconda activate testbed\npip install .\n", 3),
        ("pip install .\nsource /opt/x/bin/activate\n", 0),
        ("export A=b\n\n# now build\nmake\n", 3),
        ("export A=$(cat secret)\n", 0),
        ("source x; make\n", 0),
        ("cd /testbed && make\n", 0),
        ("export A='b\nmake'\n", 0),
        ("export A=b \\\n  C=d\n", 0),
    ],
)
def test_only_leading_choices_of_environment_come_first(setup: str, activation: str | int) -> None:
    """Activation is the leading lines that choose an environment; a line that could do more ends it."""
    lines = setup.splitlines(keepends=True)
    count = activation if isinstance(activation, int) else 0
    assert "".join(lines[:count]) == suite.activation(setup)


@given(st.text(alphabet="source .\ncdexport=;&$()#\r", max_size=80))
def test_no_line_is_lost_or_run_twice(setup: str) -> None:
    """Activation and rest are the whole set-up, in order."""
    assert setup == suite.activation(setup) + suite.rest_of(setup)


@pytest.mark.real
def test_real_set_ups_are_split_before_they_build(real_data: Path) -> None:
    """In each of the 500 rows the environment is activated first, and nothing that builds the submission is."""
    for line in (real_data / "swebench_verified.jsonl").read_bytes().splitlines():
        row = json.loads(line)
        setup = parse(row["eval_script"], row["instance_id"]).plan(row["log_parser"]).setup
        assert "activate testbed" in suite.activation(setup)
        assert "install" not in suite.activation(setup)


@pytest.mark.anyio
async def test_the_suite_runs_in_the_set_ups_shell(tmp_path: Path) -> None:
    """What the set-up leaves in its shell holds for the tests, and its output is kept apart from the log."""
    plan = dataclasses.replace(PLAN, setup="echo preparing\nwho=me\n", test_command="echo $who in $PWD; false | cat")
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        ran = await suite.run(box, plan, time_limit_s=20, max_log_bytes=1000)
        assert ran.log == b"me in /testbed\n"
        assert ran.setup_output == b"preparing\n"
        assert ran.exit_code == 1


@pytest.mark.anyio
async def test_a_shell_that_ends_is_a_result(tmp_path: Path) -> None:
    """A test command that ends its shell has an exit code and a log like any other."""
    plan = dataclasses.replace(PLAN, test_command="echo some; exit 3; echo more")
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        ran = await suite.run(box, plan, time_limit_s=20, max_log_bytes=1000)
        assert (ran.log, ran.exit_code, ran.timed_out) == (b"some\n", 3, False)


@pytest.mark.anyio
async def test_a_time_out_keeps_the_log(tmp_path: Path) -> None:
    """A suite that outlives its limit is ended then, and what it wrote is kept."""
    plan = dataclasses.replace(PLAN, test_command="echo some; sleep 60")
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        ran = await suite.run(box, plan, time_limit_s=1, max_log_bytes=1000)
        assert ran.timed_out
        assert ran.log.startswith(b"some\n")  # bash may tell of the kill after it
        assert ran.duration_s < 20


@pytest.mark.anyio
async def test_a_set_up_that_never_ends_starts_no_test(tmp_path: Path) -> None:
    """A set-up that uses up the limit is told as a time-out without a log or an exit code."""
    plan = dataclasses.replace(PLAN, setup="sleep 60", test_command="touch /tmp/ran")
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        ran = await suite.run(box, plan, time_limit_s=1, max_log_bytes=1000)
        assert (ran.log, ran.timed_out, ran.exit_code) == (b"", True, None)
        listed = await box.run("ls -A /tmp", timeout_s=10, session="look")
        assert listed.output == b""


@pytest.mark.anyio
async def test_a_log_beyond_the_cap_says_so(tmp_path: Path) -> None:
    """A log beyond its cap keeps head and tail, is marked, and its whole length is told."""
    plan = dataclasses.replace(PLAN, test_command="echo first; head -c 100000 /dev/zero | tr '\\0' x; echo last")
    async with toy(tmp_path) as (_, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        ran = await suite.run(box, plan, time_limit_s=20, max_log_bytes=5000)
        assert ran.truncated
        assert ran.log_bytes == 100_011
        assert ran.log.startswith(b"first\n")
        assert ran.log.endswith(b"last\n")


@pytest.mark.parametrize(
    ("silent_s", "limit_s", "timed_out", "still"),
    [(9.0, 20.0, True, False), (12.0, 20.0, True, True), (12.0, 20.0, False, False), (60.0, 1800.0, True, False)],
)
def test_a_sandbox_stood_still_where_it_was_silent_for_a_good_part_of_a_limit_that_was_outlived(
    silent_s: float, limit_s: float, timed_out: bool, still: bool
) -> None:
    """A little silence is usual, and a suite that ended by itself is believed."""
    ran = suite.SuiteRun(b"", 0, False, 143, timed_out, 0, b"", limit_s, silent_s=silent_s)
    assert still == (suite.stood_still(ran, time_limit_s=limit_s) is not None)
