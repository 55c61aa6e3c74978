"""The toy task as `grader grade` takes it, with three patches whose verdicts are known, and what a run made of them.

The suite sleeps for a while before its tests run: a fault that strikes then strikes a grading in flight. How long it
sleeps is this room's own number, so that its sandboxes are told from all others on this machine.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.ledger import read_only, run_directory
from grader.record import Grading
from grader.verdict import Cause, Outcome
from tests.grader.groups import TASK, make_toy
from tests.grader.tasks import COMMAND, MENDED, SOURCE, Repo

VERDICTS = {"good": Outcome.RESOLVED, "bad": Outcome.UNRESOLVED, "empty": Outcome.UNRESOLVED}
"""By the patch's model: what its tests say wherever they run undisturbed."""
RUN = "faults"
JSON = dict[str, Any]


@dataclass
class Room:
    """The files of one campaign, and the command that runs it."""

    folder: Path
    image: str
    """Of the task: it holds the repository at /testbed."""
    provider: JSON
    """The campaign's table of that name."""
    sleep_s: int = 1
    """How long the suite sleeps before its tests: the time in which a fault may strike."""
    before: str = ""
    """Shell text that runs as part of the suite, between the sleep and the tests."""
    each: int = 1
    """How many good patches, and how many bad ones, there are; all differ."""
    limits: JSON = field(default_factory=dict)
    conditions: JSON = field(default_factory=dict)
    inside: Sequence[str] = ()
    """A command that runs the grader, such as `unshare --net`."""
    mark: str = field(default_factory=lambda: f"{secrets.randbelow(10**8):08}")

    started: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        toy = make_toy(self.folder)
        self.repo: Repo = toy.repo
        self._write("images.jsonl", [{"instance_id": TASK, "image": self.image}])
        rows = [json.loads(line) for line in (self.folder / "tasks.jsonl").read_text().splitlines()]
        suite = "; ".join(filter(None, (f"sleep {self.slept}", self.before, COMMAND)))
        script = rows[0]["eval_script"].replace(f"\n{COMMAND}\n", f"\n{suite}\n")
        assert script != rows[0]["eval_script"]
        self._write("tasks.jsonl", [{**rows[0], "eval_script": script}])
        patches = patches_of(self.repo, self.each)
        preds = [{"instance_id": TASK, "model_name_or_path": m, "model_patch": p} for m, p in patches.items()]
        self._write("preds.jsonl", preds)
        tables = {
            "provider": self.provider,
            "conditions": {"test_time_limit_s": 60, **self.conditions},
            "limits": {"concurrency": 3, "attempts": 3, "grading_timeout_s": 200, **self.limits},
        }
        paths = {"taskset": "tasks.jsonl", "images": "images.jsonl", "patches": "preds.jsonl", "runs_dir": "runs"}
        lines = [f"{name} = {json.dumps(file)}" for name, file in paths.items()]
        lines.append(f"run = {json.dumps(RUN)}")
        for name, table in tables.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        (self.folder / "campaign.toml").write_text("\n".join(lines))

    @property
    def slept(self) -> str:
        return f"{self.sleep_s}.{self.mark}"

    @property
    def asleep(self) -> bytes:
        """The command line of the suite's sleep, as /proc has it."""
        return f"sleep\0{self.slept}\0".encode()

    def start(self) -> Running:
        """`grader grade` on this campaign: from the beginning, or on with it."""
        command = [*self.inside, sys.executable, "-m", "grader.cli", "grade", str(self.folder / "campaign.toml")]
        log = (self.folder / "log").open("ab")
        with log:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
        self.started.append(Running(self, process))
        return self.started[-1]

    def kill_what_runs(self) -> None:
        """For the end of a test that failed."""
        for running in self.started:
            running.kill()

    def janitor(self) -> None:
        """`grader janitor` in this room's namespace."""
        where = ["--namespace", self.provider["namespace"], "--kubeconfig", self.provider["kubeconfig"]]
        command = [sys.executable, "-m", "grader.cli", "janitor", "--provider", "kubernetes", *where]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def told(self) -> str:
        """What the commands have said on stderr so far."""
        return (self.folder / "log").read_text(errors="replace")

    def rows(self) -> list[Grading]:
        """Every row of the ledger, those too that a later one has taken the place of."""
        with read_only(run_directory(self.folder / "runs", RUN)) as ledger:
            return list(ledger.gradings())

    def _write(self, name: str, rows: list[JSON]) -> None:
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass
class Running:
    """A `grader grade` that runs."""

    room: Room
    process: subprocess.Popen[bytes]

    def wait(self, timeout_s: float) -> Ended:
        """Its end, which must come in time."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the grader did not end within {timeout_s} s:\n{self.room.told()[-3000:]}") from None
        return Ended(self.room, status)

    def kill(self) -> None:
        """SIGKILL, for the grader alone."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Ended:
    """How one start of the run ended."""

    room: Room
    status: int

    @property
    def said(self) -> str:
        return self.room.told()[-4000:]


