"""How long a pod's image was pulled: told for the curious, and asked of the server within a budget.

Only a pod's events tell, and a server finds them by reading all that the namespace has. So nothing is asked about a
container that started soon, and of thousands that start at once nearly none is: its pull stays part of its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from sandbox.kube.endings import pull_seconds
from sandbox.kube.events import Events
from sandbox.kube.snapshot import Pod
from sandbox.spec import PhaseTimes

WORTH_ASKING_S = 2.0
AT_ONCE = 4
PATIENCE_S = 1.0
"""So long a sandbox that is ready is held back for it, at most."""
ALLOWED_S = 5.0
ALLOWED_SHARE = 0.05
"""The server may be busy with the answers for `ALLOWED_S` at a stretch, and for that share of the time at length."""


class Pulls:
    """Of one run."""

    def __init__(self, events: Events, *, now: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._now = now
        self._left_s = ALLOWED_S
        self._filled_at = now()
        self._asking = 0

    async def told_apart(self, phases: PhaseTimes, pod: Pod) -> PhaseTimes:
        """The phases of a pod that runs, with its pull apart from its start where that can be known."""
        start_s = phases.start_s or 0.0
        if start_s < WORTH_ASKING_S or phases.pull_s is not None or not self._may_ask():
            return phases
        pulled_s = await self._ask(pod)
        if pulled_s is None:
            return phases
        pulled_s = min(pulled_s, start_s)
        return replace(phases, pull_s=pulled_s, start_s=start_s - pulled_s)

    def _may_ask(self) -> bool:
        now = self._now()
        self._left_s = min(ALLOWED_S, self._left_s + ALLOWED_SHARE * (now - self._filled_at))
        self._filled_at = now
        return self._asking < AT_ONCE and self._left_s > 0

    async def _ask(self, pod: Pod) -> float | None:
        began = self._now()
        self._asking += 1
        try:
            return pull_seconds(await self._events.about(pod, patience_s=PATIENCE_S) or ())
        finally:
            self._asking -= 1
            self._left_s -= self._now() - began
