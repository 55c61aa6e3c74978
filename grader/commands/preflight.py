"""`grader preflight`: which tasks may enter a campaign under its own configuration."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from grader.commands.place import Context, Kubeconfig, Namespace, ProviderKind, StateDir, provider_flags, task_ids
from grader.console import Exit, printable, write_table
from grader.errors import UsageError

if TYPE_CHECKING:
    from grader.campaign import Campaign
    from grader.preflight.admission_file import Admissions, Entry
    from grader.preflight.run import Preflight, Request

_WHAT = Group("What is tried", sort_key=1)
_HOW = Group("How", sort_key=2)


@dataclass(frozen=True)
class _Output:
    file: Path | None
    as_json: bool


def preflight(
    campaign: Annotated[Path | None, Parameter(help="TOML file of the campaign, as `grader grade` takes it.")] = None,
    /,
    *,
    taskset: Annotated[
        str | None, Parameter(group=_WHAT, help="A .jsonl, .json or .parquet file, or a data set's id on the hub.")
    ] = None,
    recipes: Annotated[Path | None, Parameter(group=_WHAT, help="JSONL of image recipes.")] = None,
    images: Annotated[Path | None, Parameter(group=_WHAT, help="JSONL of `instance_id` and `image`.")] = None,
    only: Annotated[
        list[str] | None, Parameter(group=_WHAT, negative="", help="Task ids, with commas or by repeating the flag.")
    ] = None,
    repeats: Annotated[
        int, Parameter(group=_WHAT, help="Gradings of the reference, and of the empty patch, for each task.")
    ] = 3,
    diagnose: Annotated[
        bool, Parameter(group=_WHAT, negative="", help="Run failing references again with one condition changed.")
    ] = False,
    vary: Annotated[
        list[str] | None,
        Parameter(group=_WHAT, negative="", help="Conditions that --diagnose may change; all when left out."),
    ] = None,
    mutants: Annotated[
        int, Parameter(group=_WHAT, help="Parts of each admitted reference to take out, to find weak tests.")
    ] = 0,
    slow_share: Annotated[
        float, Parameter(group=_WHAT, help="Share of the tests' time limit that the reference may take.")
    ] = 0.5,
    run: Annotated[
        str | None,
        Parameter(group=_HOW, help="Name of the preflight's own run; CAMPAIGN's with `.preflight` after it."),
    ] = None,
    runs_dir: Annotated[Path | None, Parameter(group=_HOW, help="Directory of the runs; `runs` by default.")] = None,
    out: Annotated[
        Path | None, Parameter(group=_HOW, help="The admission file; `admission.jsonl` beside the ledger by default.")
    ] = None,
    provider: ProviderKind = None,
    state_dir: StateDir = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    concurrency: Annotated[int | None, Parameter(group=_HOW, help="Gradings in flight at once.")] = None,
    json: Annotated[
        bool, Parameter(name="--json", group=_HOW, negative="", help="One JSON line per task instead of the table.")
    ] = False,
) -> int:
    """Grade reference and empty patch of each task several times, and write which tasks may enter.

    `grader.cli` holds the text that `--help` prints. Returns the exit status.
    """
    from grader.campaign import load
    from grader.preflight.run import Request

    flags = {
        "taskset": taskset,
        "recipes": recipes,
        "images": images,
        "only": task_ids(only),
        "run": run,
        "runs_dir": runs_dir,
        "provider": provider_flags(provider, state_dir, namespace, kubeconfig, context),
        "limits": {"concurrency": concurrency},
    }
    loaded = load(campaign, flags)
    if run is None:
        loaded = loaded.model_copy(update={"run": f"{loaded.run}.preflight"})
    request = Request(repeats, slow_share, _varied(diagnose=diagnose, vary=vary), mutants)
    return _run(loaded, _checked(request), _Output(out, json))


def _varied(*, diagnose: bool, vary: list[str] | None) -> tuple[str, ...]:
    from grader.preflight.variations import NAMES

    if vary is None:
        return NAMES if diagnose else ()
    names = tuple(name for text in vary for name in text.replace(",", " ").split())
    for name in names:
        if name not in NAMES:
            raise UsageError(f"--vary: {name!r} is no condition that can be changed; known are {', '.join(NAMES)}")
    if not diagnose:
        raise UsageError("--vary says what --diagnose may change; add --diagnose, or leave --vary out")
    return names


def _checked(request: Request) -> Request:
    if request.repeats < 1:
        raise UsageError(f"--repeats is {request.repeats}; give 1 or more, 3 or more to find flaky tests")
    if not 0 < request.slow_share <= 1:
        raise UsageError(f"--slow-share is {request.slow_share:g}; give a share above 0 and up to 1")
    if request.mutants < 0:
        raise UsageError(f"--mutants is {request.mutants}; give 0 or more")
    return request


def _run(campaign: Campaign, request: Request, output: _Output) -> int:
    import anyio

    from grader.grounds import open_grounds
    from grader.ledger import run_directory
    from grader.preflight.admission_file import write
    from grader.preflight.run import Stopped, run_preflight
    from grader.progress import Progress
    from grader.revision import code_revision
    from sandbox.collector import expect_thousands

    expect_thousands()
    revision = code_revision()
    file = output.file or run_directory(campaign.runs_dir, campaign.run) / "admission.jsonl"
    try:
        done = anyio.run(
            partial(
                run_preflight,
                campaign,
                request,
                open_grounds=lambda of: partial(open_grounds, of, revision),
                code_revision=revision,
                progress=partial(Progress, sys.stderr),
                say=lambda told: print(printable(told), file=sys.stderr, flush=True),
                earlier=file,
            )
        )
    except Stopped as stopped:
        sys.stderr.write("stopped; no admission file was written. The same command again goes on from here\n")
        return 128 + stopped.by
    write(file, done.file)
    _print(done.admissions, as_json=output.as_json)
    others = f", beside {len(done.kept)} tasks that it had before" if done.kept else ""
    sys.stderr.write(printable(f"written: {file}{others}; `grader grade --admission` takes it\n"))
    return _status(done)


def _status(done: Preflight) -> int:
    if done.infrastructure:
        return Exit.INFRASTRUCTURE
    return Exit.DONE if all(entry.admitted for entry in done.admissions.entries) else Exit.REFUSED


def _print(admissions: Admissions, *, as_json: bool) -> None:
    from grader.preflight.admission_file import as_json as line_of

    if as_json:
        for entry in admissions.entries:
            sys.stdout.write(line_of(entry) + "\n")
    else:
        header = ["task", "class", "suite s", "sandbox h", "why"]
        write_table(header, [_cells(entry) for entry in admissions.entries], sys.stdout)
    sys.stdout.flush()
    sys.stderr.write(_sum(admissions) + "\n")


def _cells(entry: Entry) -> list[str]:
    suite = "-" if entry.suite_s is None else f"{entry.suite_s:.1f}"
    why = "; ".join(word for word in (entry.why, *entry.hints) if word)
    return [entry.task_id, entry.kind.replace("_", " "), suite, f"{entry.sandbox_hours:.4f}", why]


def _sum(admissions: Admissions) -> str:
    """The denominators, every class that occurs, and the cost."""
    counts = Counter(entry.kind for entry in admissions.entries)
    told = " + ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(counts.items()))
    hours = sum(entry.sandbox_hours for entry in admissions.entries)
    tasks = len(admissions.entries)
    return f"{tasks} tasks = {told}; {hours:.3f} sandbox-hours, {hours / max(tasks, 1):.4f} per task"
