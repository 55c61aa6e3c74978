from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from grader.errors import LedgerUnwritable, RunChanged, UsageError
from grader.ledger import Expected, Key, Ledger, Start, create_or_resume, key_of, ledger_path, read_only
from grader.verdict import Outcome
from tests.grader.gradings import grading

START = Start(started_at="2026-01-01T00:00:00Z", code_revision="0.1.0+g1", campaign="{}")
IDENTITY = {"taskset_revision": "r1", "conditions": {"egress": "denied", "time_zone": None}}


def expected(task_id: str = "demo__one-1", *, digest: str = "d1", recipe: str | None = None) -> Expected:
    return Expected(Key(task_id, "m", hashlib.sha256(b"p").hexdigest()), digest, recipe, "p.jsonl:1", b"p")


def opened(run_dir: Path, *asked: Expected, identity: dict[str, Any] = IDENTITY) -> AbstractContextManager[Ledger]:
    return create_or_resume(run_dir, identity=identity, asked=asked, start=START)


def test_a_grading_comes_back_as_it_was_appended(tmp_path: Path) -> None:
    """The whole record survives the file."""
    written = grading(reasons=("ünïcode\x00", "b"))

    with opened(tmp_path / "r", expected()) as ledger:
        ledger.append([written])
    with read_only(tmp_path / "r") as ledger:
        assert [written] == list(ledger.gradings())
        assert [expected()] == ledger.expected()
        assert [START] == ledger.starts()
        assert IDENTITY == ledger.identity()


def test_rows_cannot_be_changed_or_deleted(tmp_path: Path) -> None:
    """The file itself refuses to rewrite history."""
    with opened(tmp_path / "r") as ledger:
        ledger.append([grading()])
    connection = sqlite3.connect(ledger_path(tmp_path / "r"))

    for statement in ("UPDATE gradings SET outcome = 'resolved'", "DELETE FROM gradings"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


def test_a_verdict_counts_over_a_no_verdict_and_the_newest_over_an_older_one(tmp_path: Path) -> None:
    """Infrastructure trouble never hides a verdict, whenever it came."""
    with opened(tmp_path / "r") as ledger:
        ledger.append([grading("a", Outcome.NO_VERDICT), grading("a"), grading("a", Outcome.NO_VERDICT)])
        ledger.append([grading("b", Outcome.NO_VERDICT, seconds=1), grading("b", Outcome.NO_VERDICT, seconds=2)])

        assert {"a": (Outcome.RESOLVED, 1.5), "b": (Outcome.NO_VERDICT, 2)} == {
            key.task_id: (row.outcome, row.seconds) for key, row in ledger.current().items()
        }
        assert ["a", "b"] == [g.task_id for g in ledger.current_gradings()]
        assert {"a"} == {key.task_id for key in ledger.decided()}
        assert [] == ledger.contradictions()


def test_two_verdicts_for_one_key_are_a_contradiction(tmp_path: Path) -> None:
    """Both are kept, the newest counts, and the key is listed."""
    with opened(tmp_path / "r") as ledger:
        ledger.append([grading("a"), grading("a", Outcome.UNRESOLVED), grading("a", Outcome.UNRESOLVED)])

        assert [("a", ("resolved", "unresolved"))] == [(c.key.task_id, c.outcomes) for c in ledger.contradictions()]
        assert [Outcome.UNRESOLVED] == [row.outcome for row in ledger.current().values()]


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    """A reader sees every row that has ended and does not hold up the writer."""
    with opened(tmp_path / "r", expected()) as writer:
        writer.append([grading("a")])
        with read_only(tmp_path / "r") as reader:
            assert 1 == len(list(reader.gradings()))
            writer.append([grading("b")])
            assert 2 == len(list(reader.gradings()))


def test_a_second_writer_is_refused_by_pid(tmp_path: Path) -> None:
    """Two commands cannot write one run; the second says who holds it."""
    with (
        opened(tmp_path / "r"),
        pytest.raises(UsageError, match=rf"'r' is being written by another process \(pid {os.getpid()}\)"),
        opened(tmp_path / "r"),
    ):
        pass


def test_denominators_only_grow(tmp_path: Path) -> None:
    """Asking for fewer tasks later takes none away."""
    with opened(tmp_path / "r", expected("a"), expected("b")):
        pass
    with opened(tmp_path / "r", expected("b"), expected("c")) as ledger:
        assert ["a", "b", "c"] == [e.key.task_id for e in ledger.expected()]
        assert 2 == len(ledger.starts())


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ({**IDENTITY, "taskset_revision": "r2"}, 'taskset_revision was "r1" and is now "r2"'),
        (
            {**IDENTITY, "conditions": {"egress": "open", "time_zone": None}},
            'conditions.egress was "denied" and is now "open"',
        ),
    ],
)
def test_other_settings_under_the_same_name_are_refused(tmp_path: Path, identity: dict[str, Any], said: str) -> None:
    """A run's verdicts were all given under one set of settings; the message names each that differs."""
    with opened(tmp_path / "r"):
        pass

    with pytest.raises(RunChanged) as caught, opened(tmp_path / "r", identity=identity):
        pass

    assert (said,) == caught.value.changes


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (expected(digest="d2"), "task demo__one-1 has changed"),
        (expected(recipe="r2"), "the recipe of demo__one-1 has changed"),
    ],
)
def test_a_task_that_changed_after_its_verdict_is_refused(tmp_path: Path, now: Expected, said: str) -> None:
    """A verdict stands for the task as it was; a task without one may be mended and tried again."""
    with opened(tmp_path / "undecided", expected()):
        pass
    with opened(tmp_path / "undecided", now) as ledger:
        assert [now] == ledger.expected()
    with opened(tmp_path / "decided", expected()) as ledger:
        ledger.append([grading()])

    with pytest.raises(RunChanged, match=said), opened(tmp_path / "decided", now):
        pass


