"""The log that an honest run with these results prints, for the official parsers to read. Pure.

Official rules are written down as parsers of logs. To apply them to the channel's results, the results are put in the
words of their runner: pytest's summary in the order of `-rA`, a line for each test of unittest or Django, `test_x ok`
for sympy. What a runner's log does not tell of (the name of a skipped pytest test) is not told here either.
"""

from __future__ import annotations

import re

from grader.channel.records import Suite, TestOutcome, TestRecord
from grader.verdict import TestStatus

STATUSES = {
    TestOutcome.PASSED: TestStatus.PASSED,
    TestOutcome.FAILED: TestStatus.FAILED,
    TestOutcome.ERROR: TestStatus.ERROR,
    TestOutcome.XFAILED: TestStatus.XFAIL,
    TestOutcome.SKIPPED: TestStatus.SKIPPED,
}
"""In the words of official reports, which have none for an unexpected pass."""

_PYTEST_ORDER = (TestOutcome.PASSED, TestOutcome.XFAILED, TestOutcome.ERROR, TestOutcome.FAILED)
_UNITTEST_WORDS = {
    TestOutcome.PASSED: "ok",
    TestOutcome.FAILED: "FAIL",
    TestOutcome.ERROR: "ERROR",
    TestOutcome.SKIPPED: "skipped ''",
    TestOutcome.XFAILED: "expected failure",
    TestOutcome.XPASSED: "unexpected success",
}
_SYMPY_WORDS = {TestOutcome.PASSED: "ok", TestOutcome.FAILED: "F", TestOutcome.ERROR: "E"}


def runner_of(parser: str) -> str:
    """The runner whose logs a parser reads."""
    return {"django": "unittest", "unittest": "unittest", "sympy": "sympy"}.get(
        parser.removeprefix("parse_log_"), "pytest"
    )


def honest_log(suite: Suite) -> bytes:
    """What the suite's runner prints of its results."""
    told = [record for record in suite.records if record.phase != "subtest"]
    lines = {"pytest": _pytest, "unittest": _unittest, "sympy": _sympy}[suite.runner](told)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def _pytest(told: list[TestRecord]) -> list[str]:
    return [
        f"{STATUSES[outcome]} {_first_lines(record.test_id, 1)}"
        for outcome in _PYTEST_ORDER
        for record in told
        if record.outcome is outcome
    ]


def _unittest(told: list[TestRecord]) -> list[str]:
    # A test with a docstring has its first line beneath its own name.
    return [f"{_first_lines(record.name, 2)} ... {_UNITTEST_WORDS[record.outcome]}" for record in told]


def _sympy(told: list[TestRecord]) -> list[str]:
    return [
        f"{record.name} {_SYMPY_WORDS[record.outcome]}"
        for record in told
        if record.outcome in _SYMPY_WORDS and re.fullmatch(r"\w+", record.name)
    ]


_LINE_END = re.compile(r"\r\n?|\n")


def _first_lines(name: str, most: int) -> str:
    """The name as far as a log shows it as this test's. What follows a further line end would read as other tests'
    results, and a product can put it there: pytest makes ids of the `__name__` of parameters, as they are."""
    return "\n".join(_LINE_END.split(name, most)[:most])
