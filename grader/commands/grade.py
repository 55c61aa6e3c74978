"""`grader grade`: run a campaign, or go on with one."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from grader.commands.place import Context, Kubeconfig, Namespace, ProviderKind, StateDir, provider_flags, task_ids
from grader.console import Exit, printable

if TYPE_CHECKING:
    from grader.campaign import Campaign
    from grader.run import Finished

_WHAT = Group("What is graded", sort_key=1)
_HOW = Group("How", sort_key=2)
_CONDITIONS = Group("Declared run conditions (compared with what the probe reads; a contradiction refuses)", sort_key=4)


def grade(
    campaign: Annotated[Path | None, Parameter(help="TOML file with the same settings. Flags win over it.")] = None,
    /,
    *,
    taskset: Annotated[
        str | None, Parameter(group=_WHAT, help="A .jsonl, .json or .parquet file, or a data set's id on the hub.")
    ] = None,
    recipes: Annotated[
        Path | None, Parameter(group=_WHAT, help="JSONL of image recipes; a task with one runs on its image.")
    ] = None,
    images: Annotated[
        Path | None, Parameter(group=_WHAT, help="JSONL of `instance_id` and `image`: which image each task runs on.")
    ] = None,
    patches: Annotated[
        str | None, Parameter(group=_WHAT, help="`reference` (the default), `empty`, or a file of predictions.")
    ] = None,
    only: Annotated[
        list[str] | None, Parameter(group=_WHAT, negative="", help="Task ids, with commas or by repeating the flag.")
    ] = None,
    admission: Annotated[
        Path | None, Parameter(group=_WHAT, help="Admission file of `grader preflight`; the rest is refused by name.")
    ] = None,
    run: Annotated[
        str | None, Parameter(group=_HOW, help="Name of the run. The same name and settings again resume it.")
    ] = None,
    runs_dir: Annotated[Path | None, Parameter(group=_HOW, help="Directory of the runs; `runs` by default.")] = None,
    provider: ProviderKind = None,
    state_dir: StateDir = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    concurrency: Annotated[int | None, Parameter(group=_HOW, help="Gradings in flight at once.")] = None,
    attempts: Annotated[
        int | None, Parameter(group=_HOW, help="Sandboxes per grading, when infrastructure fails.")
    ] = None,
    dedupe: Annotated[
        bool, Parameter(group=_HOW, help="Grade the same patch for the same task once, whoever submitted it.")
    ] = True,
    fail_fast: Annotated[
        bool, Parameter(group=_HOW, negative="", help="Stop at the first grading that is not resolved.")
    ] = False,
    json: Annotated[
        bool, Parameter(name="--json", group=_HOW, negative="", help="One JSON line per grading, as each ends.")
    ] = False,
    egress: Annotated[
        Literal["denied", "open"] | None, Parameter(group=_CONDITIONS, help="Network beyond loopback; `denied`.")
    ] = None,
    cpus: Annotated[int | None, Parameter(group=_CONDITIONS, help="CPUs that tests see.")] = None,
    memory_mib: Annotated[int | None, Parameter(group=_CONDITIONS, help="Memory limit in MiB.")] = None,
    time_limit: Annotated[
        float | None, Parameter(group=_CONDITIONS, help="Seconds that a suite may run; 1800.")
    ] = None,
    hash_seed: Annotated[int | None, Parameter(group=_CONDITIONS, help="PYTHONHASHSEED.")] = None,
    time_zone: Annotated[str | None, Parameter(group=_CONDITIONS, help="TZ, such as `UTC`.")] = None,
    locale: Annotated[str | None, Parameter(group=_CONDITIONS, help="LC_ALL and LANG, such as `C.UTF-8`.")] = None,
    user: Annotated[int | None, Parameter(group=_CONDITIONS, help="Numeric user id that runs the tests.")] = None,
) -> int:
    """Grade patches for the tasks of a task set, each in a sandbox of its own, and record every verdict.

    `grader.cli` holds the text that `--help` prints. Returns the exit status.
    """
    from grader.campaign import load

    flags = {
        "taskset": taskset,
        "recipes": recipes,
        "images": images,
        "patches": patches,
        "only": task_ids(only),
        "admission": admission,
        "run": run,
        "runs_dir": runs_dir,
        "provider": provider_flags(provider, state_dir, namespace, kubeconfig, context),
        "limits": {"concurrency": concurrency, "attempts": attempts},
        "conditions": {
            "egress": egress,
            "visible_cpus": cpus,
            "memory_mib": memory_mib,
            "test_time_limit_s": time_limit,
            "hash_seed": hash_seed,
            "time_zone": time_zone,
            "locale": locale,
            "user": user,
        },
    }
    return _run(load(campaign, flags), as_json=json, dedupe=dedupe, fail_fast=fail_fast)


def _run(campaign: Campaign, *, as_json: bool, dedupe: bool, fail_fast: bool) -> int:
    import anyio

    from grader.batch import Stops
    from grader.grounds import open_grounds
    from grader.plan import key, make_plan
    from grader.progress import Progress
    from grader.revision import code_revision
    from grader.run import run_campaign
    from grader.table import print_conclusion, print_line
    from sandbox.collector import expect_thousands

    plan = make_plan(campaign)
    for note in plan.notes:
        sys.stderr.write(f"note: {printable(note)}\n")
    expect_thousands()
    revision = code_revision()
    finished = anyio.run(
        partial(
            run_campaign,
            campaign,
            plan,
            open_grounds=partial(open_grounds, campaign, revision),
            code_revision=revision,
            progress=partial(Progress, sys.stderr),
            emit=print_line if as_json else None,
            dedupe=dedupe,
            stops=Stops(breaker=True, fail_fast=fail_fast),
        )
    )
    keys = [key(job) for job in plan.jobs]
    print_conclusion(campaign, keys, finished, table=not as_json)
    if finished.output_lost is not None:
        raise finished.output_lost
    return exit_status(finished)


def exit_status(finished: Finished) -> int:
    """What a run's end means to the shell. Infrastructure goes before refusal: the same command mends the first."""
    if finished.stopped_by is not None:
        return 128 + finished.stopped_by
    if finished.asked.no_verdict:
        return Exit.INFRASTRUCTURE
    if finished.asked.refused or finished.stopped_because is not None:
        return Exit.REFUSED
    return Exit.DONE
