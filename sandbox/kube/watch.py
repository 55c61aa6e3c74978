"""One list and watch of a run's pods, kept alive for as long as the run: whoever needs a pod's news is told from here.

A watch that ends, breaks, falls silent or is too old begins again; from a fresh list where it must. The server ends it
after a while by our wish (with jitter, so that runs do not come back together), and a connection that is dead on one
side only is given up a little later.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

import anyio

from sandbox.kube.api import Api, ApiFailure
from sandbox.kube.snapshot import Pod
from sandbox.log import Log

WATCH_S = (20.0, 30.0)
SILENT_S = 10.0
"""A watch that has told of nothing for so long may be dead on one side."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
LONGEST_RETRY_AFTER_S = 30.0
"""However long the server asks to wait, the run's pods are looked after again by then."""


class Listener(Protocol):
    """Hears of the run's pods. None of it waits."""

    def on_list(self, pods: Sequence[Pod], asked_at: float) -> None:
        """All pods that there were at some moment after `asked_at` (`time.monotonic()`)."""

    def on_pod(self, pod: Pod) -> None:
        """A pod is new or changed. May be old news."""

    def on_gone(self, pod: Pod) -> None:
        """The pod, in its last state, is no more, or matches the selector no more."""


class Watch:
    """Of the pods that match `selector`."""

    def __init__(self, api: Api, selector: str, listener: Listener) -> None:
        self._api = api
        self._selector = selector
        self._listener = listener
        self._heard_at = -math.inf
        self._version: str | None = None
        """Where to go on from. None: from a list."""
        self._log = Log("sandbox.kube.watch")

    def tells(self) -> bool:
        """Whether it has told of anything lately: then whatever happens to a pod will be heard here, and nobody need
        ask for it."""
        return time.monotonic() - self._heard_at < SILENT_S

    async def follow(self) -> None:
        """Tell the listener, until cancelled. Trouble with the server is outlasted."""
        self._version = None
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                if self._version is None:
                    pods, self._version = await self._api.list_pods(self._selector)
                    self._listener.on_list(pods, began)
                await self._once(self._version)
                pause_s = FIRST_PAUSE_S
            except ApiFailure as failure:
                if failure.status == 410 or (failure.status == 0 and failure.reason == "Garbled"):
                    self._version = None
                elif self._heard_at >= began:
                    pause_s = FIRST_PAUSE_S
                self._log.info("watch begins again", after=str(failure), pause_s=round(pause_s, 2))
                asked_s = min(LONGEST_RETRY_AFTER_S, failure.retry_after_s or 0.0)
                await anyio.sleep(asked_s or pause_s * random.uniform(0.5, 1.0))
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    async def _once(self, version: str) -> None:
        """One watch, to its end. Raises `ApiFailure`."""
        timeout_s = random.uniform(*WATCH_S)
        async with aclosing(self._api.watch_pods(self._selector, version, timeout_s=timeout_s)) as events:
            async for event in events:
                if event.kind == "error":
                    raise ApiFailure("watch pods", event.code or 500, "ERROR", "the watch ended with an error")
                self._heard_at = time.monotonic()
                if event.pod is not None and event.kind == "deleted":
                    self._listener.on_gone(event.pod)
                elif event.pod is not None:
                    self._listener.on_pod(event.pod)
                self._version = event.version or self._version
