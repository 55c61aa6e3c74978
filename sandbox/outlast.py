"""Waiting that no cancellation cuts short: for what must be put away, whoever has lost patience.

A scope of anyio shields from the scopes around it, not from `Task.cancel`, which is what a program's own tasks and
Ctrl-C use. Both are heard here, and raised once the wait is over.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Set
from typing import Any, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


async def outlast(tasks: Set[asyncio.Future[Any]], timeout_s: float = math.inf) -> None:
    """Wait until every task of the set is done, also those that come to it meanwhile, for at most `timeout_s`.
    Cancellations are heard, however many come, and one is raised at the end."""
    cancelled: asyncio.CancelledError | None = None
    deadline = time.monotonic() + timeout_s
    with anyio.CancelScope(shield=True):
        while (not_done := {task for task in tasks if not task.done()}) and (left_s := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait(not_done, timeout=None if math.isinf(left_s) else left_s)
            except asyncio.CancelledError as again:
                cancelled = again
    if cancelled is not None:
        raise cancelled


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """What blocking `work` returns or raises. Whoever is cancelled waits for its end all the same: the files that it
    uses can be put away then, and not under its hands."""
    running = asyncio.ensure_future(anyio.to_thread.run_sync(work, *args))
    try:
        await outlast({running})
    except asyncio.CancelledError:
        running.exception()  # or it would be logged as one that nobody heard
        raise
    return running.result()
