"""Django's test runner, by the official rules: `test (module.Class) ... ok`, with output of tests in between.

A test's docstring can stand in place of its name; the id is then the docstring, as in the tasks' lists.
"""

from __future__ import annotations

import re

from grader.parsers.tally import Tally
from grader.parsers.text import lines
from grader.verdict import TestStatus

_PASSED_ENDS = (" ... ok", " ... OK", " ...  OK")
_TWO_LINE_TEST = "--version is equivalent to version"
"""One test's docstring spans lines, so that its result never stands beside its name; tasks list it by this text."""
_STARTS = ("ok", "FAIL:", "ERROR:")
_MIGRATION_BEFORE_NAME = "Applying sites.0002_alter_domain_unique...test_no_migrations"
"""A migration's message that runs into the name of the test after it."""

# A test's name, then a message of the runner in place of its result, then "ok" alone on a line. Each is split so that
# searching it takes one pass over the log: where it starts, and what must follow.
_TESTING_AGAINST = re.compile(r"\s\.\.\.\sTesting against Django installed in ")
_TESTING_AGAINST_END = re.compile(r" silenced\)\.\nok$", re.MULTILINE)
_SERVER_ERROR = re.compile(r"\s\.\.\.\sInternal Server Error: /")
_SYSTEM_CHECK = re.compile(r"\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$", re.MULTILINE)


def read_django(text: str) -> Tally:
    """Read a log of Django's runner."""
    tally = Tally()
    waiting = None
    for raw in lines(text):
        line = raw.strip()
        if " ... " in line or line.startswith(_STARTS) or _TWO_LINE_TEST in line:
            waiting = _read_line(tally, line, waiting)
    for literal, names in _INTERRUPTIONS:
        if literal in text:
            for name in names(text):
                tally.record(name, TestStatus.PASSED)
    return tally


def _read_line(tally: Tally, line: str, waiting: str | None) -> str | None:
    """Record what one line tells, and give the test whose result may follow on a later line."""
    if _TWO_LINE_TEST in line:
        tally.record(_TWO_LINE_TEST, TestStatus.PASSED)
    if " ... " in line:
        waiting = line.partition(" ... ")[0]
    end = next((end for end in _PASSED_ENDS if line.endswith(end)), None)
    if end is not None:
        if line.startswith(_MIGRATION_BEFORE_NAME):
            line = line.partition("...")[2].strip()
        tally.record(line.removesuffix(end), TestStatus.PASSED)
    if " ... skipped" in line:
        tally.record(line.partition(" ... skipped")[0], TestStatus.SKIPPED)
    for word, status in (("FAIL", TestStatus.FAILED), ("ERROR", TestStatus.ERROR)):
        if line.endswith(f" ... {word}"):
            tally.record(line.partition(f" ... {word}")[0], status)
        if line.startswith(f"{word}:"):
            words = line.split(None, 2)
            if len(words) > 1:  # official rules fail as a whole on a line with nothing after the colon
                tally.record(words[1], status)
    if line.startswith("ok") and waiting is not None:
        tally.record(waiting, TestStatus.PASSED)
    return waiting


def _interrupted_by_testing_against(text: str) -> list[str]:
    names, start = [], 0
    while (found := _TESTING_AGAINST.search(text, start)) is not None:
        end = _TESTING_AGAINST_END.search(text, found.end())
        if end is None:
            break
        names.append(_name_before(text, found.start()))
        start = end.end() + 1
    return names


def _interrupted_by_error(text: str) -> list[str]:
    names, start = [], 0
    while (found := _SERVER_ERROR.search(text, start)) is not None:
        line_end = text.find("\n", found.end())
        if line_end == -1:
            break
        start = line_end
        # The address ends with a slash, which is another one than the slash it begins with.
        if text[line_end - 1] == "/" and line_end - 1 >= found.end() and _is_line(text, line_end + 1, "ok"):
            names.append(_name_before(text, found.start()))
            start = line_end + len("\nok\n")
    return names


def _interrupted_by_check(text: str) -> list[str]:
    names, start = [], 0
    while (found := _SYSTEM_CHECK.search(text, start)) is not None:
        names.append(_name_before(text, found.start()))
        start = found.end() + 1
    return names


_INTERRUPTIONS = (
    ("Testing against Django installed in ", _interrupted_by_testing_against),
    ("Internal Server Error: /", _interrupted_by_error),
    ("System check identified no issues (0 silenced)", _interrupted_by_check),
)
"""Each with text that it holds, as looking for that is much faster."""


def _name_before(text: str, end: int) -> str:
    return text[text.rfind("\n", 0, end) + 1 : end]


def _is_line(text: str, start: int, line: str) -> bool:
    return text.startswith(line, start) and text[start + len(line) : start + len(line) + 1] in ("", "\n")
