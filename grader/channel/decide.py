"""Channel, log and exit code side by side: whose results count, and every way in which they disagree. Pure.

The law: where a runner that our reporter knows began a session, what the reporter told is what the official rules are
applied to, and the log is a cross-check. A session that never ended, or whose records do not hang together, gives no
results, as a log without its summary gives none. Where no such runner began, the log counts; unless a Python in which
the reporter was alive was started as such a runner, and never became one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grader.channel.honest_log import STATUSES, honest_log, runner_of
from grader.channel.records import Heard, Suite, TestOutcome
from grader.verdict import LogResults, a_few
from tasksets.task import TestPlan

State = Literal["absent", "silent", "broken", "unended", "complete"]
"""`absent`: not a word came. `silent`: Pythons said that they started, and no runner of the log's kind began. `broken`:
records do not hang together. `unended`: a session began and did not end. `complete`: every session told its end."""


@dataclass(frozen=True)
class Decided:
    """What the judge is given, and what a reader should know of where it came from."""

    results: LogResults
    source: Literal["channel", "log"]
    state: State
    flags: tuple[str, ...] = ()
    agreement: Mapping[str, int] | None = None
    """How many tests have the same result in channel and log (`same`), another (`other`), or are in one alone
    (`channel_only`, `log_only`). None: there is no channel to compare."""


def decide(
    heard: Heard,
    log: LogResults,
    plan: TestPlan,
    listed: Sequence[str],
    read: Callable[[bytes], LogResults],
    *,
    exit_code: int | None,
) -> Decided:
    """Choose the results that count. `read` is the task's own log parser, `exit_code` the test command's."""
    runner = runner_of(plan.parser)
    suites = [suite for suite in heard.suites if suite.runner == runner]
    state = _state(heard, suites)
    flags = list(_flags(heard, suites, state, exit_code))
    if not suites:
        why = _never_began(heard, runner)
        if why is None:
            return Decided(log, "log", state, tuple(flags))
        flags.append(f"runner_never_began: {why}.")
        return Decided(LogResults({}, unreadable=f"No test session began: {why}."), "channel", state, tuple(flags))
    as_logged: dict[str, str] = {}
    for suite in suites:
        as_logged |= read(honest_log(suite)).words
    told = _official(suites, as_logged, plan, listed, log)
    flags += _disagreements(told.words, log.words, listed)
    agreement = _agreement(as_logged, log.words)
    if state != "complete":
        why = "did not end" if state == "unended" else "told records that do not hang together"
        told = LogResults({}, unreadable=f"The test runner began a session and {why}, so its results do not count.")
    return Decided(told, "channel", state, tuple(flags), agreement)


def _state(heard: Heard, suites: Sequence[Suite]) -> State:
    if heard.faults:
        return "broken"
    if suites:
        ended = all(suite.ended for suite in suites)
        return "unended" if not ended else "complete" if all(suite.whole for suite in suites) else "broken"
    return "silent" if heard.commands else "absent"


_STARTED_AS = {
    "pytest": re.compile(r"(?:^|/| -m )(?:pytest|py\.test)(?: |$)"),
    "unittest": re.compile(r"(?:^|[ /])tests/runtests\.py(?: |$)| -m unittest(?: |$)"),
    "sympy": re.compile(r"(?:^|[ /])bin/test(?: |$)"),
}


def _never_began(heard: Heard, runner: str) -> str | None:
    """Why there should have been a session, though there was none; None where there need not have been one."""
    if heard.blind or (runner == "sympy" and heard.suites):  # newer versions of `bin/test` run pytest
        return None
    commands = (command for command in heard.commands if _STARTED_AS[runner].search(_program(command)))
    command = next(commands, None)
    return None if command is None else f"a Python that was started as {command[:120]!r} never became a {runner} runner"


_MODULE = re.compile(r"-[bBdEiIOqsSuvx]*m(.*)")
"""`-m` alone, behind other switches in one word, or with its module in the same word."""


def _program(command: str) -> str:
    """The words of a Python's command line up to its script or module, so that no file name among its arguments
    counts."""
    words = re.split(r"(?<!\\) ", command)
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if module := _MODULE.fullmatch(words[at]):
            return f"python -m {module[1] or ' '.join(words[at + 1 : at + 2])}"
        if words[at] == "-c":
            return ""
        at += 2 if words[at] in {"-W", "-X"} else 1
    return " ".join(words[at : at + 1])


def _official(
    suites: Sequence[Suite], as_logged: Mapping[str, str], plan: TestPlan, listed: Sequence[str], log: LogResults
) -> LogResults:
    """The results by official rules: `as_logged` is how the parser reads the log that these suites honestly print.

    An id that this parser cannot read (it holds a space, a line break) is added as it is. A listed id that no test of
    these suites can have, since it came from a log's other lines, is taken from the log.
    """
    words = dict(as_logged)
    outcomes = _worst(suites)
    if suites[0].runner == "pytest":
        for test_id, outcome in outcomes.items():
            if outcome in (TestOutcome.PASSED, TestOutcome.XFAILED, TestOutcome.FAILED, TestOutcome.ERROR):
                # Of several results of one test the worst counts here, where a log's last one would.
                words[test_id] = str(STATUSES[outcome])
        for test_id in listed:
            if test_id not in words and test_id in log.words and not _can_be_a_test(test_id, plan):
                words[test_id] = log.words[test_id]
    return LogResults(words, suite_ran=log.suite_ran, flags=log.flags, complete=True)


def _worst(suites: Sequence[Suite]) -> dict[str, TestOutcome]:
    return Heard(suites=tuple(suites)).outcomes


def _can_be_a_test(test_id: str, plan: TestPlan) -> bool:
    """Whether pytest, run by the plan's command, can have a test of this id. Nothing of the submission decides this."""
    path = test_id.partition("::")[0]
    if "::" not in test_id:
        return path.endswith(".py")
    named = [word.partition("::")[0].rstrip("/") for word in plan.test_command.split() if "/" in word or ".py" in word]
    return not named or any(path == word or path.startswith(f"{word}/") for word in named)


