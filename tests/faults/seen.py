"""What each row of the matrix saw, for the table: `$FAULTS_SEEN` names a file that gets a JSON line for each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grader.record import Grading
from grader.verdict import Outcome

VARIABLE = "FAULTS_SEEN"
PROVIDERS = ("local", "kubernetes")


def note(fault: str, provider: str, rows: Sequence[Grading], *, then: bool = False) -> None:
    """Keep what became of the three patches, or that none was graded. `then`: the fault had passed, and the same
    command was given again."""
    if not (file := os.environ.get(VARIABLE)):
        return
    told = {
        "fault": fault,
        "provider": provider,
        "then": then,
        "of": len(rows),
        "lost": sum(row.outcome is Outcome.NO_VERDICT for row in rows),
        "attempts": sorted({row.evidence.attempts for row in rows}),
        "causes": sorted({cause_of(text) for row in rows for text in row.evidence.failures}),
    }
    with Path(file).open("a") as out:
        out.write(json.dumps(told) + "\n")


def cause_of(failure: str) -> str:
    """The error's class and what stands for its cause, without names of sandboxes."""
    kind, _, words = failure.partition(": ")
    for pattern in (r"cause: ([^;]+);", r"is lost \((\w+)\)", r"phase (\w+)", r"(\[Errno \d+\] [\w ]+)"):
        if found := re.search(pattern, words):
            return f"{kind} ({found[1]})"
    return kind


def table(lines: Iterable[str]) -> str:
    """The matrix in Markdown: what became of the three patches, by fault and provider."""
    cells: dict[str, dict[str, list[str]]] = {}
    for told in map(json.loads, lines):
        cells.setdefault(told["fault"], {}).setdefault(told["provider"], []).append(_cell(told))
    rows = ["| fault | local | Kubernetes |", "| --- | --- | --- |"]
    for fault, by_provider in cells.items():
        rows.append(f"| {fault} | {' | '.join('; '.join(by_provider.get(one, ['not run'])) for one in PROVIDERS)} |")
    return "\n".join(rows)


def _cell(told: dict[str, Any]) -> str:
    if told["then"]:
        return "then, by the same command, each right"
    if not told["of"]:
        return "refused before anything was graded"
    verdicts = f"{told['lost']} of {told['of']} without a verdict" if told["lost"] else "each right"
    sandboxes = " or ".join(map(str, told["attempts"]))
    causes = f": {', '.join(told['causes'])}" if told["causes"] else ""
    return f"{verdicts}, {sandboxes} sandbox{'' if sandboxes == '1' else 'es'} each{causes}"
