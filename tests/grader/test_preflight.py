from __future__ import annotations

import io
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grader.batch import Job
from grader.campaign import Campaign
from grader.cli import main
from grader.errors import RunChanged
from grader.ledger import read_only, run_directory
from grader.plan import make_plan
from grader.preflight.admission_file import Entry, read
from grader.preflight.classes import Class
from grader.preflight.run import Preflight, Request, run_preflight
from grader.preflight.variations import NAMES
from grader.progress import Progress
from grader.record import Grading
from grader.run import OpenGrounds
from grader.verdict import Outcome
from sandbox.errors import ImageError
from tasksets.images import Recipe
from tests.grader.gradings import grading
from tests.grader.rows import task_row
from tests.grader.test_run import campaign, recipe, write_lines

pytestmark = pytest.mark.anyio

Act = Callable[[Campaign, Job], Outcome]
"""How a task behaves: under which conditions, with which patch."""

ONE = "demo__one-0"
PATCH = """\
diff --git a/f.py b/f.py
--- a/f.py
+++ b/f.py
@@ -1,7 +1,7 @@
-a
+b
 c
 c
 c
 c
 c
-a
+b
"""


@dataclass
class Place:
    """Grounds that act instead of a sandbox; the run, the ledger and the files around them are real."""

    act: Act
    unbuildable: bool = False
    failure: str = ""
    """Of a sandbox, on record where there is no verdict."""
    graded: list[tuple[str, Job]] = field(default_factory=list)

    def open_grounds(self, of: Campaign) -> OpenGrounds:
        @asynccontextmanager
        async def grounds() -> AsyncIterator[_Grounds]:
            yield _Grounds(self, of)

        return grounds


@dataclass
class _Grounds:
    place: Place
    campaign: Campaign

    async def image(self, recipe: Recipe, say: Callable[[str], None]) -> str:
        if self.place.unbuildable:
            raise ImageError("step 2 failed; look at its log")
        return f"sha256:{recipe.image_key}"

    async def unusable(self, job: Job, recipe: Recipe | None) -> None:
        return None

    async def grade(self, job: Job) -> Grading:
        self.place.graded.append((self.campaign.run, job))
        outcome = self.place.act(self.campaign, job)
        listed = (
            {"success": ("t",), "failure": ()} if outcome is Outcome.RESOLVED else {"success": (), "failure": ("t",)}
        )
        ended = grading(job.task.task_id, outcome, model=job.submission.model_name_or_path, patch=job.submission.patch)
        failures = (self.place.failure,) if outcome is Outcome.NO_VERDICT and self.place.failure else ()
        evidence = ended.evidence.model_copy(update={"failures": failures})
        return ended.model_copy(update={"fail_to_pass": listed, "statuses": {"t": "X"}, "evidence": evidence})


def well(_: Campaign, job: Job) -> Outcome:
    return Outcome.RESOLVED if job.submission.patch else Outcome.UNRESOLVED


def one_task(directory: Path, **changed: Any) -> Campaign:
    """A campaign over one task that its row does not rule out."""
    row = {**task_row(ONE), "eval_script": EVAL, "log_parser": "parse_log_pytest", "image": "host", "patch": PATCH}
    write_lines(directory / "one.jsonl", [row])
    return campaign(directory, taskset=str(directory / "one.jsonl"), **changed)


EVAL = """\
#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout 0000000000000000000000000000000000000000 test_f.py
git apply -v - <<'EOF_114329324912'
diff --git a/test_f.py b/test_f.py
--- a/test_f.py
+++ b/test_f.py
@@ -1 +1 @@
-a
+b
EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA test_f.py
: '>>>>> End Test Output'
git checkout 0000000000000000000000000000000000000000 test_f.py
"""


async def preflight(of: Campaign, place: Place, **asked: Any) -> Preflight:
    return await run_preflight(
        of,
        Request(**asked),
        open_grounds=place.open_grounds,
        code_revision="test",
        progress=partial(Progress, io.StringIO()),
        say=lambda _: None,
    )


def only(done: Preflight) -> Entry:
    (entry,) = done.admissions.entries
    return entry


async def test_every_repeat_is_a_grading_of_its_own_and_its_evidence(tmp_path: Path) -> None:
    """Reference and empty patch, N times each, none copied from another; the rows that prove it are named."""
    entry = only(await preflight(one_task(tmp_path), place := Place(well), repeats=4))

    assert Class.ADMITTED == entry.kind
    assert 8 == len(place.graded) == len(set(entry.rows))
    with read_only(run_directory(tmp_path / "runs", "r")) as ledger:
        numbers = {f"r#{number}": found.model_name_or_path for number, found in ledger.current_numbered()}
    assert {"preflight:reference": 4, "preflight:empty": 4} == Counter(
        numbers[row].rpartition(":")[0] for row in entry.rows
    )


