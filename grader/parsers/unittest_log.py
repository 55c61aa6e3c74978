"""The standard library's `unittest -v`. Our own rules: no official parser reads it as it is.

An id is `test_name (module.Class)`, or `test_name (module.Class.test_name)` from Python 3.11 on, whether or not a
docstring stands on the line after it. A test with a failing subtest failed. A failure is never taken back by an "ok".
"""

from __future__ import annotations

import re

from grader.parsers.tally import Tally
from grader.parsers.text import lines
from grader.verdict import TestStatus

_NAMED = re.compile(r"(\w+ \([\w.<>]+\))(.*)")
_HEADING = re.compile(r"(FAIL|ERROR|UNEXPECTED SUCCESS): (\w+ \([\w.<>]+\))")
_HEADINGS = {"FAIL": TestStatus.FAILED, "ERROR": TestStatus.ERROR, "UNEXPECTED SUCCESS": TestStatus.FAILED}
_RESULTS = {
    "ok": TestStatus.PASSED,
    "FAIL": TestStatus.FAILED,
    "ERROR": TestStatus.ERROR,
    "expected failure": TestStatus.XFAIL,
    "unexpected success": TestStatus.FAILED,
}
_FINAL = frozenset({TestStatus.FAILED, TestStatus.ERROR})


def read_unittest(text: str) -> Tally:
    """Read a log of `unittest -v`."""
    tally = Tally()
    waiting: str | None = None
    for line in lines(text):
        heading = _HEADING.match(line)
        if heading is not None:
            _record(tally, heading[2], _HEADINGS[heading[1]])
            continue
        named = _NAMED.match(line)
        if named is not None and (not named[2] or named[2].startswith(" ...")):
            waiting = named[1]
        if waiting is None:
            continue
        status = _result(line)
        if status is not None:
            _record(tally, waiting, status)
            waiting = None
    return tally


def _result(line: str) -> TestStatus | None:
    """The status at the end of a line. A test that prints can part it from its name, so it may also stand alone."""
    if " ... skipped " in line:
        return TestStatus.SKIPPED
    return _RESULTS.get(line.rpartition(" ... ")[2])


def _record(tally: Tally, test_id: str, status: TestStatus) -> None:
    if tally.words.get(test_id) not in _FINAL:
        tally.record(test_id, status)