def patches_of(repo: Repo, each: int) -> dict[str, str]:
    """By model: patches that mend the fault, patches that do not, and nothing."""
    found = {}
    for number in range(each):
        for kind, source in (("good", MENDED), ("bad", SOURCE)):
            patch = repo.diff(lambda root, text=f"{source}\nn = {number}\n": (root / "sums.py").write_text(text))  # type: ignore[misc]
            found[f"{kind}-{number}" if number else kind] = patch.decode()
    return {**found, "empty": ""}


def check_no_score_is_the_faults(room: Room) -> None:
    """Every row that was ever written has its patch's own verdict and reward, or a cause and no reward."""
    rows = room.rows()
    for row in rows:
        kind = row.model_name_or_path.partition("-")[0]
        if row.outcome is Outcome.NO_VERDICT:
            assert (None, True) == (row.reward, row.cause is not None and row.reasons != ()), row
        else:
            right = VERDICTS[kind]
            assert (right, float(right is Outcome.RESOLVED)) == (row.outcome, row.reward), (kind, row.reasons, row)
    decided = [row.model_name_or_path for row in rows if row.outcome is not Outcome.NO_VERDICT]
    assert len(decided) == len(set(decided)), f"a patch was graded twice: {decided}"


def check_sum(room: Room, **parts: int) -> None:
    """The last sum that the command printed adds up, and has these parts; the others are zero."""
    sums = [line for line in room.told().splitlines() if re.match(r"\d+ expected = ", line)]
    total, _, terms = sums[-1].partition(" expected = ")
    counted = {name: int(n) for n, name in re.findall(r"(\d+) ([a-z ]+?)(?: \([^)]*\))?(?: \+|$)", terms)}
    names = {"resolved", "unresolved", "patch rejected", "timed out", "refused", "no verdict", "not run"}
    assert names == counted.keys(), sums[-1]
    assert int(total) == sum(counted.values()), sums[-1]
    wanted = {name.replace("_", " "): n for name, n in parts.items()}
    assert wanted == {name: n for name, n in counted.items() if n}, sums[-1]


def check_all_right(ended: Ended, *, attempts: Mapping[str, int] | int | None = None) -> list[Grading]:
    """The run ended whole, each patch with its own verdict; `attempts` is how many sandboxes each took."""
    room = ended.room
    check_no_score_is_the_faults(room)
    latest = {row.model_name_or_path: row for row in room.rows()}
    assert VERDICTS == {kind: row.outcome for kind, row in latest.items()}, ended.said
    assert 0 == ended.status, ended.said
    check_sum(room, resolved=1, unresolved=2)
    if attempts is not None:
        took = {kind: row.evidence.attempts for kind, row in latest.items()}
        assert (attempts if isinstance(attempts, Mapping) else dict.fromkeys(VERDICTS, attempts)) == took, ended.said
    return list(latest.values())


def check_none_has_a_verdict(ended: Ended, cause: str, *, attempts: int | None = None) -> list[Grading]:
    """The run ended whole and without a verdict; each row names `cause`, a pattern, among its own."""
    room = ended.room
    check_no_score_is_the_faults(room)
    latest = {row.model_name_or_path: row for row in room.rows()}
    assert dict.fromkeys(VERDICTS, (Outcome.NO_VERDICT, Cause.INFRASTRUCTURE)) == {
        kind: (row.outcome, row.cause) for kind, row in latest.items()
    }, ended.said
    told = [(*row.reasons, *row.evidence.failures) for row in latest.values()]
    assert all(any(re.search(cause, line) for line in lines) for lines in told), told
    assert 4 == ended.status, ended.said
    check_sum(room, no_verdict=3)
    if attempts is not None:
        assert [attempts] * 3 == [row.evidence.attempts for row in latest.values()], ended.said
    return list(latest.values())


def is_root() -> bool:
    return os.geteuid() == 0
