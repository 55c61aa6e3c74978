"""`grader regrade`: judge a saved test log again, without a sandbox."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from grader.console import Exit, write_table

if TYPE_CHECKING:
    from grader.regrade import Regraded


def regrade(
    *,
    taskset: Annotated[str, Parameter(help="A JSONL, JSON or Parquet file, or the id of a data set on the hub.")],
    task_id: Annotated[str, Parameter(help="The task whose lists of tests the log is held against.")],
    log: Annotated[Path, Parameter(help="The file that holds what the tests printed.")],
    parser: Annotated[str | None, Parameter(help="Read the log with this parser, not with the task's own.")] = None,
    exit_code: Annotated[int | None, Parameter(help="The test command's exit status, where it is known.")] = None,
    framing: Annotated[
        Literal["auto", "official", "own"],
        Parameter(
            help="Whose log it is. `official`: the official harness's, read between its markers. `own`: what the test "
            "command printed, and nothing else. `auto`: official if it holds any marker."
        ),
    ] = "auto",
    json_line: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.")] = False,
) -> int:
    """Judge a saved test log by the official rules."""
    from grader.regrade import regrade as judged_again

    told = judged_again(taskset, task_id, log, parser=parser, exit_code=exit_code, framing=framing)
    if json_line:
        sys.stdout.write(json.dumps(told.as_json()) + "\n")
    else:
        write_table(("WHAT", "FOUND"), _rows(told), sys.stdout)
    return Exit.REFUSED if told.judgement.cause is not None else Exit.DONE


def _rows(told: Regraded) -> list[tuple[str, str]]:
    judgement = told.judgement
    lists = (("FAIL_TO_PASS", judgement.fail_to_pass), ("PASS_TO_PASS", judgement.pass_to_pass))
    return [
        ("task", told.task_id),
        ("outcome", judgement.outcome if judgement.cause is None else f"{judgement.outcome} ({judgement.cause})"),
        *((name, f"{len(tests.success)} succeeded, {len(tests.failure)} failed") for name, tests in lists),
        ("tests in the log", str(len(judgement.statuses))),
        *(("reason", reason) for reason in judgement.reasons),
        *(("flag", flag) for flag in judgement.flags),
    ]
