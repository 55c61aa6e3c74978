"""Read, in the sandbox, the conditions that tests will meet there; and the canary that egress is proved with.

Covers what stands before the suite. The task's environment is activated, then its own Python runs grader/look.py in the
tests' shell, while the daemon tells of the sandbox. Nothing of a submission is there yet, so what is read may be
believed. Where the tests' shell has no Python, what only that could see stays unread.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shlex
import time
from dataclasses import dataclass
from importlib.resources import files
from types import TracebackType

import anyio

from grader.campaign import Conditions
from grader.conditions import Look, Observed, Promises, observed_from
from grader.conditions.observed import INSTANTS, TEXT, Clock
from grader.suite import activation
from sandbox import Facts, Sandbox, SandboxError
from tasksets.task import TestPlan

SETTLE_S = 10.0
LOOK_AGAIN_S = 0.5

TRY_S = 0.5
"""How long an address has to answer. Where the way is shut by a refusal, or there is no route, no time is spent."""

STEERING = (
    *("PYTHON*", "PYTEST*", "LC_*", "LANG", "LANGUAGE", "TZ", "TZDIR", "PATH", "HOME", "TMPDIR", "USER", "TERM", "CI"),
    *("VIRTUAL_ENV", "CONDA_*", "TOX*", "LD_*", "OMP_NUM_THREADS", "MPLBACKEND", "HYPOTHESIS*", "DJANGO*"),
)
"""Variables that often decide what tests do: recorded, whether or not they are declared."""

_PYTHON = re.compile(r"(?:[\w./+-]*/)?(?:python|pypy)[0-9.]*")
Address = tuple[str, int]


async def observe(
    box: Sandbox,
    plan: TestPlan,
    conditions: Conditions,
    promises: Promises,
    *,
    canary: Address | None,
    timeout_s: float = 60.0,
) -> Observed:
    """Activate the task's environment in the tests' shell and read what holds there.

    `canary` is the address that egress is tried on; None leaves egress unread, unless a name server, the gateway or
    another sandbox's daemon answers. Raises `SandboxError` when the sandbox cannot be asked.
    """
    if lines := activation(plan.setup):
        ran = await box.run(lines, timeout_s=timeout_s)
        if ran.timed_out:
            raise SandboxError(
                f"activating the task's environment did not end within {timeout_s:g} s; look at its image"
            )
    targets = [] if canary is None else [("canary", *canary)]
    if (neighbour := box.neighbour) is not None and box.spec.egress == "denied":
        targets.append(("neighbour", *neighbour))
    asked = Asked(tuple(pythons(plan.test_command)), tuple(conditions.environment or ()), tuple(targets), timeout_s)
    look, clock, facts = await _settled(box, asked)
    if look.reached is None and canary is not None:
        look = look.model_copy(update={"reached": await _reached_by_daemon(box, canary)})
    return observed_from(
        look, facts, conditions, promises, clock=clock, identity=box.identity, egress_tried=canary is not None
    )


def pythons(test_command: str) -> list[str]:
    """Names under which the tests' Python is looked for, the likeliest first: one that the test command names."""
    named = [word for word in re.split(r"[\s;&|()]+", test_command) if _PYTHON.fullmatch(word)]
    return list(dict.fromkeys([*named, "python", "python3"]))


@dataclass(frozen=True)
class Asked:
    """What a look is for."""

    pythons: tuple[str, ...]
    variables: tuple[str, ...]
    targets: tuple[tuple[str, str, int], ...]
    timeout_s: float

    def command(self, nonce: str, *, denied: bool) -> str:
        """Text for the tests' shell, which is as before afterwards. Its standard input is the script."""
        argument = {
            "nonce": nonce,
            "text": TEXT,
            "instants": INSTANTS,
            "variables": [*STEERING, *self.variables],
            "targets": self.targets,
            "egress": denied,
            "wait_s": TRY_S,
        }
        names = " ".join(map(shlex.quote, self.pythons))
        return (
            f'( for python in {names}; do python=$(type -P -- "$python") && '
            f'exec "$python" -B - {shlex.quote(json.dumps(argument))}; done ) 2>/dev/null || :'
        )


async def _settled(box: Sandbox, asked: Asked) -> tuple[Look, Clock, Facts]:
    """What is seen once the way out is shut where it is to be: a cluster may enforce a policy a little after the pod
    has started. One that stays open is told as it is."""
    facts = await box.facts()
    look, clock = await _look(box, asked)
    deadline = time.monotonic() + SETTLE_S
    while look.reached and box.spec.egress == "denied" and time.monotonic() < deadline:
        await anyio.sleep(LOOK_AGAIN_S)
        look, clock = await _look(box, asked)
    return look, clock, facts


async def _look(box: Sandbox, asked: Asked) -> tuple[Look, Clock]:
    nonce = secrets.token_hex(8)
    script = files("grader").joinpath("look.py").read_bytes()
    before = time.time()
    ran = await box.run(
        asked.command(nonce, denied=box.spec.egress == "denied"), timeout_s=asked.timeout_s, stdin=script
    )
    clock = Clock(before, time.time())
    answers = [line for line in ran.output.split(b"\n") if line.startswith(nonce.encode() + b" ")]
    return Look.parse(answers[-1].partition(b" ")[2] if answers else b""), clock


async def _reached_by_daemon(box: Sandbox, canary: Address) -> tuple[str, ...] | None:
    """As the look's, by the daemon, where the tests' shell has no Python that could try."""
    found = (await box.facts(canary=canary)).canary
    return None if found is None else ("canary",) if found == "reached" else ()


@dataclass
class Canary:
    """A listener on this host's loopback, open for the length of the `async with`.

    A sandbox that can connect to it has a way out; one that cannot has none to the nearest address there is.
    """

    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Address:
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
