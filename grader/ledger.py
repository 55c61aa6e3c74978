"""The ledger: the append-only record of a run's gradings, in SQLite.

Laws. A row is written once, when its grading has ended, and is never changed. What `append` has returned from survives
kill -9 of this process and a power cut. One process writes a run at a time; any number read it meanwhile. The run's
settings and every grading ever asked for are in it too, so that denominators are known however a run ended.

Not covered: two runs in one file, files on a network mount (SQLite's write-ahead log needs shared memory), judging.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grader.errors import RunBusy, RunChanged, UsageError
from grader.ledgertrouble import FULL, damaged, deleted, file_at, primary, reading, refused, unwritable
from grader.record import Grading
from grader.verdict import Cause, Outcome

SCHEMA_VERSION = 1
APPLICATION_ID = 0x53414E44
"""SQLite's application id for our files: "SAND"."""

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE starts (
    id INTEGER PRIMARY KEY, started_at TEXT NOT NULL, code_revision TEXT NOT NULL, campaign TEXT NOT NULL
) STRICT;
CREATE TABLE expected (
    task_id TEXT NOT NULL, model TEXT NOT NULL, patch_sha256 TEXT NOT NULL, task_digest TEXT NOT NULL,
    recipe_digest TEXT, source TEXT NOT NULL, patch BLOB NOT NULL, PRIMARY KEY (task_id, model, patch_sha256)
) STRICT;
CREATE TABLE gradings (
    id INTEGER PRIMARY KEY, task_id TEXT NOT NULL, model TEXT NOT NULL, patch_sha256 TEXT NOT NULL,
    task_digest TEXT NOT NULL, config_sha256 TEXT NOT NULL, outcome TEXT NOT NULL, cause TEXT, reward REAL,
    seconds REAL NOT NULL, started_at TEXT NOT NULL, grading TEXT NOT NULL
) STRICT;
CREATE INDEX gradings_by_key ON gradings (task_id, model, patch_sha256);
CREATE INDEX gradings_by_outcome ON gradings (outcome, cause);
CREATE TRIGGER gradings_are_not_changed BEFORE UPDATE ON gradings
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER gradings_are_not_deleted BEFORE DELETE ON gradings
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""

_CURRENT_IDS = """
SELECT COALESCE(MAX(CASE WHEN outcome <> 'no_verdict' THEN id END), MAX(id)) FROM gradings
GROUP BY task_id, model, patch_sha256
"""


class Key(NamedTuple):
    """What is graded once: one patch, by one model, for one task. The run fixes everything else."""

    task_id: str
    model: str
    patch_sha256: str


@dataclass(frozen=True)
class Expected:
    """A grading that was asked for, with what its verdict depends on besides the run's settings."""

    key: Key
    task_digest: str
    recipe_digest: str | None
    """SHA-256 of the recipe that makes the task's image; None: the row's own image."""
    source: str
    patch: bytes


