"""Runs inside a throw-away environment that has SWE-ReX: times and tortures its local runtime. Imports nothing of ours.

`python swerex_side.py < REQUEST > ANSWER`: the request is JSON with `times` (name: [sessions, commands, repeats]) and
`cases` (name: list of [command, time-out]); the answer is JSON with milliseconds, and per case a list of what it said.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

STEP_LIMIT_S = 20.0


async def _open(runtime: Any, name: str) -> None:
    from swerex.runtime.abstract import CreateBashSessionRequest  # type: ignore[import-not-found]

    await runtime.create_session(CreateBashSessionRequest(session=name, startup_timeout=10))


async def _run(runtime: Any, session: str, command: str, timeout_s: float) -> tuple[object, str]:
    from swerex.runtime.abstract import BashAction

    action = BashAction(command=command, session=session, timeout=timeout_s, check="silent")
    answer = await asyncio.wait_for(runtime.run_in_session(action), timeout_s + STEP_LIMIT_S)
    return answer.exit_code, answer.output


async def _time(runtime: Any, command: str, sessions: int, repeats: int) -> list[float]:
    for number in range(sessions):
        await _open(runtime, f"time {number}")
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        await asyncio.gather(*(_run(runtime, f"time {number}", command, 120) for number in range(sessions)))
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


async def _case(runtime: Any, name: str, steps: list[tuple[str, float]]) -> list[object]:
    said: list[object] = []
    try:
        await _open(runtime, name)
    except Exception as error:
        return [type(error).__name__]
    for command, timeout_s in steps:
        try:
            said.append(await _run(runtime, name, command, min(timeout_s, STEP_LIMIT_S)))
        except Exception as error:
            said.append(type(error).__name__)  # and ask on: what its session does after that is part of the answer
    return said


async def main() -> None:
    """Answer the request."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # its log goes to stdout
    request = json.load(sys.stdin)
    from swerex.runtime.local import LocalRuntime  # type: ignore[import-not-found]

    times, cases = {}, {}
    for name, (command, sessions, repeats) in request.get("times", {}).items():
        times[name] = await _time(LocalRuntime(), command, sessions, repeats)
    for name, steps in request.get("cases", {}).items():
        cases[name] = await _case(LocalRuntime(), name, steps)
    with os.fdopen(answer_fd, "w") as stream:
        json.dump({"times": times, "cases": cases}, stream)


if __name__ == "__main__":
    asyncio.run(main())
