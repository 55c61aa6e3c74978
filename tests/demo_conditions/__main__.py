"""`python -m tests.demo_conditions [TIMES]`: preflight the demo set so many times, and count how often it was right."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.demo_conditions.cases import Case, cases
from tests.demo_conditions.taskset import Files, task_id, write


@dataclass(frozen=True)
class Named:
    """What preflight said of one task, and what it was to say."""

    case: Case
    kind: str
    needs: frozenset[str]
    why: str

    @property
    def is_right(self) -> bool:
        wanted = frozenset() if self.case.needs is None else frozenset({self.case.needs})
        return (self.case.kind, wanted) == (self.kind, self.needs)


@contextmanager
def listener() -> Iterator[int]:
    """A port of this machine's loopback on which connections are taken."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket) -> None:
    while True:
        try:
            server.accept()[0].close()
        except OSError:
            return


def preflight(folder: Path, *, concurrency: int = 2) -> list[Named]:
    """Write the set into `folder`, preflight it once with `--diagnose`, and hold what was said against the cases."""
    with listener() as port:
        found = cases(port)
        files = write(folder, found, concurrency=concurrency)
        entries = _entries(files)
    return [
        Named(case, entry["kind"], frozenset(n["condition"] for n in entry["needs"]), entry["why"])
        for case in found
        for entry in [entries[task_id(case)]]
    ]


def _entries(files: Files) -> dict[str, dict[str, object]]:
    command = [sys.executable, "-m", "grader.cli", "preflight", str(files.campaign), "--diagnose", "--json"]
    command += ["--slow-share", "0.15", "--repeats", "3"]
    with (files.runs.parent / "story.txt").open("wb") as story:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=story, check=False)
    if ended.returncode != 3:  # some tasks are not admitted, and none was left without a class
        told = (files.runs.parent / "story.txt").read_text(errors="replace")
        raise SystemExit(f"grader preflight ended with status {ended.returncode}:\n{told[-4000:]}")
    entries = [json.loads(line) for line in ended.stdout.splitlines()]
    return {entry["task_id"]: entry for entry in entries}


def main() -> int:
    """Preflight, print how often each task was named rightly, and return 0 when it always was."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    right: Counter[str] = Counter()
    said: dict[str, Named] = {}
    for number in range(1, times + 1):
        folder = Path("runs/preflight-demo") / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        began = time.monotonic()
        for named in preflight(folder):
            said[named.case.name] = named
            right[named.case.name] += named.is_right
            if not named.is_right:
                print(f"run {number}: {named.case.name} is {named.kind} {set(named.needs)}: {named.why}", flush=True)
        print(f"run {number} of {times} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for name, named in said.items():
        wanted = named.case.kind + (f" ({named.case.needs})" if named.case.needs else "")
        print(f"{name:<10} {wanted:<32} {right[name]} of {times}   {named.why}")
    return 0 if all(right[name] == times for name in said) else 1


if __name__ == "__main__":
    raise SystemExit(main())
