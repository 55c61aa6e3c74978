"""The demo task set: little repositories and tasks of our own, written out in the forms that real sets have.

`repos/` holds the repositories at their base; `tasks/<id>/` holds a task's description and its patches: the reference
that mends it, the tests that show it, a wrong attempt, and for some an attempt that never ends.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TIME_LIMIT_S = 10

EVAL_SCRIPT = """\
#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout {commit} {files}
git apply -v - <<'EOF_114329324912'
{test_patch}EOF_114329324912
: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
git checkout {commit} {files}
"""


@dataclass(frozen=True)
class DemoFiles:
    """The files of the written-out set, and the outcome that each (task, model) is declared to have."""

    taskset: Path
    recipes: Path
    patches: Path
    expected: dict[tuple[str, str], str]


def task_ids() -> list[str]:
    return sorted(path.name for path in (HERE / "tasks").iterdir() if path.is_dir())


def write(folder: Path) -> DemoFiles:
    """Write task set, recipes and patches into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = DemoFiles(folder / "tasks.jsonl", folder / "recipes.jsonl", folder / "patches.jsonl", {})
    descriptions = {task_id: tomllib.loads(_text(task_id, "task.toml")) for task_id in task_ids()}
    _lines(files.taskset, [_row(task_id, told) for task_id, told in descriptions.items()])
    _lines(files.recipes, [_recipe(task_id, told) for task_id, told in descriptions.items()])
    submissions = [entry for task_id in descriptions for entry in _submissions(task_id)]
    files.expected.update({(task, model): outcome for task, model, _, outcome in submissions})
    _lines(
        files.patches,
        [
            {"instance_id": task, "model_name_or_path": model, "model_patch": patch}
            for task, model, patch, _ in submissions
        ],
    )
    return files


def _row(task_id: str, told: dict[str, Any]) -> dict[str, Any]:
    test_patch = _text(task_id, "test.patch")
    test_files = [line[6:] for line in test_patch.splitlines() if line.startswith("+++ b/")]
    commit = "0000000000000000000000000000000000000001"  # no such commit: the image's own baseline counts
    return {
        "repo": f"demo/{told['repo']}",
        "instance_id": task_id,
        "base_commit": commit,
        "patch": _text(task_id, "reference.patch"),
        "test_patch": test_patch,
        "problem_statement": told["title"],
        "hints_text": "",
        "created_at": "",
        "version": "1",
        "environment_setup_commit": commit,
        "FAIL_TO_PASS": json.dumps(told["fail_to_pass"]),
        "PASS_TO_PASS": json.dumps(told["pass_to_pass"]),
        "eval_script": EVAL_SCRIPT.format(
            commit=commit, files=" ".join(test_files), test_patch=test_patch, command=told["test_command"]
        ),
        "log_parser": told["parser"],
        "eval_type": "pass_and_fail",
        "image": "",
    }


def _recipe(task_id: str, told: dict[str, Any]) -> dict[str, Any]:
    """Every task of one repository has the same image; pytest is the only thing to install."""
    return {
        "instance_id": task_id,
        "repo": f"demo/{told['repo']}",
        "python": "3",
        "source": {"kind": "directory", "path": str(HERE / "repos" / told["repo"])},
        "install": ["python -m pip install -q pytest"],
        "env": {},
        "pins": ["iniconfig==2.1.0", "packaging==25.0", "pluggy==1.6.0", "Pygments==2.19.2", "pytest==8.4.2"],
        "reinstall_after_patch": None,
        "test_cmd": told["test_command"],
        "fail_to_pass": told["fail_to_pass"],
        "pass_to_pass": told["pass_to_pass"],
    }


def _submissions(task_id: str) -> list[tuple[str, str, str, str]]:
    """(task, model, patch, declared outcome) of each patch for the task."""
    entries = [
        (task_id, "reference", _text(task_id, "reference.patch"), "resolved"),
        (task_id, "empty", "", "unresolved"),
        (task_id, "wrong", _text(task_id, "wrong.patch"), "unresolved"),
    ]
    if (HERE / "tasks" / task_id / "hanging.patch").exists():
        entries.append((task_id, "hanging", _text(task_id, "hanging.patch"), "timed_out"))
    other = "slugger-1" if task_id.startswith("calspan") else "calspan-2"
    entries.append((task_id, "non-applying", _text(other, "reference.patch"), "patch_rejected"))
    return entries


def _text(task_id: str, name: str) -> str:
    return (HERE / "tasks" / task_id / name).read_text(encoding="utf-8")


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
