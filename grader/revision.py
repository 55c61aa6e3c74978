"""Which code gave a verdict: version and commit in a checkout, version and a hash of the package's files elsewhere."""

from __future__ import annotations

import hashlib
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("execd", "grader", "sandbox", "tasksets")
"""The packages whose code a verdict depends on."""

_GIT_TIMEOUT_S = 10.0


def code_revision(root: Path | None = None) -> str:
    """Such as `0.1.0+g1a2b3c4d5e6f`, with `.dirty` after it when those packages differ from the commit, or
    `0.1.0+files.1a2b3c4d5e6f` where the code is not in a checkout of its own.

    `root` is the directory that holds the packages; None means where this one was imported from.
    """
    root = root or Path(__file__).resolve().parent.parent
    return f"{_version()}+{_commit(root) or 'files.' + files_digest(root)[:12]}"


def files_digest(root: Path) -> str:
    """SHA-256 (hex) over names and bytes of the packages' Python files under `root`."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            data = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()


def _version() -> str:
    try:
        return metadata.version("sandman-grader")
    except metadata.PackageNotFoundError:
        return "0"


def _commit(root: Path) -> str | None:
    # A `.git` of our own is asked for: an environment inside someone else's checkout is not that project's commit.
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", *PACKAGES)
    if commit is None or changes is None:
        return None
    return f"g{commit}.dirty" if changes else f"g{commit}"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