@dataclass(frozen=True)
class Row:
    """What a table or a count needs of a grading, without its tests and its evidence."""

    key: Key
    outcome: Outcome
    cause: Cause | None
    reward: float | None
    seconds: float
    started_at: str
    reasons: tuple[str, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """One invocation that wrote to the run."""

    started_at: str
    code_revision: str
    campaign: str
    """The resolved campaign, as JSON."""


@dataclass(frozen=True)
class Contradiction:
    """One patch with different verdicts for one task. The task is flaky, or the place is."""

    key: Key
    """Of the first submission of the patch."""
    outcomes: tuple[str, ...]
    """In the order in which they were given, repeats left out."""


def run_directory(runs_dir: Path, run: str) -> Path:
    """Where a run lives: the ledger, its lock and the logs."""
    return runs_dir / run


def find_run(run: str, runs_dir: Path) -> Path:
    """The directory of a run that a person named, by its name or by its directory. Raises `UsageError`."""
    return Path(run) if "/" in run or _holds_ledger(Path(run)) else run_directory(runs_dir, run)


def _holds_ledger(run_dir: Path) -> bool:
    try:
        return ledger_path(run_dir).is_file()
    except OSError as error:  # a name that is too long, a directory that may not be looked into
        raise UsageError(f"{run_dir}: cannot be looked into ({error.strerror}); name another run") from error


def ledger_path(run_dir: Path) -> Path:
    """The run's ledger file."""
    return run_dir / "ledger.sqlite"


def identity_hash(identity: Mapping[str, object]) -> str:
    """SHA-256 (hex) of the settings that a run's verdicts depend on."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


class Ledger:
    """An open ledger. Made by `create_or_resume` (one writer) or `read_only`; both are context managers.

    Its methods block for the length of a disk write and may be called from any thread, one at a time.
    """

    def __init__(self, connection: sqlite3.Connection, run_dir: Path, config_sha256: str) -> None:
        self._connection = connection
        self.run_dir = run_dir
        self.config_sha256 = config_sha256
        self._file = file_at(ledger_path(run_dir))

    # Writing

    def expect(self, asked: Iterable[Expected]) -> None:
        """Add gradings to the run's denominators. They only grow: a run that was asked for a task owes it."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO expected VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET task_digest = excluded.task_digest, recipe_digest = excluded.recipe_digest",
                ((*e.key, e.task_digest, e.recipe_digest, e.source, e.patch) for e in asked),
            )

    def append(self, gradings: Sequence[Grading]) -> None:
        """Record gradings that ended, in one transaction. When this returns they are on the disk."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO gradings (task_id, model, patch_sha256, task_digest, config_sha256, outcome, cause,"
                " reward, seconds, started_at, grading) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        *key_of(g),
                        g.evidence.task_digest,
                        self.config_sha256,
                        g.outcome.value,
                        g.cause.value if g.cause else None,
                        g.reward,
                        g.seconds,
                        g.started_at,
                        g.model_dump_json(),
                    )
                    for g in gradings
                ),
            )

    # Reading

    def expected(self) -> list[Expected]:
        """Every grading that was ever asked for, in the order of asking."""
        with self._whole():
            rows = self._connection.execute(
                "SELECT task_id, model, patch_sha256, task_digest, recipe_digest, source, patch FROM expected"
                " ORDER BY rowid"
            )
            return [Expected(Key(*row[:3]), *row[3:]) for row in rows]

    def digests(self) -> dict[Key, tuple[str, str | None]]:
        """For every grading that was ever asked for, the digests of its task and of what makes its image."""
        with self._whole():
            rows = self._connection.execute(
                "SELECT task_id, model, patch_sha256, task_digest, recipe_digest FROM expected"
            )
            return {Key(*row[:3]): (row[3], row[4]) for row in rows}

    def gradings(self) -> Iterator[Grading]:
        """Every row, oldest first."""
        with self._whole():
            for (text,) in self._connection.execute("SELECT grading FROM gradings ORDER BY id"):
                yield Grading.model_validate_json(text)

    def current(self) -> dict[Key, Row]:
        """The row that counts for each key: its newest verdict, else its newest row. In the order of ending."""
        with self._whole():
            found = self._connection.execute(
                "SELECT task_id, model, patch_sha256, outcome, cause, reward, seconds, started_at,"
                " json_extract(grading, '$.reasons'), json_extract(grading, '$.flags') FROM gradings"
                f" WHERE id IN ({_CURRENT_IDS}) ORDER BY id"
            )
            return {Key(*row[:3]): _row(row) for row in found}

    def current_gradings(self) -> Iterator[Grading]:
        """The whole record of each row that counts, one at a time; tasks with many tests make large ones."""
        return (grading for _, grading in self.current_numbered())

    def current_numbered(self) -> Iterator[tuple[int, Grading]]:
        """As `current_gradings`, each with the number of its row, which never changes."""
        with self._whole():
            for number, text in self._connection.execute(
                f"SELECT id, grading FROM gradings WHERE id IN ({_CURRENT_IDS}) ORDER BY id"
            ):
                yield number, Grading.model_validate_json(text)

    def decided(self) -> set[Key]:
        """Keys that have a verdict. They are not graded again."""
        with self._whole():
            rows = self._connection.execute(
                "SELECT DISTINCT task_id, model, patch_sha256 FROM gradings WHERE outcome <> ?",
                (Outcome.NO_VERDICT.value,),
            )
            return {Key(*row) for row in rows}

    def contradictions(self) -> list[Contradiction]:
        """Patches with different verdicts for one task, whoever submitted them; the newest counts, and all are kept."""
        found: dict[tuple[str, str], tuple[Key, list[str]]] = {}
        with self._whole():
            rows = self._connection.execute(
                "SELECT task_id, model, patch_sha256, outcome FROM gradings WHERE outcome <> ? ORDER BY id",
                (Outcome.NO_VERDICT.value,),
            ).fetchall()
        for task_id, model, patch_sha256, outcome in rows:
            _, seen = found.setdefault((task_id, patch_sha256), (Key(task_id, model, patch_sha256), []))
            if outcome not in seen:
                seen.append(outcome)
        return [Contradiction(key, tuple(seen)) for key, seen in found.values() if len(seen) > 1]

    def starts(self) -> list[Start]:
        """Every invocation that wrote to the run, oldest first."""
        with self._whole():
            rows = self._connection.execute("SELECT started_at, code_revision, campaign FROM starts ORDER BY id")
            return [Start(*row) for row in rows]

    def identity(self) -> dict[str, object]:
        """The settings that this run's verdicts depend on, as they were when it began."""
        with self._whole():
            return dict(json.loads(_meta(self._connection, "identity")))

    def _whole(self) -> AbstractContextManager[None]:
        return reading(ledger_path(self.run_dir))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
            if file_at(ledger_path(self.run_dir)) != self._file:
                raise deleted(ledger_path(self.run_dir))
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError):
                raise refused(ledger_path(self.run_dir), error) from error
            raise


