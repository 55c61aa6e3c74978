from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from grader.batch import Job, Stops
from grader.campaign import Campaign, load
from grader.commands.grade import exit_status
from grader.errors import RunChanged
from grader.ledger import identity_hash, read_only, run_directory
from grader.plan import make_plan
from grader.preflight.admission_file import Admissions, Entry, Header, covers, write
from grader.preflight.classes import Class
from grader.progress import Progress
from grader.record import Grading
from grader.run import Finished, run_campaign
from grader.table import print_conclusion
from grader.verdict import Cause, Outcome
from sandbox.errors import ImageError, ProviderUnavailable
from tasksets.images import Recipe
from tests.grader.gradings import grading
from tests.grader.rows import task_row

pytestmark = pytest.mark.anyio
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Grounds:
    """Grades by a table of outcomes instead of a sandbox; everything around it is real."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    causes: dict[str, Cause] = field(default_factory=dict)
    unbuildable: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    graded: list[Job] = field(default_factory=list)
    built: list[str] = field(default_factory=list)

    async def image(self, recipe: Recipe, say: Callable[[str], None]) -> str:
        if recipe.instance_id in self.unbuildable:
            raise ImageError("step 2 failed; look at its log")
        self.built.append(recipe.instance_id)
        return f"sha256:{recipe.image_key}"

    async def unusable(self, job: Job, recipe: Recipe | None) -> ImageError | None:
        return ImageError("there is no such image; build it") if job.task.task_id in self.absent else None

    async def grade(self, job: Job) -> Grading:
        self.graded.append(job)
        task_id = job.task.task_id
        outcome = self.outcomes.get(task_id, Outcome.RESOLVED)
        return grading(
            task_id,
            outcome,
            model=job.submission.model_name_or_path,
            patch=job.submission.patch,
            cause=self.causes.get(task_id),
        )


def write_lines(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def campaign(directory: Path, **changed: Any) -> Campaign:
    tasks = write_lines(directory / "tasks.jsonl", [task_row(f"demo__one-{n}") for n in range(6)])
    return load(None, {"taskset": str(tasks), "run": "r", "runs_dir": directory / "runs", **changed})


async def run(of: Campaign, grounds: Grounds, emit: Callable[[Grading], None] = lambda _: None, **how: Any) -> Finished:
    @asynccontextmanager
    async def open_grounds() -> AsyncIterator[Grounds]:
        yield grounds

    how.setdefault("progress", partial(Progress, io.StringIO()))
    return await run_campaign(of, make_plan(of), open_grounds=open_grounds, code_revision="test", emit=emit, **how)


async def test_the_same_command_again_grades_only_what_has_no_verdict(tmp_path: Path) -> None:
    """A verdict is final; an infrastructure failure is tried again, and its old row stays."""
    first, second = Grounds(outcomes={"demo__one-3": Outcome.NO_VERDICT, "demo__one-4": Outcome.UNRESOLVED}), Grounds()
    told: list[Grading] = []

    before = await run(campaign(tmp_path), first)
    after = await run(campaign(tmp_path), second, told.append)

    assert (4, 0) == (exit_status(before), exit_status(after))
    assert ["demo__one-3"] == [job.task.task_id for job in second.graded]
    assert 6 == len({g.task_id for g in told}) == len(told), "a resumed run tells of every grading once"
    assert (6, 5, 1, 0) == (
        after.run.expected,
        after.run.outcomes[Outcome.RESOLVED],
        after.run.outcomes[Outcome.UNRESOLVED],
        after.run.no_verdict,
    )
    with read_only(run_directory(tmp_path / "runs", "r")) as ledger:
        assert 7 == len(list(ledger.gradings()))


async def test_a_part_of_the_set_grows_into_the_whole(tmp_path: Path) -> None:
    """The run owes what it was ever asked for; the command, what it was asked for now."""
    await run(campaign(tmp_path, only=["demo__one-1"]), Grounds())
    await run(campaign(tmp_path), grounds := Grounds())
    finished = await run(campaign(tmp_path, only=["demo__one-2"]), Grounds())

    assert 5 == len(grounds.graded)
    assert (1, 6) == (finished.asked.expected, finished.run.expected)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"conditions": {"egress": "open"}}, 'conditions.egress was "denied" and is now "open"'),
        ({"rewards": {"unresolved": -1.0}}, "rewards.unresolved was 0.0 and is now -1.0"),
    ],
)
async def test_a_changed_campaign_is_refused_under_the_old_name(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    """Verdicts under other settings never mix in one run."""
    await run(campaign(tmp_path), Grounds())

    with pytest.raises(RunChanged) as caught:
        await run(campaign(tmp_path, **changed), grounds := Grounds())

    assert (said,) == caught.value.changes
    assert [] == grounds.graded


async def test_pace_and_place_may_change_between_starts(tmp_path: Path) -> None:
    """What no verdict depends on does not stop a resume."""
    await run(campaign(tmp_path, only=["demo__one-1"]), Grounds())
    finished = await run(campaign(tmp_path, limits={"concurrency": 5, "attempts": 1}), Grounds())

    assert 0 == exit_status(finished)


def recipe(n: int, directory: Path) -> dict[str, Any]:
    return {
        "instance_id": f"demo__one-{n}",
        "python": "3.11",
        "source": {"kind": "directory", "path": str(directory)},
        "install": [f"true {n // 2}"],
        "test_cmd": "pytest -rA",
    }


async def test_each_image_is_built_once_and_one_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    """Tasks of a broken recipe have no verdict with the reason; the rest is graded on the built images."""
    (tmp_path / "source").mkdir()
    recipes = write_lines(tmp_path / "recipes.jsonl", [recipe(n, tmp_path / "source") for n in range(4)])
    grounds = Grounds(unbuildable=("demo__one-2",))

    finished = await run(campaign(tmp_path, recipes=recipes), grounds)

    assert ["demo__one-0"] == grounds.built, "0 and 1 share an image, 2 and 3 share one that fails"
    assert {"demo__one-0", "demo__one-1", "demo__one-4", "demo__one-5"} == {j.task.task_id for j in grounds.graded}
    assert all(j.task.image for j in grounds.graded if j.task.task_id in {"demo__one-0", "demo__one-1"})
    assert 2 == finished.asked.causes[Cause.INFRASTRUCTURE]
    assert 4 == exit_status(finished)
    with read_only(run_directory(tmp_path / "runs", "r")) as ledger:
        lost = [row for row in ledger.current().values() if row.outcome is Outcome.NO_VERDICT]
    assert ("the task's image was not built: step 2 failed; look at its log",) == lost[0].reasons


async def test_a_run_of_which_no_image_is_to_be_had_does_not_begin(tmp_path: Path) -> None:
    """Nothing is recorded and the first is named; where some are to be had, these are graded, the others recorded."""
    absent = tuple(f"demo__one-{n}" for n in range(6))

    with pytest.raises(ExceptionGroup) as caught:
        await run(campaign(tmp_path), grounds := Grounds(absent=absent))
    assert caught.group_contains(
        ImageError, match=r"^demo__one-0: .*; build it \(and 5 more tasks have no image either\)"
    )
    with read_only(run_directory(tmp_path / "runs", "r")) as ledger:
        assert ([], []) == (grounds.graded, list(ledger.gradings()))
    await run(campaign(tmp_path), grounds := Grounds(absent=absent[:5]))
    assert 6 == len(grounds.graded)


async def test_a_run_that_is_under_way_records_what_has_no_image(tmp_path: Path) -> None:
    """Its sum is told, and its rows name the cause, as if the others were still to come."""
    first = campaign(tmp_path, only=("demo__one-0",))
    await run(first, Grounds())

    grounds = Grounds(absent=tuple(f"demo__one-{n}" for n in range(1, 6)))
    finished = await run(campaign(tmp_path), grounds)

    assert 5 == len(grounds.graded)
    assert 6 == finished.run.expected


async def test_a_provider_that_cannot_open_costs_nothing(tmp_path: Path) -> None:
    """A machine without sandboxes gives an error, not six rows without a verdict."""

    @asynccontextmanager
    async def open_grounds() -> AsyncIterator[Grounds]:
        raise ProviderUnavailable("no user namespaces; enable them")
        yield Grounds()

    with pytest.raises((ProviderUnavailable, ExceptionGroup)):
        await run_campaign(
            campaign(tmp_path),
            make_plan(campaign(tmp_path)),
            open_grounds=open_grounds,
            code_revision="test",
            progress=partial(Progress, io.StringIO()),
            emit=lambda _: None,
        )
    with read_only(run_directory(tmp_path / "runs", "r")) as ledger:
        assert ([], 6) == (list(ledger.gradings()), len(ledger.expected()))


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (Cause.INFRASTRUCTURE, 4),
        (Cause.RESULTS_LOST, 4),
        (Cause.TASK_REFUSED, 3),
        (Cause.CONDITIONS_CONTRADICTED, 3),
    ],
)
async def test_the_exit_status_says_why_verdicts_are_missing(
    tmp_path: Path, cause: Cause, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refusal and infrastructure are told apart without reading the output, and only the one is worth another start."""
    grounds = Grounds(outcomes={"demo__one-1": Outcome.NO_VERDICT}, causes={"demo__one-1": cause})
    of = campaign(tmp_path)
    finished = await run(of, grounds)

    assert status == exit_status(finished)
    with read_only(run_directory(of.runs_dir, of.run)) as ledger:
        keys = list(ledger.current())
    print_conclusion(of, keys, finished, table=False)
    assert (status == 4) == ("the same command again" in capsys.readouterr().err)


