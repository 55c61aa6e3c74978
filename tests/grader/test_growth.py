"""Claims about memory: a large patch passes through, and is not held. Each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED_KIB = 12 << 10
"""A few pieces of a mebibyte, and what an allocator does not give back. The patches have 24 to 30 MiB."""


def grown_kib(what: str, kind: str) -> int:
    command = (sys.executable, "-m", "tests.grader.growth", what, kind)
    ran = subprocess.run(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, timeout=240, check=True, text=True
    )
    return int(ran.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "text", "lines"])
def test_extraction_is_bounded_by_the_largest_file(kind: str) -> None:
    """Extraction with proof of 24 files of a megabyte takes no more memory than that of one, but for a constant."""
    assert grown_kib("extract", kind) < ALLOWED_KIB


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "lines"])
def test_a_grading_makes_no_copy_of_a_large_patch(kind: str) -> None:
    """Grading a patch of 24 files of a megabyte takes no memory beside the submission's own, but for a constant."""
    assert grown_kib("grade", kind) < ALLOWED_KIB
