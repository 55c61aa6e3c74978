"""What the tests said: the types of a verdict, and the pure judge.

`resolved` equals what the official SWE-bench rules (5.0.2) give on the same test results. Anything stricter is a flag
beside it. Why there is no verdict is a typed cause. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tasksets.task import EvalType


class TestStatus(StrEnum):
    """What one test did, in the words that logs use."""

    __test__ = False

    PASSED = "PASSED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    ERROR = "ERROR"
    XFAIL = "XFAIL"


class Outcome(StrEnum):
    """How one grading ended."""

    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    PATCH_REJECTED = "patch_rejected"
    TIMED_OUT = "timed_out"
    NO_VERDICT = "no_verdict"


class Cause(StrEnum):
    """Why there is no verdict. Never a score."""

    INFRASTRUCTURE = "infrastructure"
    CONDITIONS_CONTRADICTED = "conditions_contradicted"
    TASK_REFUSED = "task_refused"
    RESULTS_LOST = "results_lost"


@dataclass(frozen=True)
class TestLists:
    """The ids of one list of the task, split by what became of them, as the official report does."""

    __test__ = False

    success: tuple[str, ...]
    failure: tuple[str, ...]


@dataclass(frozen=True)
class Judgement:
    """What `judge` says of one suite run."""

    outcome: Outcome
    fail_to_pass: TestLists
    pass_to_pass: TestLists
    reasons: tuple[str, ...]
    """One sentence each, for a person: why not resolved, or why no verdict."""
    flags: tuple[str, ...] = ()
    """Stricter findings that do not change the outcome."""
    cause: Cause | None = None
    """Set when, and only when, the outcome is `no_verdict`."""
    statuses: Mapping[str, TestStatus] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """Listed tests without a result: neither passed nor failed, though official rules count them as failed."""


@dataclass(frozen=True)
class LogResults:
    """What a log says of tests, as a parser read it. Anything in it may be the work of the code under test."""

    words: Mapping[str, str]
    """The last word that the log has for each test id, in order of first appearance. Mostly a `TestStatus`; official
    parsers also take a word that only begins or ends like one (`ERROR:`), and count such a test neither way."""
    conflicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids that got different words, with these words in order."""
    unreadable: str | None = None
    """Why official rules read no result from this log, as a sentence: its markers are not both there, for example."""
    patch_apply_failed: bool = False
    """The harness that wrote the log says so, before any test could have."""
    suite_ran: bool = False
    """The log has a runner's own count of executed tests. Official rules want it where no test is named."""
    exit_code: int | None = None
    """The test command's exit status, where the log records it as official logs do."""
    flags: tuple[str, ...] = ()
    complete: bool = False
    """Nothing is missing from these results, whatever became of the log: they came by the channel."""

    @property
    def statuses(self) -> dict[str, TestStatus]:
        """The ids whose word is a status."""
        return {test_id: TestStatus(word) for test_id, word in self.words.items() if word in _STATUS_WORDS}


_STATUS_WORDS = frozenset(TestStatus)
_PASSING = frozenset({TestStatus.PASSED, TestStatus.XFAIL})
_FAILING = frozenset({TestStatus.FAILED, TestStatus.ERROR})
_NAMED = 3
"""A sentence names at most this many tests."""


def judge(
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    results: LogResults,
    *,
    exit_code: int | None = None,
    timed_out: bool = False,
    log_truncated: bool = False,
    results_lost: str | None = None,
    slow_reference: str | None = None,
    eval_type: EvalType = "pass_and_fail",
) -> Judgement:
    """Say what one run of a task's tests means. Pure, and never raises on what a log may hold.

    `exit_code` is the test command's, None where nobody knows; it wins over one that the log records. `log_truncated`
    says that bytes of the log are missing. `results_lost` is the caller's outside evidence that results existed and are
    gone (the daemon was lost, the log could not be read), as a sentence. `slow_reference` says, where it is so, that
    the reference comes near the time limit: a suite that outlives it tells nothing of the patch. Rules and sources:
    docs/verdicts.md.
    """
    run = _Run(results, exit_code if exit_code is not None else results.exit_code, log_truncated)
    if not fail_to_pass:
        why = "The task lists no FAIL_TO_PASS test, so any patch would pass."
        return run.ended(Outcome.NO_VERDICT, why, Cause.TASK_REFUSED)
    if results_lost is not None:
        return run.ended(Outcome.NO_VERDICT, results_lost, Cause.RESULTS_LOST)
    lists = _Lists.of(fail_to_pass, pass_to_pass, results.words, eval_type)
    if timed_out:
        why = f"The test suite did not end within its time limit; {lists.progress()}."
        nobodys_fault = (Outcome.NO_VERDICT, slow_reference, Cause.TASK_REFUSED)
        return run.ended(*(nobodys_fault if slow_reference is not None else (Outcome.TIMED_OUT, why)))
    unreadable = _unreadable(results, run.exit_code)
    lost = lists.only_missing_tests_fail if unreadable is None else not results.patch_apply_failed
    if log_truncated and lost and not results.complete:
        why = f"The log is cut, and only missing results speak against the patch: {unreadable or lists.reasons()[0]}"
        return run.ended(Outcome.NO_VERDICT, why, Cause.RESULTS_LOST)
    if unreadable is not None:
        return run.ended(
            Outcome.PATCH_REJECTED if results.patch_apply_failed else Outcome.UNRESOLVED,
            unreadable,
            missing=lists.missing,
        )
    return Judgement(
        outcome=Outcome.RESOLVED if lists.all_succeed else Outcome.UNRESOLVED,
        fail_to_pass=lists.fail_to_pass.split,
        pass_to_pass=lists.pass_to_pass.split,
        reasons=lists.reasons(),
        flags=(*run.flags(), *lists.flags(results)),
        statuses=results.statuses,
        missing=lists.missing,
    )