async def test_a_reader_that_goes_away_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    """`grader grade --json | head -1` ends, and what had ended is in the ledger."""

    def emit(grading: Grading) -> None:
        raise BrokenPipeError

    finished = await run(campaign(tmp_path, limits={"concurrency": 1}), grounds := Grounds(), emit)

    assert 141 == exit_status(finished)
    assert len(grounds.graded) >= 1
    assert finished.run.expected == finished.run.with_verdict + finished.run.not_run


def predictions(directory: Path, *models: str) -> Path:
    patch = task_row("demo__one-1")["patch"]
    rows = [{"instance_id": "demo__one-1", "model_name_or_path": model, "model_patch": patch} for model in models]
    return write_lines(directory / "preds.jsonl", rows)


async def test_a_patch_that_an_earlier_start_graded_is_not_graded_again(tmp_path: Path) -> None:
    """Another model's same patch, asked for later, gets the verdict that is there; without `dedupe` it is graded."""
    told: list[Grading] = []
    await run(campaign(tmp_path, patches=str(predictions(tmp_path, "a"))), Grounds())
    finished = await run(
        campaign(tmp_path, patches=str(predictions(tmp_path, "a", "b"))), grounds := Grounds(), told.append, dedupe=True
    )

    assert ([], 2) == (grounds.graded, finished.asked.outcomes[Outcome.RESOLVED])
    assert ["a", "b"] == [g.model_name_or_path for g in told]
    again = campaign(tmp_path, patches=str(predictions(tmp_path, "c")))
    await run(again, grounds := Grounds())
    assert ["c"] == [job.submission.model_name_or_path for job in grounds.graded]


