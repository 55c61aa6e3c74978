"""Work that is to go on for as long as a provider is open, whatever error nobody foresaw comes up in it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

from sandbox.log import Log

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


async def kept_up(work: Callable[[], Awaitable[None]], name: str) -> None:
    """Do the work to its end. After an error it is begun again, later and later while it does not go well for long."""
    pause_s = FIRST_PAUSE_S
    while True:
        began = time.monotonic()
        try:
            await work()
        except Exception as error:
            if time.monotonic() - began > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            Log("sandbox.kube").error(f"{name} failed and begins again", pause_s=pause_s, exc_info=error)
            await anyio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
        else:
            return