async def test_the_same_command_again_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What has a verdict is not graded again; more repeats add to it."""
    await preflight(one_task(tmp_path), Place(well), repeats=2)

    again = await preflight(one_task(tmp_path), place := Place(well), repeats=3)

    assert ["preflight:empty:3", "preflight:reference:3"] == sorted(
        job.submission.model_name_or_path for _, job in place.graded
    )
    assert 6 == len(only(again).rows)


def sometimes(_: Campaign, job: Job) -> Outcome:
    """The fourth run of the reference fails."""
    return Outcome.UNRESOLVED if job.submission.model_name_or_path == "preflight:reference:4" else well(_, job)


async def test_fewer_repeats_leave_out_nothing_that_is_on_record(tmp_path: Path) -> None:
    """A task that was flaky in six runs is not admitted for the first of them, and nothing runs again."""
    await preflight(one_task(tmp_path), Place(sometimes), repeats=6)

    entry = only(await preflight(one_task(tmp_path), place := Place(well), repeats=1))

    assert (Class.FLAKY, 5, 6) == (entry.kind, entry.flaky[0].passed, entry.flaky[0].runs)
    assert (12, 0) == (len(entry.rows), len(place.graded))


async def test_a_repeat_on_record_without_a_verdict_is_tried_again(tmp_path: Path) -> None:
    """Also when fewer repeats are asked for: what it would have said is not left out."""
    await preflight(one_task(tmp_path), Place(lambda *_: Outcome.NO_VERDICT), repeats=4)

    entry = only(await preflight(one_task(tmp_path), place := Place(sometimes), repeats=1))

    assert (Class.FLAKY, 8) == (entry.kind, len(place.graded))


async def test_controls_on_record_count_without_a_diagnosis(tmp_path: Path) -> None:
    """They are the reference under the same conditions: it failed three times and then passed ten times."""
    calls: list[Job] = []

    def came_back(_: Campaign, job: Job) -> Outcome:
        calls.append(job)
        return Outcome.RESOLVED if job.submission.patch and len(calls) > 6 else Outcome.UNRESOLVED

    await preflight(one_task(tmp_path), Place(came_back), vary=("egress",))

    entry = only(await preflight(one_task(tmp_path), place := Place(well)))

    assert (Class.FLAKY, 10, 13, 0) == (entry.kind, entry.flaky[0].passed, entry.flaky[0].runs, len(place.graded))


def test_a_part_of_the_set_leaves_the_other_tasks_in_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table tells of what was asked for; the file keeps the rest. Another configuration is not mixed in."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "tasks.jsonl", [task_row(f"demo__one-{number}") for number in range(3)])
    (tmp_path / "c.toml").write_text('taskset = "tasks.jsonl"\nrun = "night"\n')
    file = tmp_path / "runs/night.preflight/admission.jsonl"
    main(["preflight", "c.toml"])
    capfd.readouterr()

    assert 3 == main(["preflight", "c.toml", "--only", "demo__one-1", "--json"])
    out, err = capfd.readouterr()
    assert ["demo__one-1"] == [json.loads(line)["task_id"] for line in out.splitlines()]
    assert "beside 2 tasks that it had before" in err
    assert {f"demo__one-{number}" for number in range(3)} == {entry.task_id for entry in read(file).entries}

    assert 2 == main(["preflight", "c.toml", "--only", "demo__one-1", "--slow-share", "0.9"])
    assert "slow_share was 0.5 and is now 0.9. Preflight all of them, or name another" in capfd.readouterr().err
    assert 0.5 == read(file).header.slow_share
    assert 3 == main(["preflight", "c.toml", "--slow-share", "0.9"])


async def test_other_conditions_under_the_same_name_are_refused(tmp_path: Path) -> None:
    """Evidence of two configurations is never mixed."""
    await preflight(one_task(tmp_path), Place(well))

    with pytest.raises(RunChanged, match="time_zone"):
        await preflight(one_task(tmp_path, conditions={"time_zone": "UTC"}), Place(well))


def needs_egress(of: Campaign, job: Job) -> Outcome:
    open_ = of.conditions.egress == "open"
    return Outcome.RESOLVED if job.submission.patch and open_ else Outcome.UNRESOLVED


async def test_the_condition_that_a_failing_task_lacks_is_named(tmp_path: Path) -> None:
    """One condition is changed at a time, in a ledger of its own, and the first that explains is the last tried."""
    entry = only(await preflight(one_task(tmp_path), place := Place(needs_egress), vary=NAMES))

    assert (Class.NEEDS_CONDITION, "egress", "open", 7) == (entry.kind, *vars(entry.needs[0]).values())
    assert {"r": 7, "r.egress-open": 7} == Counter(name for name, _ in place.graded)


async def test_nothing_is_varied_unless_asked(tmp_path: Path) -> None:
    """Opening the network is the campaign's to allow."""
    entry = only(await preflight(one_task(tmp_path), place := Place(needs_egress)))

    assert (Class.REFERENCE_FAILS, {"r"}) == (entry.kind, {name for name, _ in place.graded})

    entry = only(await preflight(one_task(tmp_path), place := Place(needs_egress), vary=("locale",)))
    assert Class.REFERENCE_FAILS == entry.kind
    assert {"r.locale-c-utf-8", "r.locale-en-us-utf-8"} == {name for name, _ in place.graded}


