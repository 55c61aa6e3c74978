from __future__ import annotations

import io
from collections import Counter

from grader.progress import Progress, Standing, stragglers
from grader.verdict import Outcome
from tests.grader.gradings import grading


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_says_what_a_waiting_person_asks() -> None:
    """Done, verdicts, no verdict, in flight, rate and time left are on one line."""
    standing = Standing(100, 40, Counter({Outcome.RESOLVED: 8, Outcome.TIMED_OUT: 2}), in_flight=3, elapsed_s=60)

    assert (
        "50/100 done, 8 resolved, 0 unresolved, 2 timed out, 0 no verdict, 3 in flight, 10.0/min, eta 5m00s"
    ) == standing.line()


def test_before_the_first_end_no_rate_is_invented() -> None:
    """Nothing is divided by nothing."""
    line = Standing(9, 0, Counter(), in_flight=2, elapsed_s=0).line()

    assert "0/9 done, 0 resolved, 0 unresolved, 0 no verdict, 2 in flight" == line


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    """Only lines of the story end with a newline; the live line is taken away before them."""
    out = Terminal()
    progress = Progress(out, 2, 0)
    progress.began("one")
    progress.draw()
    progress.say("hello \x1b[31mred")
    progress.gave_back("one")
    progress.ended(grading())
    progress.draw()
    progress.clear()

    assert 1 == out.getvalue().count("\n")
    assert "\r\x1b[2Khello \\x1b[31mred\n" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[2K")


def test_elsewhere_only_plain_lines_are_written() -> None:
    """A log file holds no control characters."""
    out = io.StringIO()
    progress = Progress(out, 2, 0)
    progress.draw()
    progress.clear()

    assert out.getvalue().isprintable() or out.getvalue().rstrip("\n").isprintable()
    assert out.getvalue().endswith("\n")


def test_the_rate_does_not_count_the_building_of_images() -> None:
    """Time before the first grading says nothing about how long the others take."""
    now = [0.0]
    progress = Progress(io.StringIO(), 3, 0, clock=lambda: now[0])
    now[0] = 600.0
    progress.began("one")
    now[0] = 660.0
    progress.ended(grading())

    assert "1.0/min, eta 2m00s" in progress.standing().line()


def test_who_holds_up_the_run_is_named_while_it_does() -> None:
    """What takes three times as long as most, and at least a minute, is a straggler; the longest is named."""
    now = [0.0]
    progress = Progress(io.StringIO(), 9, 0, clock=lambda: now[0])
    progress.began("slow__task-1 (m)")
    progress.began("slow__task-2 (m)")
    assert "waiting" not in progress.standing().line()
    now[0] = 312.0
    progress.began("new__task-3 (m)")

    assert progress.standing().line().endswith("waiting for slow__task-1 (m) (5m12s) and 1 more")
    progress.gave_back("slow__task-1 (m)")
    assert progress.standing().line().endswith("waiting for slow__task-2 (m) (5m12s)")
    assert (("a", 301.0),) == stragglers({"a": 301.0, "b": 299.0}, [100.0, 1.0, 1000.0]), "most take a hundred seconds"
    assert () == stragglers({"a": 59.0}, [0.1])
