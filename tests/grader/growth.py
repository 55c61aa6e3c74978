"""`python -m tests.grader.growth WHAT KIND`: how far memory grows by a large patch, in a process of its own.

WHAT is `extract` or `grade`, KIND is `binary`, `text` or `lines` (short ones). Prints one number: the KiB by which the
process's peak is higher after a patch of 24 files of a megabyte each than after a small one.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import structlog

from grader.campaign import Conditions, Limits, RewardPolicy
from grader.extract import extract
from grader.extraction.baseline import record
from grader.grade import grade_one
from grader.record import Submission
from grader.verdict import Outcome
from sandbox import SandboxSpec
from tasksets.task import Task
from tests.grader.tasks import MENDED, Repo, Seeded, git, make_task, toy

MANY = 24
"""As many as a grading takes: their patch has up to 31 of 32 MiB."""
MAKES = {
    "binary": "head -c 1000000 /dev/urandom",
    "text": "head -c 740000 /dev/urandom | base64 -w 60",
    "lines": "seq $((i * 1000)) 160000",
}


def peak_kib() -> int:
    """The most memory that this process ever had. (`ru_maxrss` begins with that of the process that started it.)"""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def many(kind: str, count: int) -> str:
    """A command that makes so many files of a megabyte."""
    return f"for i in $(seq {count}); do {MAKES[kind]} >f$i; done"


async def by_extraction(provider: Seeded, kind: str) -> int:
    """Extract with proof twice, from one sandbox."""
    peaks = []
    async with provider.sandbox(SandboxSpec(image="host")) as box:
        baseline = await record(box, "/testbed")
        for count in (1, MANY):
            await box.run(f"cd /testbed && {many(kind, count)}", timeout_s=60)
            extraction = await extract(box, baseline, provider)
            assert extraction.faithful and count == len(extraction.carried), extraction.differences
            peaks.append(peak_kib())
    return peaks[1] - peaks[0]


async def by_grading(repo: Repo, provider: Seeded, kind: str) -> int:
    """Grade a small patch and then a large one. The submission's own bytes, which the caller holds, do not count."""
    task = make_task(repo)
    await _grade(task, Submission(task.task_id, "m", repo.reference, "reference"), provider)
    submission = Submission(task.task_id, "m", large_patch(repo, kind), "large")
    before = peak_kib()
    await _grade(task, submission, provider)
    return peak_kib() - before


def large_patch(repo: Repo, kind: str) -> bytes:
    """One that mends the fault and adds many files. It comes from a file, so that no peak of this process's is its
    making's; and from a copy, so that the sandboxes' own repository stays small."""
    copy = repo.path.parent / "copy"
    shutil.copytree(repo.path, copy)
    (copy / "sums.py").write_text(MENDED)
    subprocess.run(["bash", "-c", many(kind, MANY)], cwd=copy, check=True)
    git(copy, "add", "--all")
    git(copy, "diff", "--cached", "--binary", "HEAD", "--output=../large.patch")
    return (repo.path.parent / "large.patch").read_bytes()


async def _grade(task: Task, submission: Submission, provider: Seeded) -> None:
    grading = await grade_one(
        task,
        submission,
        provider=provider,
        conditions=Conditions(),
        limits=Limits(),
        rewards=RewardPolicy(),
        logs_dir=None,
        canary=None,
        code_revision="test",
    )
    assert grading.outcome is Outcome.RESOLVED, grading


async def main(what: str, kind: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="sandman-growth-") as folder:
        async with toy(Path(folder)) as (repo, provider):
            print(await (by_extraction(provider, kind) if what == "extract" else by_grading(repo, provider, kind)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
