"""What was heard on the channel: bytes to records. Pure, and never raises on what the bytes may hold.

Each line is `g1 CHAIN STREAM NUMBER JSON`. A stream is one process; CHAIN is SHA-256 over the CHAIN before it (at first
the key), the stream, the number and the text. A line that does not continue its stream's chain was not written by the
stream's reporter, or lines before it are gone: the stream has a fault. Lines of another form, or of a stream that never
began with the key, are noise: whatever wrote them had no key.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TestOutcome(StrEnum):
    """What became of one test, in the runner's own terms."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"


_WORST_FIRST = (
    TestOutcome.ERROR,
    TestOutcome.FAILED,
    TestOutcome.XPASSED,
    TestOutcome.SKIPPED,
    TestOutcome.XFAILED,
    TestOutcome.PASSED,
)


@dataclass(frozen=True)
class TestRecord:
    """One test's end."""

    __test__ = False

    test_id: str
    outcome: TestOutcome
    phase: str
    """`setup`, `call`, `teardown`, `collect`, `subtest` or `crash`."""
    name: str
    """What the runner calls the test in its log; the id where that is the same."""


@dataclass(frozen=True)
class Suite:
    """One session of a test runner."""

    runner: str
    """`pytest`, `unittest` or `sympy`."""
    version: str
    records: tuple[TestRecord, ...] = ()
    ended: bool = False
    status: int | None = None
    """What the runner made of it, 0 for success. None: it did not say."""
    counted: int | None = None
    """How many records the reporter wrote, by its own count at the end."""

    @property
    def whole(self) -> bool:
        return self.ended and self.counted == len(self.records)


@dataclass(frozen=True)
class Heard:
    """All that the channel brought."""

    commands: tuple[str, ...] = ()
    """Command line of each Python that started below the test command with the reporter in it, in order."""
    suites: tuple[Suite, ...] = ()
    blind: tuple[str, ...] = ()
    """Reporters that did not fit the runner that was there."""
    faults: tuple[str, ...] = ()
    """Each way in which a stream's chain was broken, as a sentence."""
    noise_bytes: int = 0
    """What was written to the channel by others than a reporter."""
    closed: str | None = None
    """Why the channel could not be had, as a sentence; None where it was open."""
    sha256: str | None = None
    """Over all that was read."""

    @property
    def outcomes(self) -> dict[str, TestOutcome]:
        """Each test's outcome, its worst where it has several; subtests left out."""
        worst: dict[str, TestOutcome] = {}
        for record in self.tests():
            other = worst.get(record.test_id, record.outcome)
            worst[record.test_id] = min(other, record.outcome, key=_WORST_FIRST.index)
        return worst

    @property
    def doubled(self) -> dict[str, set[TestOutcome]]:
        """Tests with more than one result, and what these were."""
        seen: dict[str, list[TestOutcome]] = {}
        for record in self.tests():
            seen.setdefault(record.test_id, []).append(record.outcome)
        return {test_id: set(outcomes) for test_id, outcomes in seen.items() if len(outcomes) > 1}

    @property
    def subtests_failed(self) -> tuple[str, ...]:
        return tuple(record.test_id for suite in self.suites for record in suite.records if record.phase == "subtest")

    def tests(self) -> list[TestRecord]:
        return [record for suite in self.suites for record in suite.records if record.phase != "subtest"]


_STATUS_WORDS = {TestOutcome.XFAILED: "XFAIL", TestOutcome.XPASSED: "XPASS"}


def statuses(heard: Heard) -> dict[str, str]:
    """Each test's status, by its id as the runner has it, in the words of reports."""
    return {test_id: _STATUS_WORDS.get(outcome, outcome.name) for test_id, outcome in heard.outcomes.items()}


_LINE = re.compile(rb"^g1 ([0-9a-f]{64}) (([0-9a-f]{16}) (0|[1-9][0-9]{0,8}) (\{.*\}))$", re.MULTILINE)
_MAX_RECORD_BYTES = 4 << 20
"""JSON takes some thirty times its length in memory when who has the key means ill."""
_MAX_COMMANDS = 200
_MAX_FAULTS = 20


def read_records(data: bytes, key: str) -> Heard:
    """Read what came through a channel that was opened with `key`. A flood of noise costs no memory beyond itself."""
    reader = _Reader(key)
    told = sum(len(match[0]) for match in _LINE.finditer(data) if reader.take(match))
    noise = len(data) - data.count(b"\n") - told
    return reader.heard(noise, hashlib.sha256(data).hexdigest())


@dataclass
class _Stream:
    chain: str
    count: int = 0
    at: int | None = None
    """Index of the suite that is open."""


@dataclass
class _Reader:
    key: str
    streams: dict[bytes, _Stream] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    suites: list[_Open] = field(default_factory=list)
    blind: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def take(self, match: re.Match[bytes]) -> bool:
        """Take one line of the right form. False: whatever wrote it had no key."""
        chain, signed, name, number = match[1].decode(), match[2], match[3], int(match[4])
        stream = self.streams.get(name)
        before = stream.chain if stream else self.key
        right = hashlib.sha256(before.encode() + b" " + signed).hexdigest() == chain
        if not right or number != (stream.count if stream else 0):
            if stream is not None:
                self._fault(f"record {number} does not follow record {stream.count - 1} of its process")
            return stream is not None
        if stream is None:
            stream = self.streams[name] = _Stream(chain)
        stream.chain, stream.count = chain, number + 1
        try:
            if len(match[5]) > _MAX_RECORD_BYTES:
                raise ValueError
            self._record(stream, json.loads(match[5]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._fault(f"record {number} of a process is not of the reporter's form")
        return True

    def _record(self, stream: _Stream, told: dict[str, Any]) -> None:
        kind = told["r"]
        if kind == "hello":
            if len(self.commands) < _MAX_COMMANDS:
                self.commands.append(_text(told["command"]))
        elif kind == "blind":
            self.blind.append(_text(told["runner"]))
        elif kind == "begin":
            stream.at = len(self.suites)
            self.suites.append(_Open(_text(told["runner"]), _text(told["version"])))
        elif stream.at is None:
            self._fault("a test's record or an end stands outside of a session")
        elif kind == "test":
            test_id, phase = _text(told["id"]), _text(told["phase"])
            name = test_id if told["name"] is None else _text(told["name"])
            self.suites[stream.at].records.append(TestRecord(test_id, TestOutcome(told["outcome"]), phase, name))
        elif kind == "end":
            suite, stream.at = self.suites[stream.at], None
            suite.ended, suite.counted = True, _number(told["tests"])
            suite.status = None if told["status"] is None else _number(told["status"])
        else:
            self._fault("a record is of no known kind")

    def _fault(self, sentence: str) -> None:
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(sentence)

    def heard(self, noise_bytes: int, sha256: str) -> Heard:
        return Heard(
            commands=tuple(self.commands),
            suites=tuple(
                Suite(one.runner, one.version, tuple(one.records), one.ended, one.status, one.counted)
                for one in self.suites
            ),
            blind=tuple(self.blind),
            faults=tuple(self.faults),
            noise_bytes=noise_bytes,
            sha256=sha256,
        )


@dataclass
class _Open:
    runner: str
    version: str
    records: list[TestRecord] = field(default_factory=list)
    ended: bool = False
    status: int | None = None
    counted: int | None = None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value
