"""Python's collector of cyclic garbage, for a program that holds thousands of sandboxes.

A live sandbox is some hundred objects, and to make one takes many more that go by themselves. Set for small programs,
as Python begins, the collector looks through them after every few sandboxes; what is left in cycles can wait.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000
"""New objects less those that went again, between two looks at the young ones: those of a few hundred sandboxes."""


def expect_thousands() -> None:
    """Let the collector look less often. It is of the whole process, so a program calls it, and no library for it:
    `grader` does for its own commands. A collector that is off, or looks less often yet, is left alone."""
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG_OBJECTS:
        gc.set_threshold(YOUNG_OBJECTS, *older)
