"""Old and new test runners in virtual environments of their own, made once from the package registry and kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sandman-grader-tests"


@dataclass(frozen=True)
class Environment:
    """A runner's version, the Python it runs on, and the packages that make it up."""

    name: str
    version: str
    python: str
    packages: tuple[str, ...]


PYTESTS = (
    Environment("pytest", "4.6", "3.6", ("pytest==4.6.11", "pytest-xdist==1.34.0", "execnet==1.9.0")),
    Environment("pytest", "6", "3.9", ("pytest==6.2.5", "pytest-xdist==2.5.0")),
    Environment("pytest", "7", "3.9", ("pytest==7.4.4", "pytest-xdist==3.6.1", "pytest-subtests==0.11.0")),
    Environment("pytest", "9", "3.12", ("pytest>=9,<10", "pytest-xdist==3.8.0")),
)


def find_python(version: str) -> str | None:
    """A Python of this line: pyenv's, or one on the PATH."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(root.glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def python_with(wanted: Environment) -> str:
    """The Python of the environment, made now if need be. Skips, saying so, where it cannot be made."""
    base = find_python(wanted.python)
    if base is None:
        pytest.skip(f"no Python {wanted.python} on this machine")
    place = CACHE / f"{wanted.name}-{wanted.version}-python-{wanted.python}"
    python = place / "bin/python"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").exists():
            shutil.rmtree(place, ignore_errors=True)
            _run(wanted, base, "-m", "venv", str(place))
            if wanted.python == "3.6":  # its own pip is too old for the wheels
                _run(wanted, str(python), "-m", "pip", "install", "-q", "pip==21.3.1")
            _run(wanted, str(python), "-m", "pip", "install", "-q", *wanted.packages)
            (place / "made").touch()
    return str(python)


def _run(wanted: Environment, *command: str) -> None:
    ran = subprocess.run(command, capture_output=True, check=False, timeout=280)
    if ran.returncode != 0:
        sys.stderr.write(ran.stderr.decode(errors="replace"))
        pytest.skip(f"{wanted.name} {wanted.version} cannot be installed here (is there a package registry?)")
