"""The log. Telling what happens never changes what happens: a line that cannot be written is dropped.

Those who own sandboxes write it between their steps, also while everything ends and stderr is closed already. A program
that configures structlog gets every line as it wants it. Where none does, warnings and worse go to stderr, with
tracebacks without the values of variables (patches, tasks). Nothing goes to stdout, which is the program's.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any

import structlog


class Log:
    """structlog under a name, as the program has configured it or as the module says. Nothing here ever raises."""

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **facts: object) -> None:
        self._tell("info", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        self._tell("warning", event, facts)

    def error(self, event: str, **facts: object) -> None:
        self._tell("error", event, facts)

    def _tell(self, level: str, event: str, facts: dict[str, object]) -> None:
        with contextlib.suppress(Exception):
            logger = structlog.get_logger(self._name) if structlog.is_configured() else _plain()
            getattr(logger, level)(event, **facts)


def _plain() -> Any:
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(),
        structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
    ]
    chosen = structlog.make_filtering_bound_logger(logging.WARNING)
    return structlog.wrap_logger(structlog.PrintLogger(sys.stderr), processors=processors, wrapper_class=chosen)