def test_a_recipe_that_changed_is_named_once_however_many_patches_it_has(tmp_path: Path) -> None:
    """The message has room for the other changes."""
    rows = [grading(model=model) for model in "abcdef"]
    asked = [dataclasses.replace(expected(), key=key_of(row)) for row in rows]
    with opened(tmp_path / "r", *asked) as ledger:
        ledger.append(rows)

    changed = [dataclasses.replace(one, recipe_digest="r2") for one in asked]
    with pytest.raises(RunChanged) as caught, opened(tmp_path / "r", *changed):
        pass

    assert ("the recipe of demo__one-1 has changed since its verdict",) == caught.value.changes


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\0" * 200])
def test_a_file_that_is_no_ledger_is_named(tmp_path: Path, content: bytes) -> None:
    """Another file in the ledger's place is neither read nor written over."""
    run_dir = tmp_path / "r"
    run_dir.mkdir()
    ledger_path(run_dir).write_bytes(content)

    with pytest.raises(UsageError, match=r"ledger\.sqlite"), opened(run_dir):
        pass
    with pytest.raises(UsageError, match=r"ledger\.sqlite"), read_only(run_dir):
        pass
    assert content == ledger_path(run_dir).read_bytes()


EDITS = [
    "DELETE FROM meta",
    "UPDATE meta SET value = '[1' WHERE key = 'identity'",
    "UPDATE meta SET value = '[1]' WHERE key = 'identity'",
    "UPDATE gradings SET grading = '{}'",
    "UPDATE gradings SET grading = 'none'",
    "UPDATE gradings SET grading = json_set(grading, '$.reasons', 5)",
    "UPDATE gradings SET outcome = 'great'",
    "UPDATE gradings SET outcome = 'no_verdict', cause = NULL",
    "DROP TABLE gradings",
    "DROP TABLE expected",
    "DROP TABLE starts",
]


@pytest.mark.parametrize("edit", EDITS)
def test_a_ledger_that_was_edited_by_hand_is_named(tmp_path: Path, edit: str) -> None:
    """Whoever reads all of it, or writes on, hears which file to restore; a defect of ours is none of it."""
    with opened(tmp_path / "r", expected()) as ledger:
        ledger.append([grading()])
    connection = sqlite3.connect(ledger_path(tmp_path / "r"))
    connection.executescript(f"DROP TRIGGER gradings_are_not_changed; DROP TRIGGER gradings_are_not_deleted; {edit}")
    connection.close()
    told = r"r/ledger\.sqlite: cannot be read as a ledger \(.+\); restore it from a copy$"

    with pytest.raises(UsageError, match=told), read_only(tmp_path / "r") as ledger:
        read_all(ledger)
    with pytest.raises(UsageError, match=told), opened(tmp_path / "r", expected()) as ledger:
        read_all(ledger)


def read_all(ledger: Ledger) -> None:
    for read in (ledger.identity, ledger.starts, ledger.expected, ledger.digests, ledger.decided, ledger.current):
        read()
    ledger.contradictions()
    assert [*ledger.gradings()] == [*ledger.current_gradings()]


def test_a_ledger_of_another_version_is_refused(tmp_path: Path) -> None:
    """A newer schema is not guessed at."""
    with opened(tmp_path / "r"):
        pass
    connection = sqlite3.connect(ledger_path(tmp_path / "r"))
    connection.execute("PRAGMA user_version = 9")
    connection.close()

    with pytest.raises(UsageError, match="schema version 9"), read_only(tmp_path / "r"):
        pass


