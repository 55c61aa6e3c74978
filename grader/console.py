"""How a command meets its terminal: exit codes, one-line errors, logging to stderr, and text made safe to print.

Exit codes: 0 done, 2 bad usage or input, 3 refused, 4 infrastructure. Nothing here is configured at import.
"""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import App, CycloptsError, Parameter

if TYPE_CHECKING:
    from typing import TextIO


class Exit(IntEnum):
    """What a command's exit status means."""

    DONE = 0
    """All that was asked for has a verdict, whatever the verdicts are."""
    USAGE = 2
    """Flags or input cannot be used; nothing was started."""
    REFUSED = 3
    """Tasks were refused, or conditions contradicted what was declared."""
    INFRASTRUCTURE = 4
    """Sandboxes could not be had, or gradings ended without a verdict; the same command tries those again."""
    STDOUT_CLOSED = 141
    """The reader of our output went away (128 + SIGPIPE)."""


def launch(app: App, argv: Sequence[str] | None = None) -> int:
    """Run one command line of `app` and give its exit status. An error we know is one or two lines on stderr.

    `--verbose`, anywhere on the line, lets the log through to stderr. `GRADER_DEBUG=1` adds the traceback of an error.
    """

    @app.meta.default
    def _(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        verbose: Annotated[
            bool, Parameter(name=["--verbose"], negative="", help="Write the log to standard error.")
        ] = False,
    ) -> object:
        _configure_logging(verbose=verbose)
        return app(tokens, result_action="return_value", exit_on_error=False, print_error=False)

    tokens = list(sys.argv[1:] if argv is None else argv)
    with _guarded_streams(), _closed_stdout_is_an_exit_code() as status:
        status.append(
            _status_of(
                lambda: app.meta(tokens, result_action="return_value", exit_on_error=False, print_error=False), tokens
            )
        )
    return status[-1]


def _status_of(command: Callable[[], object], tokens: Sequence[str]) -> int:
    try:
        _refuse_what_is_no_text(tokens)
        result = command()
        sys.stdout.flush()
        return int(result) if isinstance(result, int) else Exit.DONE
    except CycloptsError as error:
        return _tell(error, Exit.USAGE)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        return _tell(_first_leaf(error), code)


def _refuse_what_is_no_text(tokens: Sequence[str]) -> None:
    """Raise `UsageError` for an argument that no ledger, log or JSON line could say again."""
    from grader.errors import UsageError

    for token in tokens:
        if re.search("[\ud800-\udfff]", token):
            shown = os.fsencode(token).decode("utf-8", "backslashreplace")
            raise UsageError(f"argument {shown} is not UTF-8, and a run records what it was asked for; rename it")


def _first_leaf(error: BaseException) -> BaseException:
    """The first error inside an exception group; the error itself when it is none."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _exit_code(error: BaseException) -> int | None:
    """The exit status for an error that we know; None for a defect, whose traceback is wanted."""
    from grader.errors import GraderError, LedgerUnwritable, OutputUnwritable
    from sandbox.errors import ImageError, ProviderUnavailable, SandboxError
    from tasksets.errors import TaskSetError

    leaf = _first_leaf(error)
    if isinstance(leaf, ProviderUnavailable | ImageError):  # the machine or an input must be mended first
        return Exit.USAGE
    if isinstance(leaf, SandboxError | LedgerUnwritable | OutputUnwritable):
        return Exit.INFRASTRUCTURE
    if isinstance(leaf, GraderError | TaskSetError):
        return Exit.USAGE
    return None


def _tell(error: BaseException, code: int) -> int:
    if os.environ.get("GRADER_DEBUG") == "1":
        traceback.print_exception(error)
    sys.stderr.write(f"error: {printable(str(error))}\n")
    return code


@contextmanager
def _closed_stdout_is_an_exit_code() -> Iterator[list[int]]:
    """Yields the list that receives the status. A closed reader ends the command quietly, as other filters do."""
    status: list[int] = []
    try:
        yield status
    except BrokenPipeError:
        _silence(sys.stdout)
        status.append(Exit.STDOUT_CLOSED)


class _Guarded:
    """A standard stream that tells `lost` of each write that the system refuses, and lets the rest through."""

    def __init__(self, stream: TextIO, lost: Callable[[TextIO, OSError], None]) -> None:
        self._stream, self._lost = stream, lost

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lost(self._stream, error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lost(self._stream, error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _guarded_streams() -> Iterator[None]:
    """For the length of a command: no character is one that stdout cannot encode, a stdout that takes nothing is an
    error that we know, and a stderr that takes nothing costs only what is said there. A closed one is as /dev/null.
    """
    _hold_closed_descriptors()
    before = sys.stdout, sys.stderr
    out, err = (stream or os.fdopen(number, "w", closefd=False) for number, stream in enumerate(before, start=1))
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = cast("TextIO", _Guarded(out, _results_lost)), cast("TextIO", _Guarded(err, _words_lost))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _hold_closed_descriptors() -> None:
    """Else the next file that is opened, the ledger say, has a closed one's number and gets what others write there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free


def _results_lost(stream: TextIO, error: OSError) -> None:
    from grader.errors import OutputUnwritable

    if isinstance(error, BrokenPipeError):
        raise error
    _silence(stream)
    raise OutputUnwritable(
        f"standard output cannot be written ({error.strerror}); mend that, then give the same command again"
    ) from error


def _words_lost(stream: TextIO, error: OSError) -> None:
    _silence(stream)


def _silence(stream: TextIO) -> None:
    """What is still buffered has nowhere to go; without this the interpreter says so once more while it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _configure_logging(*, verbose: bool) -> None:
    """Send structlog to stderr: warnings and worse, or everything with `verbose`."""
    import logging

    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(),
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def printable(text: str) -> str:
    """`text` without anything that could move a cursor or recolour a terminal; lines and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def write_table(headers: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """An aligned table. On a terminal the last column is cut to its width; elsewhere nothing is cut."""
    import shutil

    clean = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headers), *clean]) for i in range(len(headers))]
    width = shutil.get_terminal_size().columns if out.isatty() else None
    rule = ["-" * w for w in widths[:-1]] + ["-" * len(headers[-1])]
    for line in [list(headers), rule, *clean]:
        padded = "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        out.write(padded[:width] + "\n")
