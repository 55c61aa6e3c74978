"""`studies`: questions about runs that are recorded. Ledgers are opened to read; nothing is graded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

_INTERRUPTED = 130
_COMPARE = """Compare the verdicts of two runs on the gradings that both have: agreement, flips, and how sure that is.

Pairs are matched by task, model and patch. What has no verdict is counted apart.
"""


def build_app() -> App:
    """The command tree."""
    from cyclopts import App

    app = App(name="studies", help="Ask what recorded runs say.", version_flags=[])
    app.command("studies.command:compare", help=_COMPARE)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `studies` command; gives the exit status. A Ctrl-C while it imports is one as well."""
    try:
        from grader.console import launch

        return launch(build_app(), argv)
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main())
