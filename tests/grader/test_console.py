from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.console import printable, write_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text())
def test_nothing_printed_can_move_a_cursor(text: str) -> None:
    """Whatever a sandbox wrote, only printable characters, lines and tabs reach the terminal."""
    assert all(c.isprintable() or c in "\n\t" for c in printable(text))


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "Zs"], exclude_characters="\u00a0")))
def test_plain_text_is_printed_as_it_is(text: str) -> None:
    """Ordinary words of any script are left alone."""
    kept = "".join(c for c in text if c.isprintable())

    assert kept == printable(kept)


def test_a_pipe_gets_whole_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut where no terminal limits it, and one row is one line."""
    monkeypatch.setenv("COLUMNS", "20")
    out = io.StringIO()

    write_table(["task", "why"], [["a" * 30, "first\nsecond " + "x" * 50]], out)

    assert 3 == len(out.getvalue().splitlines())
    assert out.getvalue().splitlines()[-1] == "a" * 30 + "  first second " + "x" * 50


def test_a_terminal_gets_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table stays a table on a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()

    write_table(["task", "why"], [["a" * 10, "x" * 50]], out)

    assert max(len(line) for line in out.getvalue().splitlines()) == 20
