from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grader.commands.grade import exit_status
from grader.errors import UsageError
from grader.ledger import identity_hash, read_only, run_directory
from grader.plan import make_plan
from grader.preflight.admission_file import Admissions, Entry, Header, covers, read, refusals, write
from grader.preflight.classes import Class
from grader.verdict import Cause, Outcome
from tests.grader.test_run import Grounds, campaign, run

pytestmark = pytest.mark.anyio

IDENTITY: dict[str, object] = {
    "taskset_revision": "r1",
    "provider": "local",
    "conditions": {"egress": "denied", "time_zone": "UTC"},
    "rewards": {"resolved": 1.0},
    "max_log_mib": 64,
}


def header(identity: dict[str, object]) -> Header:
    covered = covers(identity)
    return Header(
        covers=covered,
        covers_sha256=identity_hash(covered),
        taskset="tasks.jsonl",
        taskset_revision="r1",
        run="r.preflight",
        repeats=3,
        slow_share=0.5,
        created_at="2026-01-01T00:00:00Z",
        code_revision="test",
    )


def entry(task_id: str, kind: Class = Class.ADMITTED, digest: str = "d", origin: str | None = None) -> Entry:
    why = "" if kind is Class.ADMITTED else "t::x passes 2 of 3"
    return Entry(task_id=task_id, kind=kind, why=why, task_digest=digest, origin=origin, rows=("r.preflight#1",))


def written(path: Path, *entries: Entry, identity: dict[str, object] = IDENTITY) -> Path:
    write(path, Admissions(header=header(identity), entries=entries))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Header and entries come back as they were, evidence ids included."""
    before = Admissions(header=header(IDENTITY), entries=(entry("a"), entry("b", Class.FLAKY)))
    write(tmp_path / "new" / "admission.jsonl", before)

    assert before == read(tmp_path / "new" / "admission.jsonl")
    assert ["admission.jsonl"] == [p.name for p in (tmp_path / "new").iterdir()]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    """Also where nothing is there yet."""
    for target in ("old.jsonl", "new.jsonl"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(target)
        (tmp_path / "old.jsonl").write_text("")

        written(tmp_path / "link", entry("a"))

        assert (tmp_path / "link").is_symlink()
        assert ("a",) == tuple(one.task_id for one in read(tmp_path / target).entries)


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    """So is any device, such as /dev/stdout; a rename would put a file in its place."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    written(tmp_path / "pipe", entry("a"))

    with os.fdopen(reader) as file:
        assert ["a"] == [json.loads(line)["task_id"] for line in file.readlines()[1:]]
    assert (tmp_path / "pipe").is_fifo()
    assert ["pipe"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node, which takes root")
def test_a_full_device_is_an_error_and_stays(tmp_path: Path) -> None:
    """A node of its own, that answers every write as a full disk does."""
    full = tmp_path / "full"
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        full.write_text("")
    except OSError as error:
        pytest.skip(f"device nodes cannot be used in {tmp_path}: {error}")

    with pytest.raises(UsageError, match=r"No space left on device.*--out"):
        written(full, entry("a"))

    assert full.is_char_device()


def test_a_loop_of_links_or_a_directory_is_a_sentence(tmp_path: Path) -> None:
    """No traceback, and both stay."""
    (tmp_path / "loop").symlink_to("loop")

    for place in (tmp_path / "loop", tmp_path):
        with pytest.raises(UsageError, match=r"cannot be written .*--out"):
            written(place, entry("a"))

    assert ["loop"] == [path.name for path in tmp_path.iterdir()]


def test_what_is_not_admitted_is_refused_with_its_class(tmp_path: Path) -> None:
    """A task of another class, and one that the file does not have, each say why."""
    file = written(tmp_path / "a.jsonl", entry("good"), entry("bad", Class.FLAKY))

    refused = refusals(file, IDENTITY, [("good", "d", None), ("bad", "d", None), ("new", "d", None)])

    assert {
        "bad": "a.jsonl says flaky: t::x passes 2 of 3",
        "new": "a.jsonl does not have it; preflight it too",
    } == refused


@pytest.mark.parametrize(
    ("changed", "task", "said"),
    [
        (
            {"conditions": {"egress": "open", "time_zone": "UTC"}},
            ("good", "d", None),
            'conditions.egress was "denied" and',
        ),
        ({"provider": "kubernetes"}, ("good", "d", None), 'provider was "local" and is now "kubernetes"'),
        ({}, ("good", "d2", None), "task good has changed"),
        ({}, ("good", "d", "o"), "image of task good has changed"),
    ],
)
def test_a_changed_configuration_makes_the_file_void_and_is_named(
    tmp_path: Path, changed: dict[str, object], task: tuple[str, str, str | None], said: str
) -> None:
    """What decides how tests run is compared, for the campaign and for each task."""
    file = written(tmp_path / "a.jsonl", entry("good"))

    with pytest.raises(UsageError, match="is void") as caught:
        refusals(file, {**IDENTITY, **changed}, [task])

    assert said in str(caught.value)


def test_rewards_and_other_rows_of_the_set_do_not_make_it_void(tmp_path: Path) -> None:
    """They change no test run."""
    file = written(tmp_path / "a.jsonl", entry("good"))

    assert {} == refusals(file, {**IDENTITY, "rewards": {}, "taskset_revision": "r2"}, [("good", "d", None)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("{nope", "row 1"),
        ('{"task_id": "a", "kind": "admitted"}\n', "row 1"),
        ("\xff", "is not UTF-8"),
    ],
)
def test_what_is_no_admission_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    """Each ends with what to do."""
    (tmp_path / "a.jsonl").write_bytes(text.encode("latin-1"))

    with pytest.raises(UsageError, match="grader preflight") as caught:
        read(tmp_path / "a.jsonl")

    assert said in str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace('"denied"', '"open"'),
        lambda text: text.replace('"run":"r.preflight"', '"run":"other"'),
        lambda text: text.replace('"kind":"flaky"', '"kind":"admitted"'),
        lambda text: text + text.splitlines()[1].replace('"a"', '"c"') + "\n",
        lambda text: "\n".join(text.splitlines()[:2]),
        lambda text: text[:-40],
    ],
    ids=["configuration", "run", "class", "added", "cut after a row", "cut within a row"],
)
def test_a_file_that_was_changed_or_cut_does_not_hold(tmp_path: Path, changed: Callable[[str], str]) -> None:
    """Header and rows are hashed into it, so that a flaky task is not admitted by an edit."""
    file = written(tmp_path / "f.jsonl", entry("a"), entry("b", Class.FLAKY))
    file.write_text(changed(file.read_text()))

    with pytest.raises(UsageError, match="was changed by hand or cut short; run `grader preflight` again"):
        refusals(file, IDENTITY, [("a", "d", None), ("b", "d", None)])


