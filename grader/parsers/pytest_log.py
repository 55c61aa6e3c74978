"""pytest's logs: the summary lines of `-rA` and the progress lines of `-v`, by the official rules of each family.

A line counts when it begins with a status. Rules differ in what the id is: the next word, all words, or the next word
with a path in its brackets shortened. All cut off a failure's message, so no id holds " - ".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from grader.parsers.tally import Tally
from grader.parsers.text import lines
from grader.verdict import TestStatus

_STATUSES = tuple(status.value for status in TestStatus)
_COUNT_OF_SKIPS = re.compile(r"\[\d+\]")
"""`SKIPPED [3] file.py:7: why` counts skips and names no test. (PASSED keeps the like: two tasks list `[100%]`.)"""
_COLOUR = re.compile(r"\[\d+m")
_CONTROL = re.compile(r"[\x01-\x09\x0b-\x1f]+")
_MAX_LINE = 1 << 20
"""Characters. Where an id is all words of its line, a longer line names no test: its words would fill the memory."""
_MOUSE_BUTTONS = (("MouseButton.LEFT", "1"), ("MouseButton.RIGHT", "3"))


def read_summary(text: str) -> Tally:
    """pytest, flask, xarray and most others: the id is the word after the status, so a space ends it."""
    tally = Tally()
    for line in lines(text):
        if line.startswith(_STATUSES):
            _record_summary_line(tally, line)
    return tally


def read_summary_with_paths(text: str) -> Tally:
    """requests and pylint: as above, but an absolute path in an id's brackets is cut to its last part.

    Such a path differs from machine to machine. What follows the last closing bracket is dropped.
    """
    tally = Tally()
    for line in lines(text):
        if line.startswith(_STATUSES):
            _record_summary_line(tally, line, _shorten_path)
    return tally


def read_summary_matplotlib(text: str) -> Tally:
    """matplotlib: as the plain rule, with mouse buttons by number, as old versions of Python wrote them."""
    tally = Tally()
    for line in lines(text):
        if line.startswith(_STATUSES):
            for name, number in _MOUSE_BUTTONS:
                line = line.replace(name, number)  # noqa: PLW2901 - the line as the rule reads it
            _record_summary_line(tally, line)
    return tally


def read_summary_or_progress(text: str) -> Tally:
    """astropy, scikit-learn and sphinx: colour goes, ids keep their spaces, and a line may end with its status."""
    tally = Tally()
    for line in lines(_CONTROL.sub("", _COLOUR.sub("", text))):
        if len(line) > _MAX_LINE:
            continue
        if line.startswith(_STATUSES):
            words = (line.split(" - ", 1)[0] if line.startswith(TestStatus.FAILED) else line).split()
            if len(words) > 1 and not _counts_skips(words):
                tally.record(" ".join(words[1:]), words[0])
        elif line.endswith(_STATUSES):
            words = line.split()
            if len(words) > 1:
                tally.record(" ".join(words[:-1]), words[-1])
    return tally


def read_summary_seaborn(text: str) -> Tally:
    """seaborn: passed and failed tests only, from summary lines and from `id PASSED [ 50%]`."""
    tally = Tally()
    for line in lines(text):
        words = line.split(None, 2)
        if len(words) < 2:
            continue
        if line.startswith(TestStatus.FAILED):
            tally.record(words[1], TestStatus.FAILED)
        elif f" {TestStatus.PASSED} " in line:
            if words[1] == TestStatus.PASSED:
                tally.record(words[0], TestStatus.PASSED)
        elif line.startswith(TestStatus.PASSED):
            tally.record(words[1], TestStatus.PASSED)
    return tally


def _record_summary_line(tally: Tally, line: str, name: Callable[[str], str] = str) -> None:
    if line.startswith(TestStatus.FAILED):
        line = line.replace(" - ", " ")
    words = line.split(None, 2)
    if len(words) > 1 and not _counts_skips(words):
        tally.record(name(words[1]), words[0])


def _counts_skips(words: Sequence[str]) -> bool:
    return words[0] == TestStatus.SKIPPED and _COUNT_OF_SKIPS.fullmatch(words[1]) is not None


def _shorten_path(test_id: str) -> str:
    opening, closing = test_id.find("["), test_id.rfind("]")
    if not -1 < opening < closing:
        return test_id
    option = test_id[opening + 1 : closing]
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = "/" + option.rsplit("/", 1)[-1]
    return f"{test_id[:opening]}[{option}]"