async def test_a_failure_that_went_away_meanwhile_is_not_put_down_to_a_condition(tmp_path: Path) -> None:
    """A service that comes back between the repeats and the re-runs shows in the control, which passes unchanged."""
    calls: list[Job] = []

    def came_back(_: Campaign, job: Job) -> Outcome:
        calls.append(job)
        return Outcome.RESOLVED if job.submission.patch and len(calls) > 6 else Outcome.UNRESOLVED

    entry = only(await preflight(one_task(tmp_path), Place(came_back), vary=("egress",)))

    assert (Class.FLAKY, 10, 13) == (entry.kind, entry.flaky[0].passed, entry.flaky[0].runs)


async def test_a_task_that_passes_half_of_the_time_is_held_against_as_many_controls(tmp_path: Path) -> None:
    """It fails every other time as declared and never with the condition: the condition is named."""
    turns: Counter[str] = Counter()

    def every_other(of: Campaign, job: Job) -> Outcome:
        turns[of.run] += bool(job.submission.patch)
        good = of.conditions.hash_seed == 0 or turns[of.run] % 2
        return Outcome.RESOLVED if job.submission.patch and good else Outcome.UNRESOLVED

    entry = only(await preflight(one_task(tmp_path), place := Place(every_other), vary=NAMES))

    assert (Class.NEEDS_CONDITION, "hash_seed", "0") == (entry.kind, entry.needs[0].condition, entry.needs[0].value)
    controls = [job for _, job in place.graded if ":control:" in job.submission.model_name_or_path]
    assert 10 == len(controls)
    assert entry.needs[0].runs >= 14


async def test_parts_of_the_reference_that_no_test_sees_are_hinted_at(tmp_path: Path) -> None:
    """Two mutants: the one without the first change still passes."""
    whole = PATCH.encode()

    def act(_: Campaign, job: Job) -> Outcome:
        sees = job.submission.patch == whole or b"+b\n c\n" not in job.submission.patch
        return Outcome.RESOLVED if job.submission.patch and sees else Outcome.UNRESOLVED

    entry = only(await preflight(one_task(tmp_path), place := Place(act), mutants=5))

    assert 8 == len(place.graded)
    assert ("weak_tests: 1 of 2 parts of the reference can go, and no listed test sees it: f.py:1",) == entry.hints


async def test_rows_that_rule_a_task_out_are_never_run(tmp_path: Path) -> None:
    """The static pass comes first: no tests, no plan, no reference."""
    usable = {**task_row("demo__d-4"), "eval_script": EVAL, "log_parser": "parse_log_pytest", "image": "host"}
    rows = [
        {**usable, "instance_id": "demo__a-1", "FAIL_TO_PASS": "[]"},
        {**usable, "instance_id": "demo__b-2", "patch": ""},
        {**task_row("demo__c-3")},
        usable,
    ]
    write_lines(tmp_path / "rows.jsonl", rows)

    done = await preflight(campaign(tmp_path, taskset=str(tmp_path / "rows.jsonl")), place := Place(well))

    assert [Class.ROW_REFUSED, Class.ROW_REFUSED, Class.IMAGE_OR_PARSER, Class.ADMITTED] == [
        entry.kind for entry in done.admissions.entries
    ]
    assert {"demo__d-4"} == {job.task.task_id for _, job in place.graded}


async def test_an_image_that_does_not_build_is_its_own_class(tmp_path: Path) -> None:
    """It is no lack of a verdict: nothing but the recipe can mend it."""
    source = recipe(0, tmp_path)
    write_lines(tmp_path / "recipes.jsonl", [source])
    campaign_ = campaign(tmp_path, only=(ONE,), recipes=tmp_path / "recipes.jsonl")
    assert ONE in make_plan(campaign_).recipes

    entry = only(await preflight(campaign_, Place(well, unbuildable=True)))

    assert Class.IMAGE_OR_PARSER == entry.kind
    assert "step 2 failed" in entry.why