def _unreadable(results: LogResults, exit_code: int | None) -> str | None:
    """Why official rules take no result from this run; None where they do."""
    if results.unreadable is not None:
        return results.unreadable
    if not results.words:
        return None if results.suite_ran else "The log has no test result, and no sign that a test ran."
    if exit_code not in (None, 0) and not _FAILING & set(results.words.values()):
        return (
            f"The log has no failed test, yet the test command ended with status {exit_code}: it tells of another run."
        )
    return None


@dataclass(frozen=True)
class _Run:
    """What is known of a run beside its listed tests."""

    results: LogResults
    exit_code: int | None
    log_truncated: bool

    def ended(
        self, outcome: Outcome, reason: str, cause: Cause | None = None, missing: tuple[str, ...] = ()
    ) -> Judgement:
        """A judgement that rests on no listed test: its lists are empty, as official reports then have none."""
        nothing = TestLists((), ())
        return Judgement(outcome, nothing, nothing, (reason,), self.flags(), cause, self.results.statuses, missing)

    def flags(self) -> tuple[str, ...]:
        found = list(self.results.flags)
        if self.log_truncated:
            found.append("log_truncated: the log is cut, so results may be missing from it.")
        failing = _FAILING & set(self.results.words.values())
        if self.exit_code == 0 and failing:
            found.append("exit_code_disagrees: the test command ended with status 0, yet the log has failed tests.")
        elif self.exit_code not in (None, 0) and self.results.words and not failing:
            found.append(
                f"exit_code_disagrees: the test command ended with {self.exit_code}, yet the log has no failed test."
            )
        recorded = self.results.exit_code
        if recorded is not None and recorded != self.exit_code:
            found.append(f"exit_code_disagrees: the log records {recorded}, the suite ended with {self.exit_code}.")
        if self.exit_code is not None and (self.exit_code > 128 or self.exit_code < 0):
            signal = self.exit_code - 128 if self.exit_code > 0 else -self.exit_code
            found.append(f"ended_by_signal: the test command's status {self.exit_code} is that of signal {signal}.")
        return tuple(found)


@dataclass(frozen=True)
class _Match:
    """One listed test, and the id in the log that it stands for."""

    listed: str
    word: str | None
    """None: missing."""
    candidates: int = 0
    """How many ids of the log begin with this one; 0 for an exact match, or none."""


def _match(listed: str, words: Mapping[str, str]) -> _Match:
    """Find a listed test. 676 ids of Verified are cut inside their brackets: only these are matched by prefix.

    Candidates that disagree on passing leave the test missing, as no one can tell which was meant.
    """
    if listed in words:
        return _Match(listed, words[listed])
    if listed.count("[") <= listed.count("]"):
        return _Match(listed, None)
    candidates = [word for test_id, word in words.items() if test_id.startswith(listed)]
    agree = len({word in _PASSING for word in candidates}) == 1
    return _Match(listed, candidates[0] if agree else None, len(candidates))


def _verdict(word: str | None, passing: frozenset[TestStatus]) -> bool | None:
    """True: success. False: failure, which a missing result is too. None: a word that official rules do not count."""
    if word is None:
        return False
    if word not in _STATUS_WORDS:
        return None
    return word in passing


