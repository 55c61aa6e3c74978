"""A run as a person reads it: one line per grading, and sums that add up."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Sequence
from typing import TextIO

from grader.campaign import Campaign
from grader.console import printable, write_table
from grader.ledger import Contradiction, Key, Row, read_only, run_directory
from grader.record import Grading
from grader.run import Finished
from grader.tally import REFUSALS, Tally, count
from grader.verdict import Cause, Outcome


def print_line(grading: Grading) -> None:
    """The whole record as one JSON line on stdout, at once."""
    line = grading.model_dump_json()
    if codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8":
        line = json.dumps(json.loads(line))  # what cannot be encoded is spelt as JSON spells it
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_rows(keys: Sequence[Key], current: dict[Key, Row], out: TextIO) -> None:
    """A table of the gradings that were asked for, in that order."""
    cells = [_cells(key, current.get(key)) for key in keys]
    write_table(["task", "model", "outcome", "reward", "seconds", "why"], cells, out)


def _cells(key: Key, row: Row | None) -> list[str]:
    if row is None:
        return [key.task_id, key.model, "not run", "-", "-", ""]
    outcome = row.outcome.value.replace("_", " ")
    if row.cause is not None:
        outcome += f" ({row.cause.value.replace('_', ' ')})"
    reward = "-" if row.reward is None else f"{row.reward:g}"
    # A flag begins with its name; what follows the colon is in the record.
    why = [*row.reasons[:1], *(f"[{flag.partition(':')[0]}]" for flag in row.flags)]
    return [key.task_id, key.model, outcome, reward, f"{row.seconds:.1f}", " ".join(why)]


def sums_by_model(keys: Sequence[Key], current: dict[Key, Row]) -> dict[str, Tally]:
    """The denominators of each model, in the order of asking."""
    models = dict.fromkeys(key.model for key in keys)
    return {model: count([key for key in keys if key.model == model], current) for model in models}


def print_sums(keys: Sequence[Key], current: dict[Key, Row], out: TextIO) -> None:
    """The denominators: of each model when there are several, then of all."""
    by_model = sums_by_model(keys, current)
    if len(by_model) > 1:
        for model, tally in by_model.items():
            out.write(f"{printable(model)}: {tally.sentence()}\n")
    out.write(count(keys, current).sentence() + "\n")


def print_contradictions(contradictions: Sequence[Contradiction], out: TextIO) -> None:
    """Keys with different verdicts, one line each."""
    for found in contradictions:
        said = " and ".join(found.outcomes)
        out.write(
            printable(f"contradiction: {found.key.task_id} ({found.key.model}) was {said}; the newest counts") + "\n"
        )


def print_conclusion(campaign: Campaign, keys: Sequence[Key], finished: Finished, *, table: bool) -> None:
    """The end of `grader grade`: its table on stdout, its sums and what to do next on stderr."""
    with read_only(run_directory(campaign.runs_dir, campaign.run)) as ledger:
        current = ledger.current()
        contradictions = ledger.contradictions()
    try:
        if table and finished.stopped_by is None:
            print_rows(keys, current, sys.stdout)
            sys.stdout.flush()
    finally:
        print_contradictions(contradictions, sys.stderr)
        print_sums(keys, current, sys.stderr)
        if finished.run.expected > finished.asked.expected:
            sys.stderr.write(f"the whole run {campaign.run}: {finished.run.sentence()}\n")
        for sentence in _next_steps(keys, current, finished):
            sys.stderr.write(sentence + "\n")


def _next_steps(keys: Sequence[Key], current: dict[Key, Row], finished: Finished) -> list[str]:
    steps = []
    lost = [current[k] for k in keys if k in current and current[k].outcome is Outcome.NO_VERDICT]
    for cause in Cause:
        row = next((row for row in lost if row.cause is cause), None)
        if row is not None:
            why = printable(row.reasons[0] if row.reasons else "").strip() or "no reason was recorded"
            steps.append(f"no verdict ({cause.value.replace('_', ' ')}), such as {row.key.task_id}: {why}")
    if finished.stopped_by is not None or any(row.cause not in REFUSALS for row in lost):
        steps.append("the same command again goes on with those that have no verdict")
    return steps
