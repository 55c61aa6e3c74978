"""`make bench`: measure, print, and write docs/benchmarks.md with the command that made it."""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.bench import execd, grading, local, probe
from tests.bench.measure import Measurement

PAGE = Path("docs/benchmarks.md")


def main() -> None:
    """Measure everything and write the page."""
    with tempfile.TemporaryDirectory(prefix="sandman-bench-") as folder:
        rows = asyncio.run(local.measure(Path(folder) / "state"))
        rows += asyncio.run(execd.measure(Path(folder)))
        rows += asyncio.run(probe.measure(Path(folder) / "state"))
        rows += grading.measure(Path(folder))
    table = "\n".join(_table(rows))
    print(table)
    PAGE.write_text(_page(table), encoding="utf-8")


def _table(rows: Iterable[Measurement]) -> Iterable[str]:
    yield "| what | median ms | worst ms | times | beside, in the same run | ratio | aim |"
    yield "| --- | ---: | ---: | ---: | --- | ---: | --- |"
    for each in rows:
        beside = f"{each.beside}: {each.beside_ms:.2f} ms" if each.beside_ms else ""
        ratio = f"{each.ratio:.2f}" if each.ratio else ""
        figures = f"{each.median_ms:.2f} | {each.worst_ms:.2f} | {each.times}"
        yield f"| {each.name} | {figures} | {beside} | {ratio} | {each.aim} |"


def _page(table: str) -> str:
    when = datetime.datetime.now(datetime.UTC).date().isoformat()
    load = os.getloadavg()[0]
    return (
        "# Benchmarks\n\n"
        f"Written by `make bench` on {when}: {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, load {load:.1f} at the end.\n"
        "Medians; what a figure is measured against was measured in the same run on the same machine.\n\n"
        f"{table}\n"
    )


if __name__ == "__main__":
    main()