@dataclass(frozen=True)
class _List:
    """One list of the task after the run."""

    name: str
    matches: tuple[_Match, ...]
    verdicts: tuple[bool | None, ...]
    """For each match: success, failure, or None where official rules put it in neither list."""

    @property
    def split(self) -> TestLists:
        pairs = tuple(zip(self.matches, self.verdicts, strict=True))
        return TestLists(
            success=tuple(m.listed for m, verdict in pairs if verdict is True),
            failure=tuple(m.listed for m, verdict in pairs if verdict is False),
        )

    def failed(self, which: Callable[[_Match], bool]) -> list[str]:
        pairs = zip(self.matches, self.verdicts, strict=True)
        return [m.listed for m, verdict in pairs if verdict is False and which(m)]

    def reasons(self) -> Iterable[str]:
        kinds: tuple[tuple[str, Callable[[_Match], bool]], ...] = (
            ("failed", lambda m: m.word in _FAILING),
            ("were skipped", lambda m: m.word == TestStatus.SKIPPED),
            ("have no result in the log", lambda m: m.word is None and m.candidates == 0),
            ("are cut ids whose candidates in the log disagree", lambda m: m.word is None and m.candidates > 0),
        )
        for what, which in kinds:
            tests = self.failed(which)
            if tests:
                yield f"{len(tests)} of {len(self.matches)} {self.name} tests {what}: {a_few(tests)}."


@dataclass(frozen=True)
class _Lists:
    fail_to_pass: _List
    pass_to_pass: _List

    @classmethod
    def of(
        cls, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], words: Mapping[str, str], eval_type: EvalType
    ) -> _Lists:
        def one(name: str, ids: Sequence[str], passing: frozenset[TestStatus]) -> _List:
            matches = tuple(_match(test_id, words) for test_id in ids)
            if eval_type == "fail_only":
                return _List(name, matches, tuple(words.get(m.listed) != TestStatus.FAILED for m in matches))
            return _List(name, matches, tuple(_verdict(m.word, passing) for m in matches))

        # A skipped test is no regression, and no resolution either.
        return cls(
            one("FAIL_TO_PASS", fail_to_pass, _PASSING),
            one("PASS_TO_PASS", pass_to_pass, _PASSING | {TestStatus.SKIPPED}),
        )

    @property
    def all_succeed(self) -> bool:
        return False not in self.fail_to_pass.verdicts and False not in self.pass_to_pass.verdicts

    @property
    def only_missing_tests_fail(self) -> bool:
        return not self.all_succeed and not any(one.failed(lambda m: m.word is not None) for one in self._both)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(m.listed for m in self._matches if m.word is None)

    @property
    def _both(self) -> tuple[_List, _List]:
        return self.fail_to_pass, self.pass_to_pass

    @property
    def _matches(self) -> tuple[_Match, ...]:
        return self.fail_to_pass.matches + self.pass_to_pass.matches

    def progress(self) -> str:
        seen = [m for m in self._matches if m.word is not None]
        passed = sum(m.word in _PASSING for m in seen)
        return f"{len(seen)} of {len(self._matches)} listed tests had a result by then, {passed} of them passed"

    def reasons(self) -> tuple[str, ...]:
        return tuple(sentence for one in self._both for sentence in one.reasons())

    def flags(self, results: LogResults) -> tuple[str, ...]:
        """What a careful reader should know of the listed tests, one line for each kind."""
        kinds = (
            (
                "missing_tests",
                "listed tests have no result in the log",
                [m.listed for m in self._matches if m.word is None and m.candidates == 0],
            ),
            (
                "matched_by_prefix",
                "listed tests are cut in the task and were matched by their beginning",
                [m.listed for m in self._matches if m.word is not None and m.candidates == 1],
            ),
            (
                "matched_ambiguously",
                "listed tests are cut in the task and begin like several tests of the log",
                [m.listed for m in self._matches if m.candidates > 1],
            ),
            (
                "conflicting_results",
                "listed tests have different results in one log; the last one counts",
                [m.listed for m in self._matches if m.listed in results.conflicts],
            ),
            (
                "word_is_no_status",
                "listed tests have a result that is no status; official rules count them neither way",
                [m.listed for m in self._matches if m.word is not None and m.word not in _STATUS_WORDS],
            ),
            ("unlisted_failures", "failed tests are in neither list", self._unlisted_failures(results.words)),
        )
        return tuple(f"{name}: {len(tests)} {what}: {a_few(tests)}." for name, what, tests in kinds if tests)

    def _unlisted_failures(self, words: Mapping[str, str]) -> list[str]:
        listed = {m.listed for m in self._matches}
        cut = tuple(m.listed for m in self._matches if m.candidates)
        failing = (test_id for test_id, word in words.items() if word in _FAILING and test_id not in listed)
        return [test_id for test_id in failing if not test_id.startswith(cut)]


def a_few(tests: Sequence[str]) -> str:
    """A few of the tests for a sentence, each cut to a readable length, and how many more there are."""
    shown = [test if len(test) <= 120 else f"{test[:117]}..." for test in tests[:_NAMED]]
    more = len(tests) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