async def test_one_patch_with_two_verdicts_is_a_contradiction_whoever_submitted_it(tmp_path: Path) -> None:
    """Without deduplication a flaky task shows, between models too; both rows are kept and the patch is listed."""
    await run(campaign(tmp_path, patches=str(predictions(tmp_path, "a"))), Grounds())
    flaky = Grounds(outcomes={"demo__one-1": Outcome.UNRESOLVED})
    await run(campaign(tmp_path, patches=str(predictions(tmp_path, "b"))), flaky)

    with read_only(run_directory(tmp_path / "runs", "r")) as ledger:
        assert [("resolved", "unresolved")] == [found.outcomes for found in ledger.contradictions()]
        assert 2 == len(list(ledger.gradings()))


async def test_broken_infrastructure_stops_the_run_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """The breaker ends the run with status 4 and a count that adds up; once mended, only the rest is graded."""
    rows = [task_row(f"demo__many-{n}") for n in range(60)]
    many = {"taskset": str(write_lines(tmp_path / "many.jsonl", rows))}
    lost = {f"demo__many-{n}": Outcome.NO_VERDICT for n in range(15, 60)}

    stopped = await run(campaign(tmp_path, **many), Grounds(outcomes=lost), stops=Stops(breaker=True))
    resumed = await run(campaign(tmp_path, **many), grounds := Grounds())

    assert 4 == exit_status(stopped)
    assert stopped.stopped_because is not None
    assert (60, 15) == (stopped.run.expected, stopped.run.outcomes[Outcome.RESOLVED])
    assert 20 < stopped.run.not_run < 45
    assert (0, 45) == (exit_status(resumed), len(grounds.graded))


async def test_an_empty_patch_is_answered_from_the_admission(tmp_path: Path) -> None:
    """What preflight saw of the empty patch counts, under this run's rewards and with a flag; no sandbox is used."""
    nothing = Grounds(outcomes={f"demo__one-{n}": Outcome.UNRESOLVED for n in range(6)})
    await run(campaign(tmp_path, run="pre", patches="empty"), nothing)
    one = campaign(tmp_path, patches="empty", rewards={"unresolved": -1.0, "fail_to_pass_share": 0.5})
    plan = make_plan(one)
    entries = [
        Entry(task_id=job.task.task_id, kind=Class.ADMITTED, rows=(f"pre#{number}",), task_digest=job.task.digest)
        for number, job in enumerate(plan.jobs, start=1)
    ]
    about = {"taskset": one.taskset, "taskset_revision": "", "repeats": 1, "slow_share": 0.5, "code_revision": ""}
    covered = covers(plan.identity)
    header = Header(covers=covered, covers_sha256=identity_hash(covered), run="pre", created_at="", **about)
    write(tmp_path / "admission.jsonl", Admissions(header=header, entries=tuple(entries)))
    told: list[Grading] = []

    admitting = one.model_copy(update={"admission": tmp_path / "admission.jsonl"})
    await run(admitting, grounds := Grounds(), told.append, dedupe=True)

    assert [] == grounds.graded
    share = 0.5  # its one FAIL_TO_PASS test passed
    assert [(Outcome.UNRESOLVED, share - 1.0, 0.0)] * 6 == [(g.outcome, g.reward, g.seconds) for g in told]
    assert {f"pre#{n}" for n in range(1, 7)} == {g.flags[-1].split(", ")[1].split(";")[0] for g in told}
    (tmp_path / "runs/pre/ledger.sqlite").unlink()
    await run(admitting.model_copy(update={"run": "later"}), grounds := Grounds(), dedupe=True)
    assert 6 == len(grounds.graded), "without preflight's ledger they are graded"


