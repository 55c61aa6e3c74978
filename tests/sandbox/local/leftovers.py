"""What a local provider left on this machine, found without asking it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def leftovers(state_dir: Path) -> list[str]:
    """A line per process, mount or directory that still carries the name of `state_dir`'s sandboxes."""
    return [*_directories(state_dir), *_processes(state_dir), *_mounts(state_dir)]


def _directories(state_dir: Path) -> list[str]:
    run = state_dir / "run"
    instances = sorted(run.iterdir()) if run.is_dir() else []
    sandboxes = [path for instance in instances if instance.is_dir() for path in sorted(instance.glob("sb-*"))]
    return [*(f"sandbox {path}" for path in sandboxes), *(f"instance {path}" for path in instances)]


def _processes(state_dir: Path) -> list[str]:
    """bubblewraps, by their arguments, and what is inside, by its mounts."""
    wanted = str(state_dir).encode()
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            arguments = (process / "cmdline").read_bytes()
            if b"bwrap" in arguments and wanted in arguments:
                found.append(f"sandbox process {process.name}: bubblewrap")
            elif b"overlay / " in (mounts := (process / "mounts").read_bytes()) and wanted in mounts:
                found.append(f"sandbox process {process.name}: {arguments[:80]!r}")
    return found


def cgroups(state_dir: Path) -> list[Path]:
    """The cgroups of the sandboxes that are there now, whether or not their owner lives."""
    notes = (state_dir / "run").glob("*/*/cgroup")
    return [Path(path) for note in notes for path in note.read_text().splitlines()]


def _mounts(state_dir: Path) -> list[str]:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [f"mount {line}" for line in mounts if str(state_dir / "run") in line]
