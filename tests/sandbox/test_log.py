"""Claims about `sandbox.log`."""

from __future__ import annotations

import pytest
import structlog

from sandbox.log import Log


def test_a_program_that_configures_nothing_has_its_stdout_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """A warning is a line on stderr; what is no trouble is not told."""
    Log("room").info("made", id="sb-1")
    Log("room").warning("late", id="sb-2")

    out, err = capsys.readouterr()
    assert "" == out
    assert err.endswith(" level=warning event=late id=sb-2\n")
    assert 1 == err.count("\n")


def test_a_traceback_has_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a program configures nothing, what a defect held in its hands is not on the screen."""

    def fail() -> None:
        patch = f"secret {1 + 1}"
        raise ValueError(len(patch))

    try:
        fail()
    except ValueError:
        Log("room").error("a grading broke off", exc_info=True)

    out, err = capsys.readouterr()
    assert ("", False) == (out, "secret 2" in err)
    assert "ValueError: 8" in err


def test_a_program_that_configures_structlog_gets_every_line() -> None:
    """Level and form are its own."""
    with structlog.testing.capture_logs() as told:
        Log("room").info("made", id="sb-1")
    assert [{"event": "made", "id": "sb-1", "log_level": "info"}] == told
