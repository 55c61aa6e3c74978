"""A group of eight for the toy task, and a campaign whose scorer grades it in real sandboxes; two are killed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.campaign import Campaign, load
from grader.grounds import ProviderGrounds
from grader.probe import Canary
from sandbox import open_provider
from tests.grader.tasks import COMMAND, MENDED, SOURCE, Repo, Seeded, git, make_repo
from tests.grader.test_grade import first_processes_beside

TASK = "toy__sums-1"
KILLED = (2, 5)
"""Places in the group whose sandboxes are killed in mid-suite."""
REWARDS = [1.0, 0.0, None, 1.0, 0.0, None, 1.0, 0.0]


@dataclass
class Toy:
    """The toy task as a campaign's files, and where it is graded."""

    repo: Repo
    campaign: Campaign
    mark: str = field(default_factory=lambda: f"31.{secrets.randbelow(10**9):09}")
    """How long the suites of the killed patches sleep; it tells their processes from all others."""
    made: int = 0
    """Sandboxes that were made."""
    alive: int = 0
    """Sandboxes that are held."""

    def patches(self) -> list[bytes]:
        """Eight patches, all different: three mend the fault, three do not, two never come to their tests."""
        asleep = f"import subprocess\nsubprocess.run(['sleep', '{self.mark}'])\n"
        texts = [
            asleep + f"n = {place}\n" + SOURCE if reward is None else f"{MENDED if reward else SOURCE}\nn = {place}\n"
            for place, reward in enumerate(REWARDS)
        ]
        return [self.repo.diff(lambda root, text=text: (root / "sums.py").write_text(text)) for text in texts]  # type: ignore[misc]

    @asynccontextmanager
    async def grounds(self) -> AsyncIterator[ProviderGrounds]:
        async with open_provider(self.campaign.provider) as provider, Canary() as canary:
            yield ProviderGrounds(_Counted(Seeded(provider, self.repo.path), self), self.campaign, canary, "test")

    @contextlib.contextmanager
    def killing(self) -> Iterator[None]:
        """Kill PID 1 of each sandbox whose suite sleeps, for the length of the `with`, as an OOM killer would."""
        stop = threading.Event()

        def kill() -> None:
            while not stop.wait(0.05):
                for pid in first_processes_beside(f"sleep\0{self.mark}\0".encode()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@dataclass
class _Counted:
    provider: Seeded
    toy: Toy
    name: str = "counted"

    @asynccontextmanager
    async def sandbox(self, spec: Any, *, acquire_timeout_s: float = 120.0) -> AsyncIterator[Any]:
        async with self.provider.sandbox(spec, acquire_timeout_s=acquire_timeout_s) as box:
            self.toy.made += 1
            self.toy.alive += 1
            try:
                yield box
            finally:
                self.toy.alive -= 1


def make_toy(folder: Path, **changed: Any) -> Toy:
    """The toy task's files in `folder`."""
    repo = make_repo(folder / "repo")
    (folder / "tasks.jsonl").write_text(json.dumps(_row(repo)) + "\n")
    settings: dict[str, Any] = {
        "taskset": str(folder / "tasks.jsonl"),
        "run": "training",
        "runs_dir": str(folder / "runs"),
        "provider": {"state_dir": str(folder / "state")},
        "conditions": {"test_time_limit_s": 40},
        "limits": {"concurrency": 4, "attempts": 1, "grading_timeout_s": 60},
    }
    return Toy(repo, load(None, settings | changed))


def _row(repo: Repo) -> dict[str, Any]:
    commit = git(repo.path, "rev-parse", "HEAD").decode().strip()
    test_patch = repo.test_patch.decode()
    script = (
        f"#!/bin/bash\ncd /testbed\ngit checkout {commit} tests/test_sums.py\n"
        f"git apply -v - <<'EOF_114329324912'\n{test_patch}EOF_114329324912\n"
        f": '>>>>> Start Test Output'\n{COMMAND}\n: '>>>>> End Test Output'\ngit checkout {commit} tests/test_sums.py\n"
    )
    return {
        "instance_id": TASK,
        "repo": "toy/sums",
        "base_commit": commit,
        "version": "1",
        "patch": repo.reference.decode(),
        "test_patch": test_patch,
        "problem_statement": "total([3, 4]) is -7",
        "hints_text": "",
        "created_at": "",
        "environment_setup_commit": commit,
        "FAIL_TO_PASS": '["tests/test_sums.py::test_total"]',
        "PASS_TO_PASS": '["tests/test_sums.py::test_first"]',
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "image": "host",
    }