async def test_infrastructure_leaves_a_task_without_a_class_and_says_so(tmp_path: Path) -> None:
    """One lost grading is enough; the same command tries it again."""

    def lossy(_: Campaign, job: Job) -> Outcome:
        return Outcome.NO_VERDICT if job.submission.model_name_or_path.endswith("empty:2") else well(_, job)

    done = await preflight(one_task(tmp_path), Place(lossy))
    assert (Class.NO_VERDICT, (ONE,)) == (only(done).kind, done.infrastructure)

    mended = await preflight(one_task(tmp_path), place := Place(well))
    assert (Class.ADMITTED, 1) == (only(mended).kind, len(place.graded))


async def test_a_task_that_lacks_memory_has_a_class_and_is_no_matter_of_infrastructure(tmp_path: Path) -> None:
    """Its sandboxes run out of memory as declared, which is no verdict; once it is told what it needs, nothing is left
    to be tried again."""

    def hungry(of: Campaign, job: Job) -> Outcome:
        starved = job.submission.patch and of.conditions.memory_mib == 64
        return Outcome.NO_VERDICT if starved else well(of, job)

    of = one_task(tmp_path, conditions={"memory_mib": 64})
    place = Place(hungry, failure="OutOfMemory: the kernel killed it")
    undiagnosed = await preflight(of, place)
    assert (Class.NO_VERDICT, (ONE,)) == (only(undiagnosed).kind, undiagnosed.infrastructure)

    done = await preflight(of, place, vary=("memory_mib",))
    assert (Class.NEEDS_CONDITION, ["memory_mib"]) == (only(done).kind, [need.condition for need in only(done).needs])
    assert () == done.infrastructure


async def test_however_many_gradings_are_lost_the_rest_go_on(tmp_path: Path) -> None:
    """Preflight has no breaker: twenty lost gradings in a row end nothing, and the task has its class."""
    done = await preflight(one_task(tmp_path), place := Place(lambda *_: Outcome.NO_VERDICT), repeats=15)

    assert (Class.NO_VERDICT, 30) == (only(done).kind, len(place.graded))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--repeats", "0"), "--repeats is 0"),
        (("--slow-share", "2"), "--slow-share is 2"),
        (("--mutants", "-1"), "--mutants is -1"),
        (("--vary", "egress"), "add --diagnose"),
        (("--diagnose", "--vary", "moon"), "'moon' is no condition"),
        (("--only", "demo__oen-1"), "near"),
        (("--only", ""), "--only names no task"),
    ],
)
def test_bad_flags_are_a_sentence_and_start_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    """Exit status 2, and what to type instead."""
    write_lines(tmp_path / "tasks.jsonl", [task_row(ONE)])

    status = main(["preflight", "--taskset", str(tmp_path / "tasks.jsonl"), "--run", "r", *flags])

    assert 2 == status
    assert said in capfd.readouterr().err


def test_a_set_that_is_refused_whole_is_told_and_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a task to run no sandbox is asked for; table, sum and file are there, and the exit status is 3."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "tasks.jsonl", [task_row(ONE)])
    (tmp_path / "c.toml").write_text('taskset = "tasks.jsonl"\nrun = "night"\n')

    assert 3 == main(["preflight", "c.toml"])
    out, err = capfd.readouterr()
    assert "image or parser" in out
    assert "1 tasks = 1 image or parser; 0.000 sandbox-hours" in err

    assert 3 == main(["preflight", "c.toml", "--json", "--out", "mine.jsonl"])
    assert "image_or_parser" == json.loads(capfd.readouterr().out)["kind"]
    assert (tmp_path / "runs/night.preflight/admission.jsonl").exists()
    assert (tmp_path / "mine.jsonl").exists()


def test_a_stop_writes_no_admission_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the repeats admit nothing; the status is the signal's."""
    from grader.preflight import run as preflight_run

    async def stopped(*_: object, **__: object) -> None:
        raise preflight_run.Stopped(signal.SIGTERM)

    monkeypatch.setattr(preflight_run, "run_campaign", stopped)
    monkeypatch.chdir(tmp_path)
    one_task(tmp_path)

    assert 143 == main(["preflight", "--taskset", "one.jsonl", "--run", "r"])
    assert "goes on from here" in capfd.readouterr().err
    assert not list(tmp_path.rglob("admission.jsonl"))
