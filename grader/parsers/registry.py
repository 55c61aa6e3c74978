"""Parsers by name, and `parse_log`, which frames a log, reads it and tells what it found."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from grader.errors import UsageError
from grader.parsers.django_log import read_django
from grader.parsers.frame import Frame, Framing, frame
from grader.parsers.pytest_log import (
    read_summary,
    read_summary_matplotlib,
    read_summary_or_progress,
    read_summary_seaborn,
    read_summary_with_paths,
)
from grader.parsers.sympy_log import read_sympy
from grader.parsers.tally import MAX_TESTS, Tally
from grader.parsers.text import decode
from grader.parsers.unittest_log import read_unittest
from grader.verdict import LogResults

Reader = Callable[[str], Tally]

_FAMILIES: Mapping[Reader, tuple[str, ...]] = MappingProxyType(
    {
        read_summary: ("pytest", "flask", "xarray", "astroid", "marshmallow", "pvlib", "pyvista", "sqlfluff"),
        read_summary_with_paths: ("pytest_options", "requests", "pylint", "pydicom"),
        read_summary_or_progress: ("pytest_v2", "astropy", "scikit", "sphinx"),
        read_summary_matplotlib: ("matplotlib",),
        read_summary_seaborn: ("seaborn",),
        read_django: ("django",),
        read_sympy: ("sympy",),
        read_unittest: ("unittest",),
    }
)
_READERS: Mapping[str, Reader] = MappingProxyType(
    {f"parse_log_{name}": reader for reader, names in _FAMILIES.items() for name in names}
)

_SUITE_RAN = tuple(
    (literal, re.compile(pattern, re.MULTILINE))
    for literal, pattern in (
        ("Executed ", r"Executed [1-9]\d* of \d"),
        ("TOTAL: ", r"TOTAL: [1-9]\d* (?:SUCCESS|FAILED)"),
        # Runs of digits are taken whole, from their beginning: a log of digits alone must not take quadratic time.
        (" passing", r"(?<!\d)[^\D1-9]*+[1-9]\d*+ passing"),
        ("Tests:", r"Tests:\s+[1-9]"),
        ("Test Suites:", r"Test Suites:\s+(?:(?![1-9]\d* total)\d+ \w+, )*+[1-9]\d* total"),
        ("# tests ", r"^# tests [1-9]"),
        (" spec", r"(?<!\d)[^\D1-9]*+[1-9]\d*+ specs?, \d+ failures?"),
        ("': ok", r"': ok$"),
    )
)
"""How runners of other languages count what they ran, each with text that it holds (looking for that is much faster).
Official rules ask for one of these where no test is named."""


class UnknownParser(UsageError):
    """No parser has that name."""


def known_parsers() -> tuple[str, ...]:
    """The names that a task may give, sorted. Each is known without `parse_log_` as well."""
    return tuple(sorted(_READERS))


def parse_log(name: str, log: bytes, *, framing: Framing = "own") -> LogResults:
    """Read a test log with the parser called `name`. Raises `UnknownParser`; never raises on what the log holds.

    `framing` says whose log it is. The default is the output of the test command alone, as our suite keeps it.
    """
    reader = _reader(name)
    text = decode(log)
    framed = frame(text, framing)
    if framed.unreadable is not None:
        return _results(framed, Tally(), suite_ran=False, flags=())
    tally = reader(framed.part)
    flags: tuple[str, ...] = ()
    if framed.official and not tally.words:
        tally = reader(text)
        if tally.words:
            flags = ("outside_markers: no result between the markers, so the whole log was read.",)
    suite_ran = not tally.words and any(literal in text and pattern.search(text) for literal, pattern in _SUITE_RAN)
    return _results(framed, tally, suite_ran=suite_ran, flags=flags)


def _results(framed: Frame, tally: Tally, *, suite_ran: bool, flags: tuple[str, ...]) -> LogResults:
    if tally.dropped:
        flags = (*flags, f"too_many_tests: {tally.dropped} results beyond {MAX_TESTS} test ids were not kept.")
    return LogResults(
        words=MappingProxyType(tally.words),
        conflicts=MappingProxyType(tally.conflicts),
        unreadable=framed.unreadable,
        patch_apply_failed=framed.patch_apply_failed,
        suite_ran=suite_ran,
        exit_code=framed.exit_code,
        flags=(*framed.flags, *flags),
    )


def _reader(name: str) -> Reader:
    reader = _READERS.get(name) or _READERS.get(f"parse_log_{name}")
    if reader is None:
        near = difflib.get_close_matches(f"parse_log_{name.removeprefix('parse_log_')}", _READERS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownParser(f"no log parser is called {name!r}.{hint} Known: {', '.join(known_parsers())}.")
    return reader
