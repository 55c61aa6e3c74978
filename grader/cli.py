"""`grader`: the command line. It mounts the commands; each is imported when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

_INTERRUPTED = 130

_GRADE = """Grade patches for the tasks of a task set. Run again to resume.

Each patch is graded in a sandbox of its own. The run's ledger and logs lie in RUNS-DIR/RUN. The same command again goes
on where it stopped: what has a verdict is not graded again, what has none is. Ctrl-C stops cleanly.

Exit status: 0 every grading has a verdict; 2 bad flags or input; 3 tasks were refused or conditions contradicted;
4 infrastructure left gradings without a verdict; 129, 130 or 143 stopped by a signal.
"""

_PREFLIGHT = """Find out which tasks may enter a campaign, under its own configuration.

The reference and the empty patch of each task are graded several times, each in a sandbox of its own. The table says
which class each task is of and what it cost; the admission file holds the same, with the ledger rows that prove it, for
`grader grade --admission`. The same command again goes on where it stopped.

Exit status: 0 every task is admitted; 2 bad flags or input; 3 some are not; 4 infrastructure left some without a class;
129, 130 or 143 stopped by a signal.
"""

_DOCTOR = """Look at this machine or a cluster as a campaign will use it, and say what to mend.

Each line is one thing: ok, a note, a warning (it works, less well than it could), an error (mend it first) or a failure
(infrastructure, which may pass). With --image, sandboxes of that image are made and deleted.

Exit status: 0 nothing stands in the way; 2 something is to be mended; 4 the infrastructure failed.
"""


def build_app() -> App:
    """The command tree. Commands are named by import path, so that `--help` imports none of them."""
    from cyclopts import App

    app = App(
        name="grader",
        help="Grade code patches in sandboxes that were never used before, and say why each verdict can be believed.",
        version=_version,
    )
    app.command("grader.commands.grade:grade", help=_GRADE)
    app.command("grader.commands.preflight:preflight", help=_PREFLIGHT)
    app.command("grader.commands.report:report", help="Print a run's verdicts and denominators, or export them.")
    app.command("grader.commands.regrade:regrade", help="Judge a saved test log again, without a sandbox.")
    app.command("grader.commands.tasks:tasks_app", name="tasks", help="List, show and check the tasks of a task set.")
    app.command("grader.commands.images:images_app", name="images", help="Build, list, export and remove images.")
    app.command("grader.commands.doctor:doctor", help=_DOCTOR)
    app.command("grader.commands.janitor:janitor", help="Delete what killed runs left behind, and nothing else.")
    return app


def _version() -> str:
    from grader.revision import code_revision

    return f"grader {code_revision()}"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `grader` command; gives the exit status. A Ctrl-C while it imports is one as well."""
    try:
        from grader.console import launch

        return launch(build_app(), argv)
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main())