def test_no_task_is_admitted_without_its_digest() -> None:
    """An admission holds for one version of the task; a row that could not be read has none."""
    with pytest.raises(ValidationError, match="an admitted task has a task_digest"):
        Entry(task_id="a", kind=Class.ADMITTED)


def admitting(directory: Path, admitted: set[str], **changed: Any) -> Path:
    """An admission file for the little campaign of the run's tests."""
    plan = make_plan(campaign(directory, **changed))
    entries = [
        entry(
            job.task.task_id,
            Class.ADMITTED if job.task.task_id in admitted else Class.EMPTY_PASSES,
            job.task.digest,
            plan.origins[job.task.task_id],
        )
        for job in plan.jobs
    ]
    return written(directory / "admission.jsonl", *entries, identity=dict(plan.identity))


async def test_only_admitted_tasks_run_and_the_others_are_counted_by_name(tmp_path: Path) -> None:
    """Six tasks, two admitted: two are graded, four are refused, and the sum adds up."""
    file = admitting(tmp_path, {"demo__one-1", "demo__one-4"})

    finished = await run(campaign(tmp_path, admission=file), grounds := Grounds())

    assert {"demo__one-1", "demo__one-4"} == {job.task.task_id for job in grounds.graded}
    assert (6, 2, 4, 0) == (
        finished.run.expected,
        finished.run.outcomes[Outcome.RESOLVED],
        finished.run.causes[Cause.TASK_REFUSED],
        finished.run.not_run,
    )
    assert 3 == exit_status(finished)
    with read_only(run_directory(tmp_path / "runs", "r")) as ledger:
        refused = [g for g in ledger.gradings() if g.cause is Cause.TASK_REFUSED]
    assert {f"demo__one-{n}" for n in (0, 2, 3, 5)} == {g.task_id for g in refused}
    assert all("admission.jsonl says empty passes" in g.reasons[0] and g.reward is None for g in refused)


async def test_a_void_file_starts_nothing(tmp_path: Path) -> None:
    """A campaign under other conditions is refused before its ledger is opened."""
    file = admitting(tmp_path, {"demo__one-1"})

    with pytest.raises(UsageError, match=r"conditions\.time_zone was null and is now \"UTC\""):
        await run(campaign(tmp_path, admission=file, conditions={"time_zone": "UTC"}), Grounds())

    assert not (tmp_path / "runs").exists()


def test_a_line_is_what_json_readers_take(tmp_path: Path) -> None:
    """Scripts read class and evidence without our code."""
    file = written(tmp_path / "a.jsonl", entry("bad", Class.FLAKY))

    told = json.loads(file.read_text().splitlines()[1])

    assert ("bad", "flaky", ["r.preflight#1"]) == (told["task_id"], told["kind"], told["rows"])