def _meta(connection: sqlite3.Connection, key: str) -> str:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise ValueError(f"it has no {key}")
    return str(row[0])


def _row(row: tuple[Any, ...]) -> Row:
    outcome, cause, reward, seconds, started_at, reasons, flags = row[3:]
    if (outcome == Outcome.NO_VERDICT.value) != (cause is not None):
        raise ValueError(f"the cause of an outcome {outcome} is {cause}")
    return Row(
        key=Key(*row[:3]),
        outcome=Outcome(outcome),
        cause=Cause(cause) if cause is not None else None,
        reward=reward,
        seconds=seconds,
        started_at=started_at,
        reasons=tuple(json.loads(reasons)),
        flags=tuple(json.loads(flags)),
    )


def key_of(grading: Grading) -> Key:
    """The key under which a grading is recorded."""
    return Key(grading.task_id, grading.model_name_or_path, grading.evidence.patch_sha256)


@contextmanager
def create_or_resume(
    run_dir: Path, *, identity: Mapping[str, object], asked: Sequence[Expected], start: Start
) -> Iterator[Ledger]:
    """Open the run's ledger as its only writer, new or as it was left.

    `identity` is what its verdicts depend on. Raises `RunChanged`, naming each difference, when the run was begun with
    another identity, or when a task or recipe that already gave a verdict has changed; `RunBusy` when another process
    writes the run; `LedgerUnwritable` when its disk is full; and `UsageError` when the file is not a ledger of this
    version.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in FULL:
            raise unwritable(run_dir, error) from error
        raise UsageError(f"{run_dir}: cannot be made or written ({error.strerror}); name another --runs-dir") from error
    with _only_writer(run_dir, lock):
        connection = _connect(ledger_path(run_dir), writable=True)
        try:
            ledger = Ledger(connection, run_dir, identity_hash(identity))
            _begin(ledger, connection, identity=identity, asked=asked, start=start)
            yield ledger
        except sqlite3.DatabaseError as error:
            raise refused(ledger_path(run_dir), error) from error
        finally:
            connection.close()


def _begin(
    ledger: Ledger,
    connection: sqlite3.Connection,
    *,
    identity: Mapping[str, object],
    asked: Sequence[Expected],
    start: Start,
) -> None:
    if _is_new(connection):
        _create(connection, identity)
    _check_version(connection, ledger.run_dir)
    _refuse_changes(ledger, identity, asked)
    ledger.expect(asked)
    with ledger._transaction():
        connection.execute(
            "INSERT INTO starts (started_at, code_revision, campaign) VALUES (?, ?, ?)",
            (start.started_at, start.code_revision, start.campaign),
        )


@contextmanager
def read_only(run_dir: Path) -> Iterator[Ledger]:
    """Open a run's ledger to read, while it is written or afterwards. Raises `UsageError` when there is none."""
    path = ledger_path(run_dir)
    if not _holds_ledger(run_dir):
        raise UsageError(f"{run_dir}: holds no {path.name}; name a run that `grader grade` has begun")
    connection = _connect(path, writable=False)
    try:
        if _is_new(connection):
            raise UsageError(f"{path}: holds nothing yet; ask again once `grader grade` has begun, or start it again")
        _check_version(connection, run_dir)
        with reading(path):
            config = _meta(connection, "config_sha256")
        yield Ledger(connection, run_dir, config)
    except sqlite3.DatabaseError as error:
        raise damaged(path, error) from error
    finally:
        connection.close()


