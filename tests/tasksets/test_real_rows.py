"""Real rows of others, which lie beside the clone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasksets import open_taskset
from tasksets.admission import Code, Known
from tasksets.checkup import check_all
from tasksets.evalscript import Part, parse

pytestmark = pytest.mark.real


def test_every_script_of_verified_is_accounted_for_line_by_line(real_data: Path) -> None:
    """Joining the parts of each of the 500 scripts gives the script back, and the test patch is the row's own."""
    rows = [json.loads(line) for line in (real_data / "swebench_verified.jsonl").read_text().splitlines()]

    for row in rows:
        script = parse(row["eval_script"], row["instance_id"])
        heredoc = "\n".join(script.of(Part.TEST_PATCH)[1:-1])

        assert row["eval_script"] == script.text
        assert row["test_patch"].rstrip("\n") == heredoc.rstrip("\n")
    assert len(rows) == 500


def test_every_row_of_verified_becomes_a_task_with_a_plan(real_data: Path) -> None:
    """All 500 tasks name an image, a parser, a test command and a working directory, and lose no test id."""
    taskset = open_taskset(str(real_data / "swebench_verified.jsonl"))

    tasks = list(taskset)

    assert 500 == len(tasks) == len(taskset)
    assert {"swebench-2026"} == {task.schema for task in tasks}
    assert {"/testbed"} == {task.plan.workdir for task in tasks if task.plan}
    assert sum(bool(task.image and task.plan and task.plan.test_command) for task in tasks) == 500
    assert len({task.plan.parser for task in tasks if task.plan}) == 12


@pytest.mark.parametrize(
    ("file", "schema", "rows", "plans"),
    [
        ("swe_rebench_v2_sample.json", "swe-rebench-v2", 1, 1),
        ("swebench_lite.jsonl", "swebench-2026", 20, 20),
        ("swebench_multilingual.jsonl", "swebench-multilingual", 20, 20),
        ("swebench_verified_2024_schema.jsonl", "swebench-2024", 30, 0),
        ("swegym.jsonl", "swe-gym", 10, 5),
        ("swesmith.jsonl", "swe-smith", 1, 0),
    ],
)
def test_every_sample_is_recognised(real_data: Path, file: str, schema: str, rows: int, plans: int) -> None:
    """Each sample file is of one schema, and a plan exists exactly where its rows say how to run their tests."""
    tasks = list(open_taskset(str(real_data / "samples" / file)))

    assert {schema} == {task.schema for task in tasks}
    assert (rows, plans) == (len(tasks), sum(task.plan is not None for task in tasks))
    assert all(task.fail_to_pass and task.reference_patch for task in tasks)


def test_the_check_of_verified_finds_what_is_published_about_it(real_data: Path) -> None:
    """676 cut ids in 65 tasks, 47 of them ambiguous, two progress marks, 11 empty PASS_TO_PASS, and no task refused."""
    taskset = open_taskset(str(real_data / "swebench_verified.jsonl"))

    checkup = check_all(taskset, taskset.ids(), known=Known())

    counts = {total.code: (total.tasks, total.items) for total in checkup.totals()}
    assert counts == {
        Code.NO_P2P: (11, 0),
        Code.TRUNCATED_ID: (65, 676),
        Code.AMBIGUOUS_ID: (25, 47),
        Code.PROGRESS_MARK: (2, 2),
        Code.UNPINNED_IMAGE: (500, 500),
    }
    assert frozenset() == checkup.refused


def test_one_task_of_verified_costs_little_memory(real_data: Path) -> None:
    """Opening the 9.5 MB file and getting one task adds under 4 MB to the process."""
    program = (
        "import re, sys, tasksets\n"
        # Not getrusage: its peak is inherited from the process that started this one.
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "before = peak()\n"
        "tasksets.open_taskset(sys.argv[1]).get('django__django-15127')\n"
        "print(peak() - before)"
    )
    command = [sys.executable, "-c", program, str(real_data / "swebench_verified.jsonl")]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert 0 < int(done.stdout) < 4096
