"""`studies compare`: two runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from grader.console import Exit, printable, write_table

if TYPE_CHECKING:
    from studies.compare import Comparison


def compare(
    run_a: Annotated[str, Parameter(help="Name or directory of the first run.")],
    run_b: Annotated[str, Parameter(help="Name or directory of the second run.")],
    /,
    *,
    runs_dir: Annotated[Path, Parameter(help="Directory of the runs.")] = Path("runs"),
    json: Annotated[bool, Parameter(name="--json", negative="", help="One JSON object.")] = False,
) -> int:
    """Compare two runs. `studies.cli` holds the text that `--help` prints. Returns the exit status."""
    from grader.ledger import find_run, read_only
    from studies.compare import compare as compare_rows

    with read_only(find_run(run_a, runs_dir)) as a, read_only(find_run(run_b, runs_dir)) as b:
        found = compare_rows(a.current(), b.current())
        differing = _differing_settings(a.identity(), b.identity())
    (_print_json if json else _print_table)(found, differing)
    return Exit.DONE


def _differing_settings(a: dict[str, object], b: dict[str, object]) -> tuple[str, ...]:
    from grader.ledger import differences

    return tuple(differences(a, b))


def _print_table(found: Comparison, differing: Sequence[str]) -> None:
    out = sys.stdout
    for difference in differing:
        out.write(f"setting: {printable(difference)}\n")
    if found.flips:
        cells = [[f.key.task_id, f.key.model, f.before.value, f.after.value] for f in found.flips]
        write_table(["task", "model", "first", "second"], cells, out)
    out.write(f"{found.both} in both runs, {found.only_a} only in the first, {found.only_b} only in the second\n")
    lost = found.no_verdict_a + found.no_verdict_b + found.no_verdict_both
    out.write(
        f"{found.both} = {found.agree} agree + {len(found.flips)} flip + {lost} no verdict"
        f" ({found.no_verdict_a} first, {found.no_verdict_b} second, {found.no_verdict_both} both)\n"
    )
    share = found.flip_share
    if share is None:
        out.write("no pair of verdicts, so nothing is said about flips\n")
        return
    out.write(
        f"flips: {share.share:.1%} of {found.pairs} pairs (95% {share.low:.1%} to {share.high:.1%});"
        f" resolved lost {found.lost}, won {found.won}, McNemar exact p = {found.p_value:.3g}\n"
    )


def _print_json(found: Comparison, differing: Sequence[str]) -> None:
    import json
    from dataclasses import asdict

    told = {
        **asdict(found),
        "flips": [{**f.key._asdict(), "before": f.before.value, "after": f.after.value} for f in found.flips],
        "pairs": found.pairs,
        "flip_share": asdict(found.flip_share) if found.flip_share else None,
        "mcnemar_p": found.p_value,
        "differing_settings": list(differing),
    }
    sys.stdout.write(json.dumps(told) + "\n")
