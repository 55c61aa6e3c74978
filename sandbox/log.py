"""The room's log. Telling what happens never changes what happens: a line that cannot be written is dropped.

Those who own sandboxes write it between their steps, also while everything ends and stderr is closed already.
"""

from __future__ import annotations

import contextlib

import structlog


class Log:
    """structlog under a name, as the program has configured it. Nothing here ever raises."""

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
            getattr(structlog.get_logger(self._name), level)(event, **facts)
