from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grader.campaign import Conditions
from grader.preflight.variations import NAMES, variations
from tasksets.task import Task, TestPlan

FULL = Conditions(
    egress="denied",
    visible_cpus=2,
    cpu_quota=2,
    memory_mib=1024,
    shm_mib=64,
    open_files=1024,
    processes=500,
    umask="077",
    hash_seed=5,
    time_zone="Asia/Kolkata",
    locale="C",
)


def task(command: str, created_at: str = "2024-06-01T12:00:00Z") -> Task:
    return Task(
        task_id="t",
        repo="r",
        base_commit="c",
        version="1",
        image="host",
        reference_patch=b"",
        test_patch=b"",
        fail_to_pass=("t",),
        pass_to_pass=(),
        plan=TestPlan(setup="", test_command=command, parser="pytest"),
        problem_statement="",
        source="tests",
        schema="s",
        created_at=created_at,
    )


@pytest.mark.parametrize("declared", [Conditions(), FULL])
def test_each_variation_changes_its_own_condition_alone(declared: Conditions) -> None:
    """A re-run is controlled: one declared condition differs, or none and the test command does."""
    for variation in variations(declared):
        before, after = declared.model_dump(), variation.on(declared).model_dump()
        changed = {name for name in before if before[name] != after[name]} - {"cpu_count"}
        assert changed == ({variation.name} if variation.conditions else set())
        assert variation.conditions or variation.task(task("run")) != task("run")


def test_no_variation_is_beyond_what_can_be_declared() -> None:
    """Four times a limit near its end is none."""
    most = FULL.model_copy(update={"processes": 2_000_000})
    found = list(variations(most))
    assert {"memory_mib", "open_files"} <= {one.name for one in found if one.on(most)}
    assert "processes" not in {one.name for one in found}


def test_every_condition_that_can_be_varied_is_varied_where_it_is_declared() -> None:
    """The names that `--vary` takes are those that occur, and no two re-runs share a ledger."""
    found = list(variations(FULL))

    assert set(NAMES) == {variation.name for variation in found}
    assert len(found) == len({variation.slug for variation in found})


def test_what_the_campaign_declares_is_not_tried_again() -> None:
    """No re-run repeats the declared value."""
    labels = {f"{v.name}={v.value}" for v in variations(Conditions(egress="open", time_zone="UTC", hash_seed=0))}

    assert not labels & {"egress=open", "time_zone=UTC", "hash_seed=0", "memory_mib=0"}
    assert "hash_seed=1" in labels


ASK = """
import datetime, sys, time
print(datetime.date.today(), datetime.datetime.now().date(), datetime.datetime.now(datetime.timezone.utc).date())
print(time.strftime("%Y-%m-%d"), time.gmtime().tm_year, time.ctime()[-4:], time.asctime()[-4:])
print(time.strftime("%Y", time.gmtime(0)), datetime.datetime.fromtimestamp(0, datetime.timezone.utc).year)
print(time.time_ns() // 10**9 - int(time.time()) in (0, 1), isinstance(datetime.datetime.now(), datetime.date))
"""


def test_the_moved_clock_tells_the_day_of_the_task_to_all_of_python(tmp_path: Path) -> None:
    """Dates, times and their texts are of the task's day; a time that is given is left as it is."""
    (moved,) = (v for v in variations(Conditions()) if v.name == "clock")
    varied = moved.task(task(f"{sys.executable} ask.py"))
    (tmp_path / "ask.py").write_text(ASK)
    assert varied is not None and varied.plan is not None

    told = subprocess.run(
        ["bash", "-c", varied.plan.test_command],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "TZ": "UTC"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert [
        "2024-06-01 2024-06-01 2024-06-01",
        "2024-06-01 2024 2024 2024",
        "1970 1970",
        "True True",
    ] == told.splitlines()


def test_a_task_of_no_known_day_keeps_the_clock() -> None:
    """Rows that do not say when they were made cannot be varied so."""
    (moved,) = (v for v in variations(Conditions()) if v.name == "clock")

    assert moved.task(task("run", created_at="")) is None
    assert moved.task(task("run", created_at="last spring")) is None
    assert moved.task(task("run", created_at="2024-02-19 20:29:03")) is not None