def _flags(heard: Heard, suites: Sequence[Suite], state: State, exit_code: int | None) -> list[str]:
    found = []
    if heard.closed is not None:
        found.append(f"channel_closed: {heard.closed}.")
    if heard.blind:
        found.append(f"channel_blind: the reporter does not fit this runner ({a_few(heard.blind)}).")
    if heard.faults:
        found.append(f"channel_broken: {heard.faults[0]} ({len(heard.faults)} faults).")
    elif state == "broken":
        found.append("channel_broken: a session counted other records than it wrote.")
    if state == "unended":
        found.append("channel_unended: a test session began and never told its end.")
    if heard.noise_bytes:
        found.append(f"channel_noise: {heard.noise_bytes} bytes on the channel were written by no reporter.")
    if len(suites) > 1:
        found.append(f"channel_suites: {len(suites)} test sessions told their results.")
    only = Heard(suites=tuple(suites))
    doubled = only.doubled
    conflicts = [test_id for test_id, outcomes in doubled.items() if len(outcomes) > 1]
    for name, tests, what in (
        ("results_doubled", list(doubled), "tests have more than one result"),
        ("results_conflict", conflicts, "tests have different results, of which the worst counts"),
        ("subtests_failed", list(only.subtests_failed), "subtests failed"),
    ):
        if tests:
            found.append(f"{name}: {len(tests)} {what}: {a_few(tests)}.")
    status = suites[-1].status if suites else None
    if status is not None and exit_code is not None and status != exit_code:
        found.append(f"exit_code_disagrees: the runner told {status}, the test command ended with {exit_code}.")
    return found


def _disagreements(told: Mapping[str, str], log: Mapping[str, str], listed: Sequence[str]) -> list[str]:
    """Flags for listed tests of which channel and log tell different things."""
    kinds: tuple[tuple[str, str, list[str]], ...] = (
        ("log_disagrees", "listed tests have another result in the log than on the channel", []),
        ("log_claims_results", "listed tests have a result in the log and none on the channel", []),
        ("log_lacks_results", "listed tests have a result on the channel and none in the log", []),
    )
    for test_id in dict.fromkeys(listed):
        ours, theirs = told.get(test_id), log.get(test_id)
        if ours != theirs:
            kinds[1 if ours is None else 2 if theirs is None else 0][2].append(test_id)
    return [f"{name}: {len(tests)} {what}: {a_few(tests)}." for name, what, tests in kinds if tests]


def _agreement(told: Mapping[str, str], log: Mapping[str, str]) -> dict[str, int]:
    both = told.keys() & log.keys()
    same = sum(told[test_id] == log[test_id] for test_id in both)
    return {
        "same": same,
        "other": len(both) - same,
        "channel_only": len(told) - len(both),
        "log_only": len(log) - len(both),
    }
