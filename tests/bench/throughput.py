"""Many gradings of a tiny task on the local provider: how fast, how much of it is the suites' time, and what leaks.

    python -m tests.bench.throughput --gradings 2000 --suite-s 0
    python -m tests.bench.throughput --gradings 100 --suite-s 5
    python -m tests.bench.throughput --gradings 2000 --folder DIR --for-s 400     again and again, until it is done

One task of our own on an image of this host's programs, one patch for each grading (all different), as many in flight
as there are cores. `--suite-s` is how long the suite computes. Efficiency is the suites' seconds over wall times
cores. With `--for-s` the run is stopped by SIGTERM after so long, and the same command goes on with it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grader.ledger import read_only
from tests.grader.groups import TASK, make_toy
from tests.grader.tasks import COMMAND, MENDED, Repo
from tests.sandbox.local.leftovers import leftovers

BUSY = "python3 -c 'import time; end = time.process_time() + {seconds}\nwhile time.process_time() < end: pass'"
EVERY_S = 2.0


@dataclass(frozen=True)
class Sample:
    """The grader's own process at one moment of a piece."""

    piece: int
    at_s: float
    open_files: int
    resident_mib: float
    children: int


def main() -> int:
    """Run, or go on with, one measurement; print it once it is complete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gradings", type=int, default=2000)
    parser.add_argument("--suite-s", type=float, default=0.0)
    parser.add_argument("--folder", type=Path, help="where the run lies, to go on with it; a temporary one by default")
    parser.add_argument("--for-s", type=float, help="stop after so many seconds")
    asked = parser.parse_args()
    if asked.folder:
        return measure(asked.folder, asked.gradings, asked.suite_s, asked.for_s)
    with tempfile.TemporaryDirectory(prefix="sandman-bench-") as folder:
        return measure(Path(folder), asked.gradings, asked.suite_s, asked.for_s)


def measure(folder: Path, gradings: int, suite_s: float, for_s: float | None) -> int:
    """One piece of the run in `folder`. 0 once all of it is done, 1 while some is left."""
    if not (folder / "preds.jsonl").exists():
        _prepare(folder, gradings, suite_s)
    state = folder / "state"
    status = _piece(folder, for_s)
    with read_only(folder / "runs/bench") as ledger:
        rows = ledger.current()
        suites = [g.evidence.phases_s.get("suite", 0.0) for g in ledger.current_gradings()]
        overheads = [g.seconds - g.evidence.phases_s.get("suite", 0.0) for g in ledger.current_gradings()]
    pieces = [json.loads(line) for line in (folder / "pieces.jsonl").read_text().splitlines()]
    samples = [Sample(**json.loads(line)) for line in (folder / "samples.jsonl").read_text().splitlines()]
    told = {
        "gradings": len(rows),
        "outcomes": {o: n for o in sorted({r.outcome for r in rows.values()}) if (n := _count(rows, o))},
        "pieces": len(pieces),
        "wall_s": round(wall := sum(piece["wall_s"] for piece in pieces), 1),
        "cores": (cores := len(os.sched_getaffinity(0))),
        "verdicts_per_s": round(len(rows) / wall, 2),
        "suite_s_median": round(statistics.median(suites), 3),
        "overhead_s_median": round(statistics.median(overheads), 3),
        "efficiency": round(sum(suites) / (wall * cores), 3),
        "grader_process": _growth(samples),
        "left_behind": leftovers(state),
        "load_at_end": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(told, indent=2))
    return status


def _count(rows: Any, outcome: object) -> int:
    return sum(row.outcome == outcome for row in rows.values())


def _prepare(folder: Path, gradings: int, suite_s: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    toy = make_toy(folder)
    command = f"{BUSY.format(seconds=suite_s)}; {COMMAND}" if suite_s else COMMAND
    recipe = {
        "instance_id": TASK,
        "python": "3",
        "source": {"kind": "directory", "path": str(toy.repo.path)},
        "install": ["true"],
        "test_cmd": command,
    }
    (folder / "recipes.jsonl").write_text(json.dumps(recipe) + "\n")
    with (folder / "preds.jsonl").open("w") as file:
        for number, patch in enumerate(_patches(toy.repo, gradings)):
            told = {"instance_id": TASK, "model_name_or_path": f"m{number}", "model_patch": patch}
            file.write(json.dumps(told) + "\n")

    # The image is built here, so that it is no part of the measurement.
    warm = [*_grade(folder, "warm", "reference"), "--concurrency", "1"]
    subprocess.run(warm, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _grade(folder: Path, run: str, patches: str) -> list[str]:
    command = [sys.executable, "-m", "grader.cli", "grade", "--taskset", str(folder / "tasks.jsonl")]
    command += ["--recipes", str(folder / "recipes.jsonl"), "--patches", patches, "--run", run]
    return [*command, "--runs-dir", str(folder / "runs"), "--state-dir", str(folder / "state")]


def _patches(repo: Repo, count: int) -> Iterator[str]:
    """Patches that mend the fault, each with a number of its own."""
    mark = 987654321
    patch = repo.diff(lambda root: (root / "sums.py").write_text(f"{MENDED}\nn = {mark}\n")).decode()
    return (patch.replace(str(mark), str(number)) for number in range(count))


def _piece(folder: Path, for_s: float | None) -> int:
    number = len((folder / "pieces.jsonl").read_text().splitlines()) if (folder / "pieces.jsonl").exists() else 0
    command = _grade(folder, "bench", str(folder / "preds.jsonl"))
    command += ["--concurrency", str(len(os.sched_getaffinity(0))), "--json"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process, (folder / "samples.jsonl").open("a") as out:
        while process.poll() is None:
            at_s = time.monotonic() - began
            if for_s is not None and at_s > for_s:
                process.send_signal(signal.SIGTERM)
                for_s = None
            try:
                out.write(json.dumps(asdict(_sample(process.pid, number, at_s))) + "\n")
            except (OSError, StopIteration):
                break  # it has ended since it was polled; until it is waited for it has a status without sizes
            time.sleep(EVERY_S)
        status = process.wait()
    with (folder / "pieces.jsonl").open("a") as pieces:
        pieces.write(json.dumps({"wall_s": time.monotonic() - began, "status": status}) + "\n")
    return 1 if status == 128 + signal.SIGTERM else status


def _sample(pid: int, piece: int, at_s: float) -> Sample:
    process = Path("/proc") / str(pid)
    resident = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
    children = (process / "task" / str(pid) / "children").read_text().split()
    return Sample(piece, at_s, len(list((process / "fd").iterdir())), int(resident.split()[1]) / 1024, len(children))


def _growth(samples: list[Sample]) -> dict[str, list[float]]:
    """Medians over the second and the last quarter of the longest piece: what grows there, leaks."""
    pieces: dict[int, list[Sample]] = {}
    for sample in samples:
        pieces.setdefault(sample.piece, []).append(sample)
    longest = max(pieces.values(), key=len)
    quarter = max(1, len(longest) // 4)
    early, late = longest[quarter : 2 * quarter] or longest, longest[-quarter:]
    return {
        name: [round(statistics.median(getattr(sample, name) for sample in part), 1) for part in (early, late)]
        for name in ("open_files", "resident_mib", "children")
    }


if __name__ == "__main__":
    raise SystemExit(main())
