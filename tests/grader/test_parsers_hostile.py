"""Laws that hold for any log: no parser raises, order of unrelated lines is no matter, time grows with length."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.parsers import known_parsers, parse_log
from grader.parsers.frame import Framing
from grader.parsers.tally import MAX_TESTS, Tally

FAMILIES = ("pytest", "pytest_options", "pytest_v2", "matplotlib", "seaborn", "django", "sympy", "unittest")
FRAMINGS: tuple[Framing, ...] = ("auto", "official", "own")
PIECES = [
    *(b"PASSED", b"FAILED", b"SKIPPED", b"ERROR", b"XFAIL", b"ERROR:", b"FAIL:", b"ok", b" ... ", b" ... ok", b" - "),
    *(
        b"t.py::a[",
        b"]",
        b"/tmp/x",
        b"test_a (m.C)",
        b".py:",
        b"____ ",
        b" ",
        b"\n",
        b"\r\n",
        b"\x1b[31m",
        b"\t",
        b"[3]",
    ),
    *(b">>>>> Start Test Output", b">>>>> End Test Output", b">>>>> Test Exit Code: 1", b">>>>> Patch Apply Failed"),
    *(b"Testing against Django installed in ", b" silenced).\nok\n", b"Internal Server Error: /", b"7 passing"),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(known_parsers()),
    st.sampled_from(FRAMINGS),
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=8)), max_size=40).map(b"".join),
)
def test_no_log_makes_a_parser_raise(name: str, framing: Framing, log: bytes) -> None:
    """Any bytes give results, which can be stored as UTF-8 and whose conflicts are among their ids."""
    results = parse_log(name, log, framing=framing)
    assert all(test_id.encode() and word.encode() for test_id, word in results.words.items() if test_id)
    assert results.conflicts.keys() <= results.words.keys()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(("pytest", "pytest_options", "pytest_v2", "matplotlib")), st.randoms(use_true_random=False))
def test_unrelated_lines_may_come_in_any_order(name: str, rnd: random.Random) -> None:
    """Results of different tests, and lines that are no result, can be shuffled without changing what is read."""
    lines = [f"{word} t.py::test_{i}[{i}]" for i, word in enumerate(("PASSED", "FAILED", "ERROR", "XFAIL", "SKIPPED"))]
    lines += ["no result", "E   assert PASSED == 1", "---- Captured stdout call ----"]
    shuffled = rnd.sample(lines, len(lines))
    expected = dict(parse_log(name, "\n".join(lines).encode()).words)
    assert expected == dict(parse_log(name, "\n".join(shuffled).encode()).words)
    assert 5 == len(expected)


HOSTILE = {
    "blank lines": b"\n",
    "short lines": b"a\n",
    "statuses in one line": b"PASSED a ",
    "dots": b" ... ",
    "headings": b"_ .py: ",
    "brackets": b"[",
    "digits": b"1",
    "jest counts": b"Test Suites: 1 a, ",
    "karma counts": b"Executed 1 of ",
    "tests counts": b"Tests:   ",
    "interruptions on one line": b"a ... Internal Server Error: /",
    "interruptions on many lines": b"a ... Internal Server Error: /\n",
    "an end that never comes": b"a ... Testing against Django installed in \n",
    "checks": b" ... System check identified no issues (0 silenced)",
    "parentheses": b"a (b) ",
    "colours": b"\x1b[31m",
    "carriage returns": b"\r",
    "start markers": b">>>>> Start Test Output",
    "line separators": "\u2028\x85\u00e9".encode(),
}


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE.keys())
def test_time_grows_with_length_and_no_faster(unit: bytes) -> None:
    """A log that is 8 times as long takes no more than about 8 times as long: a square law would take 64 times."""

    def seconds(name: str, size: int) -> float:
        log = unit * (size // len(unit))
        took = []
        for _ in range(2):
            began = time.process_time()
            parse_log(name, log, framing="auto")
            took.append(time.process_time() - began)
        return min(took)

    slow = []
    for name in FAMILIES:
        small, large = seconds(name, 16 * 1024), seconds(name, 128 * 1024)
        if large > max(24 * small, 0.1):
            slow.append((name, small, large))
    assert [] == slow


@pytest.mark.slow
def test_a_log_of_64_mib_is_read() -> None:
    """The largest log that a grading keeps is read, all of its tests in it."""
    log = (b"x" * 1_000 + b"\n") * (64 * 1024) + b"PASSED t.py::a\n"
    assert {"t.py::a": "PASSED"} == dict(parse_log("pytest", log).words)


def test_ids_beyond_a_bound_are_counted_and_not_kept() -> None:
    """A log cannot fill the memory with ids; known ids still take new words."""
    tally = Tally()
    for number in range(MAX_TESTS):
        tally.record(str(number), "PASSED")
    tally.record("one more", "PASSED")
    tally.record("0", "FAILED")
    assert (MAX_TESTS, 1, "FAILED") == (len(tally.words), tally.dropped, tally.words["0"])
