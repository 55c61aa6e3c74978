"""Claims about `grader.syncscorer`: the same groups, for code that has no loop, or one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from grader.errors import LedgerUnwritable, UsageError
from grader.scorer import ScorerClosed
from grader.syncscorer import SyncScorer
from tests.grader.groups import KILLED, REWARDS, TASK, make_toy


def test_a_group_from_a_thread_with_a_running_loop_or_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits where no loop runs, waits inside a running loop, and can be awaited in any; stdout is the trainer's."""
    toy = make_toy(tmp_path)

    async def inside(scorer: SyncScorer) -> list[list[float | None]]:
        blocking = scorer.score_group(TASK, toy.patches()[:2])
        awaited = await scorer.score_all_async([(TASK, patch) for patch in toy.patches()[3:5]])
        return [blocking.rewards, [score.reward for score in awaited]]

    with toy.killing(), SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        assert REWARDS == scorer.score_group(TASK, toy.patches()).rewards
        assert [REWARDS[:2], REWARDS[3:5]] == asyncio.run(inside(scorer))
    assert (8, 0) == (toy.made, toy.alive)
    assert "" == capsys.readouterr().out


def test_calls_from_many_threads_share_one_grading(tmp_path: Path) -> None:
    """A trainer's thread pool may ask for the same patch at the same moment."""
    toy = make_toy(tmp_path)
    patches = toy.patches()[:2]
    found: list[list[float | None]] = []
    with SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        threads = [
            threading.Thread(target=lambda: found.append(scorer.score_group(TASK, patches).rewards)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ([[1.0, 0.0]] * 8, 2) == (found, toy.made)


def test_whoever_stops_waiting_gives_the_sandbox_back(tmp_path: Path) -> None:
    """A cancelled await ends the grading in the scorer's own thread too."""
    toy = make_toy(tmp_path)

    async def give_up(scorer: SyncScorer) -> None:
        async with asyncio.timeout(2):
            await scorer.score_all_async([(TASK, toy.patches()[KILLED[0]])])

    with SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        with pytest.raises(TimeoutError):
            asyncio.run(give_up(scorer))
        deadline = time.monotonic() + 10
        while toy.alive and time.monotonic() < deadline:
            time.sleep(0.02)
        assert 0 == toy.alive
        assert [1.0] == scorer.score_group(TASK, toy.patches()[:1]).rewards


def test_what_is_no_group_is_refused_before_anything_is_graded(tmp_path: Path) -> None:
    """As the async scorer does: in a call that waits and in one that is awaited, and for a group of nothing too."""
    toy = make_toy(tmp_path)
    wrong: Any = "diff"
    with SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        with pytest.raises(UsageError, match="the patches are given as `str`"):
            scorer.score_group(TASK, wrong)
        with pytest.raises(UsageError, match="'nope' is not among the tasks"):
            scorer.score_group("nope", [])
        with pytest.raises(UsageError, match="the samples are given as `str`"):
            asyncio.run(scorer.score_all_async(wrong))
    assert 0 == toy.made


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own, to be filled, is root's to mount")
def test_a_full_disk_is_told_to_all_who_ask(tmp_path: Path) -> None:
    """A real one: who waited, who asks from then on and who closes the scorer hear that nothing is recorded."""
    toy = make_toy(tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(runs)], check=True)
    heard: list[ScorerClosed] = []

    def ask(patch: bytes) -> None:
        with pytest.raises(ScorerClosed, match=r"cannot be (written|kept) \((.* full|No space .*)\)") as caught:
            scorer.score_group(TASK, [patch])
        heard.append(caught.value)

    try:
        with pytest.raises(LedgerUnwritable), SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
            waiting = threading.Thread(target=ask, args=(toy.patches()[KILLED[0]],))
            waiting.start()
            while not toy.alive:
                time.sleep(0.02)
            _fill(runs / "filler")
            with contextlib.suppress(ScorerClosed):
                scorer.score_group(TASK, toy.patches()[:1])
            waiting.join()
            ask(toy.patches()[1])
    finally:
        subprocess.run(["umount", str(runs)], check=True)
    assert [LedgerUnwritable] * 2 == [type(closed.__cause__) for closed in heard]
    assert 0 == toy.alive


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))


def test_a_scorer_that_is_not_open_or_was_forked_says_so(tmp_path: Path) -> None:
    """Nothing waits for ever for a thread that is not there."""
    toy = make_toy(tmp_path)
    scorer = SyncScorer(toy.campaign, grounds=toy.grounds)
    with pytest.raises(ScorerClosed, match="not open"):
        scorer.score_group(TASK, [b""])
    with scorer:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            child = os.fork()  # newer Pythons warn of just what this test is about
        if child == 0:
            try:
                scorer.score_group(TASK, [b""])
            except UsageError:
                os._exit(7)
            os._exit(1)
        assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with pytest.raises(ScorerClosed):
        scorer.score_group(TASK, [b""])
