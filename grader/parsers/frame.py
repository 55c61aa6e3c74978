"""Which part of a log the official rules read, and what they refuse to read at all.

The official eval script prints a marker before and one after the test command, and what is between these is read.
Whatever the tests print can hold the same words: a log of ours has no markers, and is read whole with `own`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
APPLY_FAILED = ">>>>> Patch Apply Failed"
_TROUBLE = (APPLY_FAILED, ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
_EXIT_CODE = re.compile(r">>>>> Test Exit Code:\s*(-?\d{1,18})")

Framing = Literal["auto", "official", "own"]
"""`official`: the log of an official eval script, markers required. `own`: the output of the test command alone, where
a marker is text that tests printed. `auto`: official where any official marker stands in the log, own otherwise."""


@dataclass(frozen=True)
class Frame:
    """The part to read, and what the rest of the log says."""

    part: str
    official: bool
    unreadable: str | None = None
    patch_apply_failed: bool = False
    exit_code: int | None = None
    flags: tuple[str, ...] = ()


def frame(text: str, framing: Framing) -> Frame:
    """Find what is to be read. Pure; one pass for each marker."""
    has_marker = any(marker in text for marker in (START, END, *_TROUBLE, ">>>>> Test Exit Code:"))
    if framing == "own" or (framing == "auto" and not has_marker):
        return Frame(text, official=False, flags=(_MARKERS_OF_TESTS,) if has_marker else ())
    recorded = _EXIT_CODE.search(text)
    exit_code = int(recorded[1]) if recorded else None
    start = text.find(START)
    trouble = next((marker for marker in _TROUBLE if marker in text), None)
    if trouble is not None:
        said_at = text.find(APPLY_FAILED)
        return Frame(
            "",
            official=True,
            unreadable=f"The log says '{trouble}', so official rules read no result from it.",
            patch_apply_failed=said_at != -1 and (start == -1 or said_at < start),
            exit_code=exit_code,
        )
    absent = [marker for marker in (START, END) if marker not in text]
    if absent:
        why = f"The log lacks the marker '{absent[0]}': the tests did not start, or did not end."
        return Frame("", official=True, unreadable=why, exit_code=exit_code)
    part = text[start + len(START) :].split(START, 1)[0].split(END, 1)[0]
    repeated = text.count(START) > 1 or text.count(END) > 1
    return Frame(part, official=True, exit_code=exit_code, flags=(_MARKERS_REPEATED,) if repeated else ())


_MARKERS_OF_TESTS = "markers_in_output: the tests printed a marker of official logs; it was read as any other text."
_MARKERS_REPEATED = "markers_repeated: the log has a marker more than once, and only the part after the first was read."
