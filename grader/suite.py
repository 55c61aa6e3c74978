"""Run a task's tests in a sandbox, in the shell that the row's own eval script would have used.

The task's set-up and its test command run one after the other in one shell. Only the test command's output is the log
that parsers read; beside it the grader's own channel listens to the test runner. A suite that fails, ends its shell or
outlives its limit is a result, never an error.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass, field

from grader.channel import Heard, open_channel
from sandbox import Sandbox
from sandbox.errors import FileRefused
from tasksets.task import TestPlan

_ACTIVATION = re.compile(r"""\s*(?:(?:set|source|\.|conda activate|cd|export)\s[^;&|<>`()'"\\]*)?(?:#.*)?""")
_SETUP_OUTPUT_BYTES = 256 * 1024
_ROOM_BYTES = 1024 * 1024
_SILENT_S = 10.0
"""Twice the time after which the daemon says something."""
_SILENT_SHARE = 0.1
"""Of the time limit."""


@dataclass(frozen=True)
class SuiteRun:
    """How the suite ended. Bytes are as the sandbox wrote them and may be anything."""

    log: bytes
    """The test command's output; head and tail when `truncated`."""
    log_bytes: int
    """How much the test command wrote in all."""
    truncated: bool
    exit_code: int | None
    """The test command's. None: the set-up timed out, so no test ran."""
    timed_out: bool
    setup_exit_code: int
    setup_output: bytes
    duration_s: float
    """Set-up and tests."""
    silent_s: float = 0.0
    """The longest time in which nothing was heard of the sandbox meanwhile."""
    heard: Heard = field(default_factory=Heard)
    """What the grader's own channel brought."""
    channel: bytes = b""
    """The same, as it came."""


def activation(setup: str) -> str:
    """The set-up's first lines that only choose an environment: `set`, `source`, `conda activate`, `cd`, `export`.

    They may run before the submission is applied. What follows them may build it, and runs after.
    """
    return "".join(_split(setup)[0])


def rest_of(setup: str) -> str:
    """The set-up without its activation."""
    return "".join(_split(setup)[1])


def _split(setup: str) -> tuple[list[str], list[str]]:
    lines = re.findall(r"[^\n]*\n|[^\n]+", setup)
    count = next((at for at, line in enumerate(lines) if not _ACTIVATION.fullmatch(line.rstrip("\n"))), len(lines))
    while count and not lines[count - 1].strip():
        count -= 1
    return lines[:count], lines[count:]


async def run(box: Sandbox, plan: TestPlan, *, time_limit_s: float, max_log_bytes: int) -> SuiteRun:
    """Run the rest of the set-up, then the tests, in the shell where the environment is already activated.

    `time_limit_s` is each one's limit. Raises `SandboxError` when the sandbox fails, and for nothing else.
    """
    setup = await box.run(
        f"cd {shlex.quote(plan.workdir)}\nset -o pipefail\n{rest_of(plan.setup)}",
        timeout_s=time_limit_s,
        max_output_bytes=_SETUP_OUTPUT_BYTES,
    )
    if setup.timed_out:
        return SuiteRun(
            b"", 0, False, None, True, setup.exit_code, setup.output, setup.duration_s, silent_s=setup.silent_s
        )
    async with open_channel(box, time_limit_s=time_limit_s) as channel:
        tests = await box.run(
            channel.export + plan.test_command, timeout_s=time_limit_s, max_output_bytes=max_log_bytes
        )
    return SuiteRun(
        log=tests.output,
        log_bytes=tests.output_bytes,
        truncated=tests.truncated,
        exit_code=tests.exit_code,
        timed_out=tests.timed_out,
        setup_exit_code=setup.exit_code,
        setup_output=setup.output,
        duration_s=setup.duration_s + tests.duration_s,
        silent_s=max(setup.silent_s, tests.silent_s),
        heard=channel.heard,
        channel=channel.raw,
    )


def stood_still(ran: SuiteRun, *, time_limit_s: float) -> str | None:
    """Why a suite that outlived its limit says nothing of the patch: the sandbox stood still for a good part of it.

    A little silence is usual where tests take all the CPU; None for it, and for a suite that ended by itself.
    """
    if not ran.timed_out or ran.silent_s <= max(_SILENT_S, _SILENT_SHARE * time_limit_s):
        return None
    return (
        f"nothing was heard of the sandbox for {ran.silent_s:.0f} s while its tests ran into their limit of "
        f"{time_limit_s:g} s: it stood still, or was cut off; look at its machine"
    )


async def disk_is_full(box: Sandbox, plan: TestPlan) -> bool:
    """Whether the daemon can write no more where the tests ran. Their failures may then be the disk's.

    The daemon says so, not the tests, but tests that fill the disk themselves look the same.
    """
    try:
        await box.write(f"{plan.workdir}/.grader-room-{secrets.token_hex(4)}", bytes(_ROOM_BYTES))
    except FileRefused as error:
        return error.code == "no_space"
    return False
