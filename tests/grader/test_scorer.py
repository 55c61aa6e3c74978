"""Claims about `grader.scorer`: groups in real sandboxes, and what is made of trouble."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from grader.campaign import Campaign
from grader.errors import LedgerUnwritable, UsageError
from grader.ledger import Expected, Ledger, read_only, run_directory
from grader.plan import Plan, make_plan
from grader.record import Grading
from grader.scorer import Scorer, ScorerClosed, open_scorer
from grader.verdict import Cause, Outcome
from sandbox.errors import ImageError
from tasksets.images import Recipe, SdistSource
from tests.grader.groups import KILLED, REWARDS, TASK, Toy, make_toy

pytestmark = pytest.mark.anyio


async def test_a_group_of_eight_with_two_infrastructure_failures(tmp_path: Path) -> None:
    """Six rewards, a mean of six, two requests for another sample, and nothing that could be taken for a 0."""
    toy = make_toy(tmp_path)
    with toy.killing():
        async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
            group = await scorer.score_group(TASK, toy.patches())

    assert REWARDS == group.rewards
    found = group.advantages(scale="none")
    assert 0.5 == found.mean
    assert [0.5, -0.5, None, 0.5, -0.5, None, 0.5, -0.5] == list(found.values)
    assert list(KILLED) == [again.index for again in group.resample()]
    assert {(Outcome.NO_VERDICT, Cause.INFRASTRUCTURE, True)} == {
        (again.outcome, again.cause, again.worthwhile) for again in group.resample()
    }
    assert all("SandboxLost" in again.why for again in group.resample())


async def test_the_same_patch_is_graded_once_within_and_across_groups(tmp_path: Path) -> None:
    """However often a patch is sampled, at one moment or later, it costs one sandbox; a new process remembers it."""
    toy = make_toy(tmp_path)
    good, bad = toy.patches()[:2]
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        groups = {}

        async def score(number: int) -> None:
            groups[number] = await scorer.score_group(TASK, [good, bad, good])

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(score, number)
        again = await scorer.score_group(TASK, [bad.decode()])
    assert [[1.0, 0.0, 1.0]] * 3 == [groups[number].rewards for number in range(3)]
    assert ([0.0], 2) == (again.rewards, toy.made)

    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        later = await scorer.score_group(TASK, [bad, good])
    assert ([0.0, 1.0], 2) == (later.rewards, toy.made)


async def test_what_had_no_verdict_is_tried_again(tmp_path: Path) -> None:
    """An infrastructure failure is not remembered; asking again grades again, and both are in the ledger."""
    toy = make_toy(tmp_path)
    sleeps = toy.patches()[KILLED[0]]
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        for _ in range(2):
            with toy.killing():
                assert [None] == (await scorer.score_group(TASK, [sleeps])).rewards
    assert 2 == toy.made
    with read_only(run_directory(tmp_path / "runs", "training")) as ledger:
        assert [Outcome.NO_VERDICT] * 2 == [grading.outcome for grading in ledger.gradings()]
        assert [sleeps] == [expected.patch for expected in ledger.expected()]


async def test_no_more_sandboxes_than_the_campaign_allows(tmp_path: Path) -> None:
    """Many groups share one bound."""
    toy = make_toy(tmp_path, limits={"concurrency": 2, "attempts": 1, "grading_timeout_s": 60})
    most = 0
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer, anyio.create_task_group() as tasks:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, toy.alive)
                await anyio.sleep(0.005)

        tasks.start_soon(watch)
        patches = [patch for place, patch in enumerate(toy.patches()) if place not in KILLED]
        await scorer.score_group(TASK, patches)
        tasks.cancel_scope.cancel()
    assert 2 == most


async def test_a_cancelled_group_gives_its_sandboxes_back(tmp_path: Path) -> None:
    """A trainer that gives up a group gets its sandboxes' places back at once; what others wait for goes on."""
    toy = make_toy(tmp_path)
    good, _, slow = toy.patches()[:3]
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        with anyio.move_on_after(2) as gave_up:
            await scorer.score_group(TASK, [slow, good])
        assert gave_up.cancelled_caught
        with anyio.fail_after(10):
            while toy.alive:
                await anyio.sleep(0.02)
        assert [1.0] == (await scorer.score_group(TASK, [good])).rewards

        async with anyio.create_task_group() as tasks:
            shared: list[float | None] = []

            async def patient() -> None:
                shared.extend((await scorer.score_group(TASK, [slow])).rewards)

            tasks.start_soon(patient)
            with anyio.move_on_after(1):
                await scorer.score_group(TASK, [slow])
            with toy.killing():
                while not shared:
                    await anyio.sleep(0.02)
        assert [None] == shared, "the other caller's grading was not given up"
    assert 0 == toy.alive


