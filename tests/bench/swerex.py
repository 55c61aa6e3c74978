"""SWE-ReX's local runtime for comparison: installed from PyPI into a throw-away environment, never a dependency."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SIDE = Path(__file__).with_name("swerex_side.py")
INSTALL_S = 240
RUN_S = 540


def install(folder: Path) -> Path | None:
    """The environment's Python, or None, having said why, when SWE-ReX cannot be had."""
    python = folder / "bin/python"
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=INSTALL_S, capture_output=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "swe-rex"]
        subprocess.run(pip, check=True, timeout=INSTALL_S, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SWE-ReX cannot be installed, so nothing is compared with it: {error}", file=sys.stderr)
        return None
    return python


def ask(python: Path, request: dict[str, Any], timeout_s: float = RUN_S) -> dict[str, Any]:
    """Time and torture it, in a process of its own. What does not answer within minutes is no answer."""
    try:
        done = subprocess.run(
            [python, "-I", SIDE], input=json.dumps(request).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=timeout_s, check=True, start_new_session=True,
        )  # fmt: skip
        answer: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"SWE-ReX gave no answer: {type(error).__name__}", file=sys.stderr)
        return {"times": {}, "cases": {}}
    return answer
