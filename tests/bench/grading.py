"""What a grading costs beside its suite: wall time less the seconds that the tests ran."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from grader.record import Grading
from tests.bench.measure import Measurement, measurement
from tests.demo.taskset import write


def measure(folder: Path) -> list[Measurement]:
    """Overhead per grading over the demo task set with its reference patches, one at a time."""
    files = write(folder / "tasks")
    command = [sys.executable, "-m", "grader.cli", "grade", "--taskset", str(files.taskset)]
    command += ["--recipes", str(files.recipes), "--patches", "reference", "--concurrency", "1"]
    command += ["--run", "bench", "--runs-dir", str(folder / "runs")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    export = [sys.executable, "-m", "grader.cli", "report", "bench", "--runs-dir", str(folder / "runs")]
    export += ["--export", str(folder / "out"), "--format", "jsonl"]
    subprocess.run(export, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [line for path in (folder / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    gradings = [Grading.model_validate(json.loads(line)) for line in lines]
    overhead = [(grading.seconds - grading.evidence.phases_s["suite"]) * 1000 for grading in gradings]
    return [measurement("grading overhead (wall less suite)", overhead, aim="under 400 ms")]