async def test_closing_answers_those_who_wait(tmp_path: Path) -> None:
    """A caller that still waits when the scorer is closed hears so, and gets no reward."""
    toy = make_toy(tmp_path)
    slow = toy.patches()[KILLED[0]]
    heard: list[Exception] = []

    async def ask(scorer: Scorer) -> None:
        try:
            await scorer.score_group(TASK, [slow])
        except ScorerClosed as error:
            heard.append(error)

    async with anyio.create_task_group() as tasks, open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        tasks.start_soon(ask, scorer)
        while not toy.alive:
            await anyio.sleep(0.02)
    assert 1 == len(heard)
    assert 0 == toy.alive
    with pytest.raises(ScorerClosed):
        await scorer.score(TASK, slow)


async def test_a_second_process_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    """Ranks of one trainer share a campaign file; each writes its own ledger."""
    toy = make_toy(tmp_path)
    good = toy.patches()[0]
    async with (
        open_scorer(toy.campaign, grounds=toy.grounds) as first,
        open_scorer(toy.campaign, grounds=toy.grounds) as second,
    ):
        await first.score(TASK, good)
        await second.score(TASK, good)
    for run in ("training", "training-2"):
        with read_only(run_directory(tmp_path / "runs", run)) as ledger:
            assert [Outcome.RESOLVED] == [grading.outcome for grading in ledger.gradings()]


async def test_an_unknown_task_is_the_callers_mistake(tmp_path: Path) -> None:
    """A wrong id raises and names what is near; it is no sample without a reward."""
    toy = make_toy(tmp_path)
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        with pytest.raises(UsageError, match="near: toy__sums-1"):
            await scorer.score_group("toy__sum-1", [b""])


@pytest.mark.parametrize(
    ("patches", "said"),
    [
        ("diff", "the patches are given as `str`; give a list of them"),
        (b"diff", "the patches are given as `bytes`"),
        (bytearray(b"diff"), "the patches are given as `bytearray`"),
        ({"diff": 1}, "the patches are given as `dict`"),
        ({b"diff"}, "the patches are given as `set`"),
        (None, "the patches are given as None"),
        ([b"", 7], "sample 1: a patch is given as `int`; give bytes, text, or None for the empty patch"),
        ([["diff"]], "sample 0: a patch is given as `list`"),
    ],
)
async def test_what_is_no_list_of_patches_is_refused_whole(tmp_path: Path, patches: Any, said: str) -> None:
    """Letters of a diff and keys of a table are no patches: nothing of such a group is graded, or recorded."""
    toy = make_toy(tmp_path)
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        with pytest.raises(UsageError, match=re.escape(said)):
            await scorer.score_group(TASK, patches)
    with read_only(run_directory(tmp_path / "runs", "training")) as ledger:
        assert (0, []) == (toy.made, list(ledger.gradings()))


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ("ab", "the samples are given as `str`"),
        ({TASK: b""}, "the samples are given as `dict`"),
        (["ab"], "sample 0 is `str`; give pairs of task id and patch"),
        ([(TASK, b""), (TASK,)], "sample 1 is `tuple`"),
        ([(TASK, b""), (7, b"")], "the task of sample 1 is given as `int`"),
        ([(TASK, b""), (TASK, bytearray())], "sample 1: a patch is given as `bytearray`"),
        ([(TASK, b""), ("nope", b"")], "'nope' is not among the tasks"),
    ],
)
async def test_what_are_no_pairs_is_refused_whole(tmp_path: Path, samples: Any, said: str) -> None:
    """One sample that is none refuses those that came with it."""
    toy = make_toy(tmp_path)
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        with pytest.raises(UsageError, match=re.escape(said)):
            await scorer.score_all(samples)
    assert 0 == toy.made


