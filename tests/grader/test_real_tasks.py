"""Real SWE-bench Verified tasks on images built from recipes: the verdicts that the world published are ours too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

FAST = (
    "psf__requests-6028",
    "pytest-dev__pytest-10081",
    "pytest-dev__pytest-7571",
    "pylint-dev__pylint-4551",
    "pydata__xarray-4629",
    "sympy__sympy-23413",
    "sphinx-doc__sphinx-9711",
    "django__django-15127",
    "django__django-16950",
)

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.network, pytest.mark.timeout(1800)]


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def grade(real_data: Path, runs: Path, name: str, patches: str) -> list[dict[str, object]]:
    """What `grader grade --json` prints for the fast tasks. Images come from, and stay in, the user's own store."""
    command = [sys.executable, "-m", "grader.cli", "grade", "--run", name, "--runs-dir", str(runs), "--json"]
    command += ["--taskset", str(real_data / "swebench_verified.jsonl"), "--recipes", str(real_data / "recipes.jsonl")]
    command += ["--patches", patches, "--only", ",".join(FAST), "--provider", "local"]
    run = subprocess.run(command, capture_output=True, check=False)
    if b"no Python" in run.stderr:
        pytest.skip(f"a Python that a recipe needs is not on this machine: {run.stderr.decode()[-300:]}")
    assert run.returncode == 0, run.stderr.decode()[-4000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def outcomes(gradings: list[dict[str, object]]) -> dict[object, object]:
    return {row["task_id"]: row["outcome"] for row in gradings}


def test_reference_patches_resolve_and_empty_ones_do_not(real_data: Path, tmp_path: Path) -> None:
    """Each fast task is resolved by its reference patch and unresolved by the empty patch."""
    assert dict.fromkeys(FAST, "resolved") == outcomes(grade(real_data, tmp_path, "reference", "reference"))
    assert dict.fromkeys(FAST, "unresolved") == outcomes(grade(real_data, tmp_path, "empty", "empty"))


def test_published_patches_get_their_published_verdicts(real_data: Path, tmp_path: Path) -> None:
    """Each published patch for a fast task gets the verdict that was published with it."""
    published = [row for row in rows(real_data / "patches.jsonl") if row["instance_id"] in FAST]
    patches = tmp_path / "patches.jsonl"
    patches.write_text("".join(json.dumps(row) + "\n" for row in published), encoding="utf-8")
    gradings = grade(real_data, tmp_path, "published", str(patches))
    seen = {(row["task_id"], row["model_name_or_path"]): row["outcome"] for row in gradings}
    expected = {(row["instance_id"], row["model_name_or_path"]): row["published_resolved"] for row in published}
    assert len(published) == len(gradings)
    assert expected == {key: outcome == "resolved" for key, outcome in seen.items()}


def test_every_grading_had_a_sandbox_of_its_own(real_data: Path, tmp_path: Path) -> None:
    """No two gradings share a sandbox, and each verdict carries the proof that its sandbox was never used."""
    grade(real_data, tmp_path, "own", "reference")
    command = [sys.executable, "-m", "grader.cli", "report", "own", "--runs-dir", str(tmp_path)]
    command += ["--export", str(tmp_path / "out"), "--format", "jsonl"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    gradings = [row for path in (tmp_path / "out").glob("*.jsonl") for row in rows(path)]
    evidence = [row["evidence"] for row in gradings]
    assert [True] * len(FAST) == [each["never_used"] for each in evidence if isinstance(each, dict)]
    assert [1] * len(FAST) == list(Counter(each["boot_id"] for each in evidence if isinstance(each, dict)).values())
