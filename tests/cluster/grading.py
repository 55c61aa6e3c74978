"""Grading on both providers with the commands that people type: images are built once, exported, and loaded twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import KUBE_DIR

LOAD = Path(__file__).with_name("load")
JSON = dict[str, Any]


def command(*words: object, timeout_s: float = 1500) -> subprocess.CompletedProcess[str]:
    """Run `grader` and give what it said."""
    line = [sys.executable, "-m", "grader.cli", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=timeout_s)


def answers(*words: object) -> list[JSON]:
    """The JSON lines of a command that must succeed."""
    done = command(*words, "--json")
    assert 0 == done.returncode, f"{words}: {done.stderr[-3000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def debian_base() -> str:
    """The newest Debian image of the user's own store, or a new one."""
    made = [image for image in answers("images", "list") if image["name"].startswith("debian-")]
    if not made:
        made = answers("images", "base")
    return str(made[-1]["digest"])


def built_and_loaded(recipes: Path, only: list[str], into: Path) -> Path:
    """Build the tasks' images on the Debian base and load the same archives into the node and into the local store.

    Gives the list of images. Skips where the node is not the one of `up`, since nothing else can be loaded into.
    """
    if os.environ.get("KUBECONFIG") and not (KUBE_DIR / "run" / "containerd.sock").exists():
        pytest.skip("images can be loaded only into the node of tests/cluster/up")
    answers("images", "build", recipes, "--base", debian_base(), "--only", ",".join(only), "--export", into)
    for archive in into.glob("*.tar"):
        subprocess.run([LOAD, archive], check=True, capture_output=True)
        answers("images", "import", archive)
    return into / "images.jsonl"


@dataclass(frozen=True)
class Bench:
    """One set of tasks, to be graded in two places under one declaration."""

    folder: Path
    taskset: Path
    recipes: Path
    images: Path
    kubernetes: JSON
    """Settings of that provider."""
    conditions: JSON
    concurrency: int = 2

    def grade(self, provider: str, run: str, *words: object) -> dict[tuple[str, str], JSON]:
        """The gradings of a run on `provider`, by task and model."""
        rows = answers("grade", self._campaign(provider), "--run", f"{run}-{provider}", *words)
        return {(row["task_id"], row["model_name_or_path"]): row for row in rows}

    def preflight(self, provider: str, *words: object) -> dict[str, JSON]:
        """What preflight says on `provider` of each task. All of them must be admitted."""
        entries = answers("preflight", self._campaign(provider), "--run", f"preflight-{provider}", *words)
        return {entry["task_id"]: entry for entry in entries}

    def refused(self, provider: str, *words: object) -> str:
        """What `grader grade` says when it refuses to begin, with exit status 2."""
        done = command("grade", self._campaign(provider), "--run", f"refused-{provider}", *words)
        assert 2 == done.returncode, done.stderr[-3000:]
        return done.stderr

    def _campaign(self, provider: str) -> Path:
        file = self.folder / f"{provider}.toml"
        settings = {"type": "local"} if provider == "local" else {"type": "kubernetes", **self.kubernetes}
        tables = {"provider": settings, "conditions": self.conditions, "limits": {"concurrency": self.concurrency}}
        lines = [f"{name} = {json.dumps(str(value))}" for name, value in self._paths().items()]
        for name, table in tables.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        file.write_text("\n".join(lines))
        return file

    def _paths(self) -> dict[str, Path]:
        runs = self.folder / "runs"
        return {"taskset": self.taskset, "recipes": self.recipes, "images": self.images, "runs_dir": runs}


def differences(here: dict[tuple[str, str], JSON], there: dict[tuple[str, str], JSON]) -> list[str]:
    """Where two runs do not say the same: verdict, status of each test, image, way of applying, declared conditions."""
    told = [f"{key} was graded in one place only" for key in here.keys() ^ there.keys()]
    for key in here.keys() & there.keys():
        one, other = here[key], there[key]
        pairs = {name: (one[name], other[name]) for name in ("outcome", "cause", "flags", "statuses")}
        evidence = one["evidence"], other["evidence"]
        for name in ("image_digest", "apply_rung", "declared", "agreed", "unread", "suite_exit_code"):
            pairs[name] = evidence[0][name], evidence[1][name]
        told += [f"{key}: {name}: {a!r:.300} and {b!r:.300}" for name, (a, b) in pairs.items() if a != b]
    return told