async def test_an_empty_group_is_of_a_task_too(tmp_path: Path) -> None:
    """A group that lost all its samples has no scores; of a task that is not there it is a mistake."""
    toy = make_toy(tmp_path)
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        assert [] == (await scorer.score_group(TASK, [])).rewards
        with pytest.raises(UsageError, match="'nope' is not among the tasks"):
            await scorer.score_group("nope", [])


async def test_none_is_the_empty_patch(tmp_path: Path) -> None:
    """As null is in a file of predictions."""
    toy = make_toy(tmp_path)
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        group = await scorer.score_group(TASK, [toy.patches()[0], None, ""])
    assert [1.0, 0.0, 0.0] == group.rewards
    assert 1 == len({score.patch_sha256 for score in group.scores[1:]})


async def test_the_bodys_own_error_comes_out_as_it_is(tmp_path: Path) -> None:
    """A trainer's exception is not wrapped in a group of exceptions."""
    toy = make_toy(tmp_path)
    with pytest.raises(ZeroDivisionError):
        async with open_scorer(toy.campaign, grounds=toy.grounds):
            raise ZeroDivisionError


async def test_a_policy_may_give_a_time_out_no_reward(tmp_path: Path) -> None:
    """With `timed_out` unset in the policy a hanging sample leaves the group, and may be drawn again."""
    toy = make_toy(tmp_path, conditions={"test_time_limit_s": 1.5}, rewards={"unresolved": -1.0})
    policy = toy.campaign.rewards.model_copy(update={"timed_out": None})
    campaign = toy.campaign.model_copy(update={"rewards": policy})
    toy = Toy(toy.repo, campaign, toy.mark)
    async with open_scorer(campaign, grounds=toy.grounds) as scorer:
        group = await scorer.score_group(TASK, toy.patches()[1:3])
    assert [-1.0, None] == group.rewards
    assert [(1, Outcome.TIMED_OUT, None)] == [(a.index, a.outcome, a.cause) for a in group.resample()]
    assert group.resample()[0].why.startswith("the policy gives no reward for timed out: ")


async def test_a_task_that_cannot_be_graded_is_not_worth_another_sample(tmp_path: Path) -> None:
    """Contradicted conditions end every sample alike."""
    toy = make_toy(tmp_path, conditions={"test_time_limit_s": 40, "architecture": "pdp11"})
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        group = await scorer.score_group(TASK, toy.patches()[:1])
    (again,) = group.resample()
    assert (Cause.CONDITIONS_CONTRADICTED, False) == (again.cause, again.worthwhile)


def unadmitted(campaign: Campaign) -> Plan:
    return dataclasses.replace(make_plan(campaign), refused={TASK: "admission.jsonl says flaky"})


async def test_a_task_that_preflight_did_not_admit_has_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The campaign's admission file holds for training too: nothing is run, and no other sample is asked for."""
    toy = make_toy(tmp_path)

    monkeypatch.setattr("grader.scorer.make_plan", unadmitted)
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        (again,) = (await scorer.score_group(TASK, toy.patches()[:1])).resample()
    assert (Cause.TASK_REFUSED, False, 0) == (again.cause, again.worthwhile, toy.made)
    assert "says flaky" in again.why


