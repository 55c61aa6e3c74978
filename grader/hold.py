"""Holds the grader to the time limit that it promises, at the moment when the tests are sent.

A limit that is declared, compared, and then not sent is a wrong declaration that nobody would see. So the suite gets a
sandbox that does not take the tests under another limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from grader.conditions import Promises
from sandbox import Sandbox


class PromiseBroken(Exception):
    """The tests were to be sent under another time limit than promised, and were not sent. Never a score."""

    def __init__(self, promised_s: float, sent_s: float) -> None:
        super().__init__(
            f"the tests' time limit is promised as {promised_s:g} s and was about to be sent as {sent_s:g} s; "
            "give the grader the declared limit"
        )
        self.sent_s = sent_s


def held(box: Sandbox, promises: Promises, test_command: str) -> Sandbox:
    """`box`, whose `run` and `stream` raise `PromiseBroken` for the tests under any limit but the promised one."""
    return cast(Sandbox, _Held(box, promises.test_time_limit_s, test_command.encode("utf-8", "surrogateescape")))


class _Held:
    """A sandbox in all but one thing: in the tests' shell, their command goes out with the promised limit or not."""

    def __init__(self, box: Sandbox, limit_s: float, tests: bytes) -> None:
        self._box = box
        self._limit_s = limit_s
        self._tests = tests

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)

    async def run(self, command: str | bytes, *, timeout_s: float, **how: Any) -> Any:
        self._check(command, timeout_s, how)
        return await self._box.run(command, timeout_s=timeout_s, **how)

    def stream(self, command: str | bytes, *, timeout_s: float, **how: Any) -> Any:
        self._check(command, timeout_s, how)
        return self._box.stream(command, timeout_s=timeout_s, **how)

    def _check(self, command: str | bytes, timeout_s: float, how: Mapping[str, Any]) -> None:
        text = command if isinstance(command, bytes) else command.encode("utf-8", "surrogateescape")
        in_their_shell = how.get("session", "main") == "main"
        if in_their_shell and self._tests in text and timeout_s != self._limit_s:
            raise PromiseBroken(self._limit_s, timeout_s)
