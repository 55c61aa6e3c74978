"""The toy task's image, built once for all rows of the local half."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.grader.groups import TASK, make_toy
from tests.grader.tasks import COMMAND


@dataclass(frozen=True)
class Built:
    """An image store that holds the toy's image and nothing else; to be copied, never used."""

    state_dir: Path
    digest: str

    def copy(self, to: Path) -> Path:
        """A store of one's own."""
        subprocess.run(["cp", "-a", self.state_dir, to], check=True)
        return to


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Built:
    """Made by whichever worker comes first."""
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    folder = shared / "faults-image"
    with (shared / "faults-image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "digest").exists():
            _build(folder)
    return Built(folder / "state", (folder / "digest").read_text())


def _build(folder: Path) -> None:
    folder.mkdir()
    toy = make_toy(folder)
    recipe = {
        "instance_id": TASK,
        "python": "3",
        "source": {"kind": "directory", "path": str(toy.repo.path)},
        "install": ["true"],
        "test_cmd": COMMAND,
    }
    (folder / "recipes.jsonl").write_text(json.dumps(recipe) + "\n")
    where = ["--state-dir", str(folder / "state")]
    command = [sys.executable, "-m", "grader.cli", "images", "build", str(folder / "recipes.jsonl"), *where, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    (folder / "digest").write_text(next(filter(None, map(_digest, done.stdout.splitlines()))))


def _digest(line: str) -> str:
    return str(json.loads(line).get("image") or "")