async def test_an_image_that_breaks_the_builder_costs_its_own_group_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a build raises is no verdict for those who asked for it, and the scorer goes on for all others."""
    toy = make_toy(tmp_path)
    good = toy.patches()[0]
    source = SdistSource(kind="sdist", file="toy-1.0.tar.gz", sha256="0" * 64)
    recipe = Recipe(instance_id=TASK, python="3.9", source=source, install=(), test_cmd="true")
    built: list[str | Exception] = [OSError(28, "No space left on device"), ImageError("no base; name one"), "host"]

    async def image(*_: object) -> str:
        answer = built.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("grader.grounds.ProviderGrounds.image", image)
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        scorer._desk.recipes = {TASK: recipe}
        scores = [await scorer.score(TASK, good) for _ in range(3)]
    assert [None, None, 1.0] == [score.reward for score in scores]
    assert "OSError: [Errno 28] No space left on device" in scores[0].why
    assert scores[1].why.endswith("no base; name one")


async def test_a_disk_that_takes_nothing_more_answers_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that cannot be written ends the scorer: who waits, who asks from then on and who leaves hear why."""
    toy = make_toy(tmp_path)
    good, bad, slow = toy.patches()[:3]

    def full(self: Ledger, gradings: Sequence[Grading]) -> None:
        raise LedgerUnwritable("no space left")

    monkeypatch.setattr(Ledger, "append", full)
    heard: list[ScorerClosed] = []

    async def ask(scorer: Scorer, patch: bytes) -> None:
        with pytest.raises(ScorerClosed, match="no space left") as caught:
            await scorer.score_group(TASK, [patch])
        heard.append(caught.value)

    with pytest.raises(LedgerUnwritable), anyio.fail_after(60):
        async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer, anyio.create_task_group() as tasks:
            tasks.start_soon(ask, scorer, slow)
            assert 1.0 == (await scorer.score(TASK, good)).reward
            while not heard:
                await anyio.sleep(0.02)
            for patch in (bad, good):
                await ask(scorer, patch)
    assert [LedgerUnwritable] * 3 == [type(closed.__cause__) for closed in heard]
    assert 0 == toy.alive


async def test_what_is_recorded_on_leaving_after_all_is_owed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that has room again takes the grading and that it was asked for, and nothing is raised."""
    toy = make_toy(tmp_path)
    expect, asked = Ledger.expect, threading.Event()

    def full_once(self: Ledger, expected: Iterable[Expected]) -> None:
        if asked.is_set():
            return expect(self, expected)
        asked.set()
        raise LedgerUnwritable("no space left")

    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        monkeypatch.setattr(Ledger, "expect", full_once)
        assert 1.0 == (await scorer.score(TASK, toy.patches()[0])).reward
        await anyio.to_thread.run_sync(asked.wait)
    with read_only(run_directory(tmp_path / "runs", "training")) as ledger:
        assert (1, 1) == (len(list(ledger.gradings())), len(ledger.expected()))


async def test_a_patch_that_ends_twice_while_the_disk_is_busy_is_recorded_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that is tried again before its first row is on the disk takes nothing from that row."""
    toy = make_toy(tmp_path)
    monkeypatch.setattr("grader.scorer.make_plan", unadmitted)  # a quick way to end without a verdict
    busy, free, append = threading.Event(), threading.Event(), Ledger.append

    def slow(self: Ledger, gradings: Sequence[Grading]) -> None:
        append(self, gradings)
        busy.set()
        free.wait(timeout=10)

    monkeypatch.setattr(Ledger, "append", slow)
    async with open_scorer(toy.campaign, grounds=toy.grounds) as scorer:
        await scorer.score(TASK, b"")
        await anyio.to_thread.run_sync(busy.wait)
        await scorer.score(TASK, b"")
        free.set()
    with read_only(run_directory(tmp_path / "runs", "training")) as ledger:
        assert (2, 1) == (len(list(ledger.gradings())), len(ledger.expected()))