async def test_fail_fast_leaves_the_rest_for_the_next_start(tmp_path: Path) -> None:
    """A run that stopped at what is not resolved has status 3, says so, and goes on without the flag."""
    wrong, one = Grounds(outcomes={"demo__one-2": Outcome.UNRESOLVED}), {"limits": {"concurrency": 1}}
    finished = await run(campaign(tmp_path, **one), wrong, stops=Stops(breaker=True, fail_fast=True))

    assert (3, 3) == (exit_status(finished), finished.run.not_run)
    assert "demo__one-2" in (finished.stopped_because or "")
    assert 0 == exit_status(await run(campaign(tmp_path, **one), Grounds()))


async def test_several_patches_of_one_model_for_one_task_are_told_apart(tmp_path: Path) -> None:
    """The count of what is in flight, and the names of stragglers, hold for groups of samples too."""
    row = {"instance_id": "demo__one-1", "model_name_or_path": "policy"}
    rows = [{**row, "model_patch": task_row("demo__one-1")["patch"].replace("+b", f"+{n}")} for n in range(3)]
    of = campaign(tmp_path, patches=str(write_lines(tmp_path / "preds.jsonl", rows)), limits={"concurrency": 3})
    progress: list[Progress] = []
    seen: list[int] = []

    class Watching(Grounds):
        async def grade(self, job: Job) -> Grading:
            await anyio.sleep(0.05)
            seen.append(progress[0].standing().in_flight)
            return await super().grade(job)

    def watched(total: int, before: int) -> Progress:
        progress.append(Progress(io.StringIO(), total, before))
        return progress[0]

    await run(of, Watching(), progress=watched)
    assert 3 == max(seen)


STOPPABLE = """
import sys
from functools import partial
from pathlib import Path
import anyio
from grader.batch import Job
from grader.commands.grade import exit_status
from grader.plan import make_plan
from tests.grader.test_run import Grounds, campaign, run

class Slow(Grounds):
    async def grade(self, job):
        if len(self.graded) >= 3:
            self.graded.append(job)
            try:
                await anyio.sleep_forever()
            finally:
                print("given back", job.task.task_id, flush=True)
        return await super().grade(job)

finished = anyio.run(
    run, campaign(Path(sys.argv[1]), limits={"concurrency": 2}), Slow(), lambda g: print("ended", g.task_id, flush=True)
)
print(finished.run.sentence())
sys.exit(exit_status(finished))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_gives_back_what_is_in_flight_and_keeps_what_has_ended(tmp_path: Path, number: int) -> None:
    """Ctrl-C, SIGTERM and a lost terminal stop cleanly, the count adds up, and the same command goes on."""
    process = subprocess.Popen(
        ["env", "--default-signal=HUP", sys.executable, "-c", STOPPABLE, str(tmp_path)],  # we may be under nohup
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    ended = [process.stdout.readline().split()[1] for _ in range(3)]
    process.send_signal(number)
    if number is signal.SIGHUP:
        process.send_signal(number)  # as a terminal does that goes away
    rest = process.stdout.read().splitlines()
    status = process.wait()
    process.stdout.close()

    assert 128 + number == status
    assert 2 == len([line for line in rest if line.startswith("given back")])
    assert "6 expected = 3 resolved" in rest[-1]
    assert rest[-1].endswith("+ 3 not run")
    resumed = await run(campaign(tmp_path), grounds := Grounds())
    assert 0 == exit_status(resumed)
    assert set(ended).isdisjoint(job.task.task_id for job in grounds.graded)
    assert 3 == len(grounds.graded)


async def test_a_hangup_is_nothing_to_a_run_under_nohup(tmp_path: Path) -> None:
    """Who started it so meant it to outlive its terminal."""
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", STOPPABLE, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    await anyio.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    process.stdout.close()

    assert 128 + signal.SIGTERM == process.wait()
