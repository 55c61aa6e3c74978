"""`make demo`: grade the demo task set with every kind of patch, and check each verdict against what was declared."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.demo.taskset import TIME_LIMIT_S, DemoFiles, write

COLOURS = {"resolved": "green", "unresolved": "yellow", "patch_rejected": "magenta", "timed_out": "blue"}


def main() -> int:
    """Grade, print the table, and return 0 when every verdict is as declared."""
    folder = Path("runs")
    shutil.rmtree(folder / "demo", ignore_errors=True)
    files = write(folder / "demo-tasks")
    command = ["grader", "grade", "--run", "demo", "--runs-dir", str(folder)]
    command += ["--taskset", str(files.taskset), "--recipes", str(files.recipes), "--patches", str(files.patches)]
    command += ["--time-limit", str(TIME_LIMIT_S), "--concurrency", "2"]
    print(f"$ {shlex.join(command)}\n", file=sys.stderr, flush=True)
    run = subprocess.run(
        [sys.executable, "-m", "grader.cli", *command[1:], "--json"], stdout=subprocess.PIPE, check=False
    )
    if run.returncode != 0:
        print(f"grader ended with exit code {run.returncode}", file=sys.stderr)
        return run.returncode
    graded = {(row["task_id"], row["model_name_or_path"]): row for row in map(json.loads, run.stdout.splitlines())}
    return report(files, graded)


def report(files: DemoFiles, graded: dict[tuple[str, str], dict[str, object]]) -> int:
    """Print verdicts beside what was declared; 1 when one differs."""
    models = list(dict.fromkeys(model for _, model in files.expected))
    table = Table("task", *models, show_edge=False)
    for task_id in dict.fromkeys(task for task, _ in files.expected):
        table.add_row(task_id, *(_cell(files, graded, (task_id, model)) for model in models))
    console = Console()
    console.print(table)
    wrong = [key for key, outcome in files.expected.items() if graded.get(key, {}).get("outcome") != outcome]
    counts = Counter(str(row["outcome"]) for row in graded.values())
    console.print(f"{len(graded)} gradings: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    for key in wrong:
        console.print(f"[red]not as declared[/red]: {key}: {graded.get(key)}")
    if wrong:
        return 1
    console.print("Every verdict is as declared. What to type next:\n")
    console.print("  .venv/bin/grader report demo              the same run, with its denominators", highlight=False)
    checked = f"  .venv/bin/grader tasks check {files.taskset} --recipes {files.recipes}"
    console.print(checked, highlight=False, soft_wrap=True)
    console.print("  .venv/bin/grader grade --help             your own task set and patches", highlight=False)
    return 0


def _cell(files: DemoFiles, graded: dict[tuple[str, str], dict[str, object]], key: tuple[str, str]) -> str:
    if key not in files.expected:
        return "-"
    outcome = str(graded.get(key, {}).get("outcome", "missing"))
    mark = "" if outcome == files.expected[key] else " (!)"
    return f"[{COLOURS.get(outcome, 'red')}]{outcome}{mark}[/]"


if __name__ == "__main__":
    raise SystemExit(main())
