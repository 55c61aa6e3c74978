"""Write the demo's task set out: a repository, a recipe of its image, a row per case, and the campaign to try them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.demo.taskset import EVAL_SCRIPT
from tests.demo_conditions.cases import MADE, RUNNER, Case

_COMMIT = "0000000000000000000000000000000000000001"  # no such commit: the image's own baseline counts

_CAMPAIGN = """\
taskset = "tasks.jsonl"
recipes = "recipes.jsonl"
run = "demo"
runs_dir = "runs"

[conditions]
egress = "denied"
time_zone = "Asia/Kolkata"
locale = "C"
visible_cpus = 1
memory_mib = 256
test_time_limit_s = 60

[limits]
concurrency = {concurrency}
"""


@dataclass(frozen=True)
class Files:
    """The written-out demo."""

    campaign: Path
    runs: Path


def task_id(case: Case) -> str:
    return f"fieldbook__{case.name}"


def write(folder: Path, cases: Sequence[Case], *, concurrency: int = 2) -> Files:
    """Write repository, rows, recipes and campaign into `folder`."""
    package = folder / "repo" / "fieldbook"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (folder / "repo" / "tests").mkdir()
    (folder / "repo" / "tests" / "__init__.py").write_text("")
    (folder / "repo" / "run_tests.py").write_text(RUNNER)
    for case in cases:
        (package / f"{case.name}.py").write_text(case.broken)
    _lines(folder / "tasks.jsonl", [_row(case) for case in cases])
    _lines(folder / "recipes.jsonl", [_recipe(case) for case in cases])
    (folder / "campaign.toml").write_text(_CAMPAIGN.format(concurrency=concurrency))
    return Files(folder / "campaign.toml", folder / "runs")


def _row(case: Case) -> dict[str, Any]:
    path = f"tests/test_{case.name}.py"
    test_patch = _diff(path, None, case.tests)
    return {
        "repo": "demo/fieldbook",
        "instance_id": task_id(case),
        "base_commit": _COMMIT,
        "patch": _diff(f"fieldbook/{case.name}.py", case.broken, case.mended),
        "test_patch": test_patch,
        "problem_statement": f"Mend {case.name}.",
        "hints_text": "",
        "created_at": MADE,
        "version": "1",
        "environment_setup_commit": _COMMIT,
        "FAIL_TO_PASS": json.dumps(_ids(case)),
        "PASS_TO_PASS": "[]",
        "eval_script": EVAL_SCRIPT.format(commit=_COMMIT, files=path, test_patch=test_patch, command=_command(case)),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "image": "",
    }


def _recipe(case: Case) -> dict[str, Any]:
    return {
        "instance_id": task_id(case),
        "repo": "demo/fieldbook",
        "python": "3",
        "source": {"kind": "directory", "path": "repo"},
        "install": ["python -m pip install -q pytest pytest-randomly"],
        "env": {},
        "pins": [
            "iniconfig==2.1.0",
            "packaging==25.0",
            "pluggy==1.6.0",
            "Pygments==2.19.2",
            "pytest==8.4.2",
            "pytest-randomly==4.0.1",
        ],
        "reinstall_after_patch": None,
        "test_cmd": _command(case),
        "fail_to_pass": _ids(case),
        "pass_to_pass": [],
    }


def _ids(case: Case) -> list[str]:
    return [f"tests/test_{case.name}.py::{test}" for test in case.fail_to_pass]


def _command(case: Case) -> str:
    return f"{case.runner} tests/test_{case.name}.py"


def _diff(path: str, old: str | None, new: str) -> str:
    """A git patch from `old` (None: the file is new) to `new`."""
    head = f"diff --git a/{path} b/{path}\n" + ("new file mode 100644\n" if old is None else "")
    lines = difflib.unified_diff(
        (old or "").splitlines(keepends=True),
        new.splitlines(keepends=True),
        "/dev/null" if old is None else f"a/{path}",
        f"b/{path}",
    )
    return head + "".join(lines)


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
