"""Read, in the sandbox, the conditions that tests will meet there; and the canary that egress is proved with.

Covers what stands before the suite. The task's environment is activated, then its own Python runs grader/look.py in the
tests' shell, while the daemon tells of the sandbox. Nothing of a submission is there yet, so what is read may be
believed. Where the tests' shell has no Python, what only that could see stays unread; one that is there and does not
run is told.
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
_FOUND = b"found "
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
    asked = Asked(
        tuple(named_pythons(plan.test_command)), tuple(conditions.environment or ()), tuple(targets), timeout_s
    )
    seen, clock, facts = await _settled(box, asked)
    look = seen.look
    if look.reached is None and canary is not None:
        look = look.model_copy(update={"reached": await _reached_by_daemon(box, canary)})
    return observed_from(
        look,
        facts,
        conditions,
        promises,
        clock=clock,
        identity=box.identity,
        egress_tried=canary is not None,
        silent_python=seen.silent_python,
    )


def named_pythons(test_command: str) -> list[str]:
    """What the test command calls its Python, where it names one."""
    words = re.split(r"[\s;&|()]+", test_command)
    return list(dict.fromkeys(word for word in words if _PYTHON.fullmatch(word)))


@dataclass(frozen=True)
class Seen:
    """By the tests' Python, if it runs."""

    look: Look
    silent_python: str | None = None
    """Where it is, if it does not."""


@dataclass(frozen=True)
class Asked:
    """What a look is for."""

    named: tuple[str, ...]
    """Pythons of the test command. Where none of them is there, `python` and `python3` are tried."""
    variables: tuple[str, ...]
    targets: tuple[tuple[str, str, int], ...]
    timeout_s: float

    def command(self, nonce: str, *, denied: bool) -> str:
        """Text for the tests' shell, which is as before afterwards. Its standard input is the script.

        A line says which Python was found, and the next what it saw; without that it does not run, and the next name
        is tried.
        """
        argument = {
            "nonce": nonce,
            "text": TEXT,
            "instants": INSTANTS,
            "variables": [*STEERING, *self.variables],
            "targets": self.targets,
            "egress": denied,
            "wait_s": TRY_S,
        }
        names = " ".join(map(shlex.quote, dict.fromkeys([*self.named, "python", "python3"])))
        look = f'"$python" -B -c "$script" {shlex.quote(json.dumps(argument))} </dev/null'
        return (
            f'( script=$(</dev/fd/0); for name in {names}; do python=$(type -P -- "$name") || continue; '
            f'printf "\\n%s found %s %s\\n" {nonce} "$name" "$python"; {look} && break; done ) 2>/dev/null || :'
        )

    def seen(self, nonce: str, output: bytes) -> Seen:
        """What the output of `command` says. A Python of the test command that does not run is not stood in for."""
        found: list[tuple[str, str]] = []
        told = None
        for line in output.split(b"\n"):
            mark, _, said = line.partition(b" ")
            if mark == nonce.encode() and said.startswith(_FOUND):
                name, _, path = said[len(_FOUND) :].decode("utf-8", "replace").partition(" ")
                found.append((name, path))
            elif mark == nonce.encode():
                told = said
        silent = found if told is None else found[:-1]
        named = [path for name, path in silent if name in self.named]
        if told is not None and not named:
            return Seen(Look.parse(told))
        return Seen(Look(), next(iter(named or [path for _, path in silent]), None))


async def _settled(box: Sandbox, asked: Asked) -> tuple[Seen, Clock, Facts]:
    """What is seen once the way out is shut where it is to be: a cluster may enforce a policy a little after the pod
    has started. One that stays open is told as it is."""
    facts = await box.facts()
    seen, clock = await _look(box, asked)
    deadline = time.monotonic() + SETTLE_S
    while seen.look.reached and box.spec.egress == "denied" and time.monotonic() < deadline:
        await anyio.sleep(LOOK_AGAIN_S)
        seen, clock = await _look(box, asked)
    return seen, clock, facts


async def _look(box: Sandbox, asked: Asked) -> tuple[Seen, Clock]:
    nonce = secrets.token_hex(8)
    script = files("grader").joinpath("look.py").read_bytes()
    before = time.time()
    ran = await box.run(
        asked.command(nonce, denied=box.spec.egress == "denied"), timeout_s=asked.timeout_s, stdin=script
    )
    clock = Clock(before, time.time())
    if ran.timed_out:
        raise SandboxError(f"the tests' Python did not tell its conditions within {asked.timeout_s:g} s; is it busy?")
    return asked.seen(nonce, ran.output), clock


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
