"""The demo is what a newcomer runs first: it must give the verdicts that it declares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.network
def test_every_verdict_is_as_declared(tmp_path: Path) -> None:
    """`make demo` ends with exit code 0, which it does only when every verdict is as declared."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.demo"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, (run.stdout + run.stderr).decode()[-4000:]
    assert b"Every verdict is as declared" in run.stdout