def test_a_ledger_of_a_run_that_is_only_beginning_is_no_strangers_file(tmp_path: Path) -> None:
    """Between the file and its first content a reader is told to ask again."""
    run_dir = tmp_path / "r"
    run_dir.mkdir()
    ledger_path(run_dir).touch()

    with pytest.raises(UsageError, match="holds nothing yet"), read_only(run_dir):
        pass
    with opened(run_dir), read_only(run_dir):
        pass


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Reading makes nothing."""
    with pytest.raises(UsageError, match="holds no ledger"), read_only(tmp_path / "none"):
        pass
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_that_is_deleted_while_it_is_written_ends(tmp_path: Path, replaced: bool) -> None:
    """No row is told as recorded that went into a file which nobody can open any more."""
    with opened(tmp_path / "r", expected()) as ledger:
        ledger.append([grading()])
        shutil.rmtree(tmp_path / "r")
        if replaced:
            (tmp_path / "r").mkdir()
            ledger_path(tmp_path / "r").write_bytes(b"another")

        with pytest.raises(LedgerUnwritable, match=r"r/ledger\.sqlite: was deleted or replaced while the run wrote it"):
            ledger.append([grading()])


def test_a_ledger_that_may_not_be_written_is_no_full_disk(tmp_path: Path) -> None:
    """Who lacks the permission is told so, and not to make room."""
    with opened(tmp_path / "r", expected()) as ledger:
        ledger._connection.execute("PRAGMA query_only = 1")

        with pytest.raises(LedgerUnwritable, match=r"readonly database\); let this user write it and its directory"):
            ledger.append([grading()])


FULL = """
import sys, resource
from pathlib import Path
from grader.errors import LedgerUnwritable
from tests.grader.test_ledger import expected, opened
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with opened(Path(sys.argv[1]), expected()):
        pass
except LedgerUnwritable as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("room", [0, 4096, 16384, 40000])
def test_a_disk_that_is_full_before_the_run_begins_is_told_as_such(tmp_path: Path, room: int) -> None:
    """Wherever the disk ends, under the lock, the schema or the first rows, what cannot be written is named; once there
    is room the run begins."""
    command = [sys.executable, "-c", FULL, str(tmp_path / "r"), str(room)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)

    assert 1 == done.returncode, done.stderr
    assert f"{tmp_path / 'r'}" in done.stderr
    assert "make room or mend the disk, then give the same command again\n" in done.stderr
    assert 1 == len(done.stderr.splitlines())
    with opened(tmp_path / "r", expected()) as ledger:
        assert [expected()] == ledger.expected()


WRITER = """
import sys
from pathlib import Path
from tests.grader.gradings import grading
from tests.grader.test_ledger import expected, opened
asked = [expected(str(n)) for n in range(5_000)]
with opened(Path(sys.argv[1]), *asked[:50]) as ledger:
    for e in asked:
        ledger.append([grading(e.key.task_id)])
        print(e.key.task_id, flush=True)
"""


def test_kill_9_loses_no_ended_grading_and_the_run_resumes(tmp_path: Path) -> None:
    """Each row that `append` returned from is there once after SIGKILL, and the next writer goes on at once."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "r")], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(30)]
    process.send_signal(signal.SIGKILL)
    told += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    acknowledged = [line.decode().strip() for line in told if line.endswith(b"\n")]

    with opened(tmp_path / "r") as ledger:
        recorded = [g.task_id for g in ledger.gradings()]
        ledger.append([grading("after")])
        after = [key_of(g).task_id for g in ledger.gradings()]

    # At most one more: it was on the disk and its line was not yet.
    assert acknowledged == recorded[: len(acknowledged)]
    assert len(recorded) - len(acknowledged) in {0, 1}
    assert len(set(recorded)) == len(recorded)
    assert [*recorded, "after"] == after


def test_a_process_killed_while_it_makes_the_ledger_leaves_a_run_that_can_begin(tmp_path: Path) -> None:
    """An empty file, as a crash leaves it, is begun anew."""
    (tmp_path / "r").mkdir()
    ledger_path(tmp_path / "r").touch()

    with opened(tmp_path / "r", expected()) as ledger:
        assert [expected()] == ledger.expected()


def test_whatever_a_power_cut_left_of_the_last_writes_is_a_whole_ledger(tmp_path: Path) -> None:
    """Cut off at any byte, the write-ahead log gives back the gradings in order up to some point, and takes more."""
    with opened(tmp_path / "r", expected()) as ledger:
        ledger.append([grading("0")])
        files = {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()}
        for number in range(1, 4):
            ledger.append([grading(str(number))])
        log = ledger_path(tmp_path / "r").with_name("ledger.sqlite-wal")
        written = log.read_bytes()
    found = set()
    for length in (*range(len(files[log.name]), len(written), 997), len(written)):
        left = tmp_path / f"cut-{length}"
        left.mkdir()
        (left / "ledger.sqlite").write_bytes(files["ledger.sqlite"])
        (left / log.name).write_bytes(written[:length])
        with opened(left) as ledger:
            ids = [g.task_id for g in ledger.gradings()]
            ledger.append([grading("later")])
            assert [*ids, "later"] == [g.task_id for g in ledger.gradings()]
        assert ids == [str(number) for number in range(len(ids))]
        found.add(len(ids))
    assert {1, 2, 3, 4} == found
