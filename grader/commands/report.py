"""`grader report`: a run's table and denominators, and its exports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from grader.console import Exit, printable

if TYPE_CHECKING:
    from grader.ledger import Ledger


def report(
    run: Annotated[str, Parameter(help="Name of the run, or its directory.")],
    /,
    *,
    runs_dir: Annotated[Path, Parameter(help="Directory of the runs.")] = Path("runs"),
    json: Annotated[bool, Parameter(name="--json", negative="", help="The denominators as one JSON object.")] = False,
    export: Annotated[
        Path | None, Parameter(help="Directory to write the gradings into, instead of printing them.")
    ] = None,
    format: Annotated[
        Literal["jsonl", "parquet", "swebench"],
        Parameter(help="Form of the export; `swebench` is the official harness's report.json tree and run reports."),
    ] = "jsonl",
) -> int:
    """Print each grading of a run and the sums, which add up; also while the run is being written.

    A grading with two different verdicts is listed as a contradiction. With --export the gradings that count are
    written as files.
    """
    from grader import exports
    from grader.ledger import find_run, read_only

    with read_only(find_run(run, runs_dir)) as ledger:
        if export is not None:
            sys.stdout.write(f"{printable(str(exports.export(ledger, format, export)))}\n")
        elif json:
            _print_json(ledger)
        else:
            _print_table(ledger)
    return Exit.DONE


def _print_table(ledger: Ledger) -> None:
    from grader.table import print_contradictions, print_rows, print_sums

    keys = [expected.key for expected in ledger.expected()]
    current = ledger.current()
    print_rows(keys, current, sys.stdout)
    sys.stdout.write("\n")
    print_contradictions(ledger.contradictions(), sys.stdout)
    print_sums(keys, current, sys.stdout)
    revisions = dict.fromkeys(start.code_revision for start in ledger.starts())
    if len(revisions) > 1:
        sys.stdout.write(f"graded by more than one code revision: {', '.join(revisions)}\n")


def _print_json(ledger: Ledger) -> None:
    import json

    from grader.table import sums_by_model
    from grader.tally import count

    keys = [expected.key for expected in ledger.expected()]
    current = ledger.current()
    told = {
        "run": ledger.run_dir.name,
        **count(keys, current).as_json(),
        "models": {model: tally.as_json() for model, tally in sums_by_model(keys, current).items()},
        "contradictions": [{**c.key._asdict(), "outcomes": c.outcomes} for c in ledger.contradictions()],
        "code_revisions": list(dict.fromkeys(start.code_revision for start in ledger.starts())),
        "settings": ledger.identity(),
    }
    sys.stdout.write(json.dumps(told) + "\n")
