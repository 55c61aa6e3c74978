"""Read, in the sandbox, the conditions that tests will meet there; and the canary that egress is proved with.

Covers what stands before the suite: the daemon's facts and the environment of the tests' shell once the task's own
environment is activated. Nothing of a submission is in the sandbox yet, so what is read may be believed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType

import anyio

from grader.conditions import Observed, observed_from
from grader.suite import activation
from sandbox import Facts, Sandbox, SandboxError
from tasksets.task import TestPlan

SETTLE_S = 10.0
LOOK_S = 0.5


async def observe(
    box: Sandbox, plan: TestPlan, *, canary: tuple[str, int] | None, test_time_limit_s: float, timeout_s: float = 60.0
) -> Observed:
    """Activate the task's environment in the tests' shell and read what holds there.

    `canary` is the address that egress is tried on; None leaves egress unread. `test_time_limit_s` is the limit that
    will really be sent. Raises `SandboxError` when the sandbox cannot be asked.
    """
    facts = await _settled_facts(box, canary)
    if lines := activation(plan.setup):
        ran = await box.run(lines, timeout_s=timeout_s)
        if ran.timed_out:
            raise SandboxError(
                f"activating the task's environment did not end within {timeout_s:g} s; look at its image"
            )
    shown = await box.run("env -0", timeout_s=timeout_s)
    variables = _variables(shown.output) if shown.exit_code == 0 and not shown.truncated else None
    return observed_from(facts, variables, test_time_limit_s=test_time_limit_s)


async def _settled_facts(box: Sandbox, canary: tuple[str, int] | None) -> Facts:
    """The facts, once the way out is shut where it is to be: a cluster may enforce a policy a little after the pod has
    started. One that stays open is told as it is."""
    for _ in range(int(SETTLE_S / LOOK_S)):
        facts = await box.facts(canary=canary)
        if facts.canary != "reached" or box.spec.egress != "denied":
            return facts
        await anyio.sleep(LOOK_S)
    return await box.facts(canary=canary)


def _variables(shown: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in shown.split(b"\0") if b"=" in entry)
    return {name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "replace") for name, _, value in pairs}


@dataclass
class Canary:
    """A listener on this host's loopback, open for the length of the `async with`.

    A sandbox that can connect to it has a way out; one that cannot has none to the nearest address there is.
    """

    _server: asyncio.Server | None = None

    async def __aenter__(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(_hang_up, host="127.0.0.1", port=0)
        host, port = self._server.sockets[0].getsockname()
        return str(host), int(port)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