@contextmanager
def _only_writer(run_dir: Path, descriptor: int) -> Iterator[None]:
    # The kernel drops the lock when the process ends, however it ends; so there is nothing to clean after kill -9.
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise RunBusy(
                f"run {run_dir.name!r} is being written by another process (pid {holder});"
                " wait for it, or give this run another --run NAME"
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except OSError as error:
            raise unwritable(run_dir, error) from error
        yield
    finally:
        os.close(descriptor)


def _connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    mode = "rwc" if writable else "ro"
    if not writable and not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        # A reader of a WAL file makes shared memory beside it, which a read-only directory does not allow.
        mode = "ro&immutable=1"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=30,
        )
        if writable:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA busy_timeout = 30000")
    except sqlite3.DatabaseError as error:
        if writable and primary(error) in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
            raise unwritable(path, error) from error
        raise UsageError(f"{path}: cannot be opened as a ledger ({error}); move it away or name another run") from error
    return connection


def _is_new(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
    return int(tables) == 0


def _create(connection: sqlite3.Connection, identity: Mapping[str, object]) -> None:
    text = json.dumps(identity, sort_keys=True)
    # One transaction: a process that is killed here leaves a new file, not half a schema.
    meta = "".join(
        f"INSERT INTO meta VALUES ({_quoted(key)}, {_quoted(value)});"
        for key, value in (("identity", text), ("config_sha256", identity_hash(identity)))
    )
    connection.executescript(
        f"BEGIN IMMEDIATE; {_SCHEMA} {meta} PRAGMA application_id = {APPLICATION_ID};"
        f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _check_version(connection: sqlite3.Connection, run_dir: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise UsageError(f"{ledger_path(run_dir)}: is another program's SQLite file; name another run")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{ledger_path(run_dir)}: has schema version {version}, this grader reads {SCHEMA_VERSION};"
            " use the grader that made it, or begin a new run"
        )


def _refuse_changes(ledger: Ledger, identity: Mapping[str, object], asked: Sequence[Expected]) -> None:
    # A task with many patches has changed once.
    changes = [*differences(ledger.identity(), identity), *dict.fromkeys(_changed_tasks(ledger, asked))]
    if changes:
        shown = "; ".join(changes[:5]) + (f"; and {len(changes) - 5} more" if len(changes) > 5 else "")
        raise RunChanged(
            f"run {ledger.run_dir.name!r} was begun with other settings: {shown}."
            " Give the new settings another --run NAME, or the old ones back",
            changes=tuple(changes),
        )


def differences(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """How two runs' settings differ, one sentence for each setting."""
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, f"{prefix}{name}.")
        elif before != after:
            yield f"{prefix}{name} was {json.dumps(before)} and is now {json.dumps(after)}"


def _changed_tasks(ledger: Ledger, asked: Sequence[Expected]) -> Iterator[str]:
    decided = ledger.decided()
    before = {e.key: e for e in ledger.expected() if e.key in decided}
    for now in asked:
        then = before.get(now.key)
        if then is None:
            continue
        if then.task_digest != now.task_digest:
            yield f"task {now.key.task_id} has changed since its verdict"
        if then.recipe_digest != now.recipe_digest:
            yield f"the recipe of {now.key.task_id} has changed since its verdict"
