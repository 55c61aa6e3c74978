"""sympy's own runner, by the official rules: `test_name ok`, and a heading line for each failure.

An id in the tasks' lists is the bare name of a function, so tests of one name in two files are told apart nowhere.
"""

from __future__ import annotations

from grader.parsers.tally import Tally
from grader.parsers.text import lines
from grader.verdict import TestStatus

_ENDS = ((" E", TestStatus.ERROR), (" F", TestStatus.FAILED), (" ok", TestStatus.PASSED))


def read_sympy(text: str) -> Tally:
    """Read a log of sympy's runner. Result lines win over the headings of failures, which are read first."""
    tally = Tally()
    for line in lines(text):
        heading = _heading_of_failure(line)
        if heading is not None:
            tally.record(heading, TestStatus.FAILED)
    for line in lines(text):
        result = line.strip()
        if result.startswith("test_"):
            for end, status in _ENDS:
                if result.endswith(end):
                    tally.record(result.split(None, 1)[0], status)
    return tally


def _heading_of_failure(line: str) -> str | None:
    """`path.py:test` from a line like `____ path.py:test ____`, where the underscores may be missing.

    It is what stands between the first and the last space, if the last `.py:` in there has a space after it.
    """
    first, last = line.find(" "), line.rfind(" ")
    if first == -1 or line.rfind(".py:", first + 1, last) == -1:
        return None
    return line[first + 1 : last]
