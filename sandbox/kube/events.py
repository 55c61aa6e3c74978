"""What the cluster noted about the run's pods: few are asked about at once, and the ended ones all together.

A server has no index of events: to find one pod's it reads all that the namespace has. So where a thousand pods end at
once, the few reasons that tell of an end are asked for, each for all pods, and the answer is for all who had asked.
"""

from __future__ import annotations

import asyncio
import itertools
from urllib.parse import urlencode

from sandbox.kube.api import EVENTS_AT_ONCE, Api, ApiFailure
from sandbox.kube.endings import REASONS_OF_ENDS
from sandbox.kube.snapshot import Pod, PodEvent, parse_events

ANSWER_S = 5.0
PATIENCE_S = 15.0
"""What was noted about a pod is waited for so long, those before it included."""


class Events:
    """Of one run's namespace."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lane = asyncio.Semaphore(EVENTS_AT_ONCE)
        self._turn = asyncio.Lock()
        self._order = itertools.count(1)
        self._read_at = 0
        self._of_ends: dict[str, list[PodEvent]] | None = None

    async def about(self, pod: Pod, *, patience_s: float = PATIENCE_S) -> tuple[PodEvent, ...] | None:
        """All that was noted about a pod, oldest first. None: it could not be read, or not in time."""
        try:
            async with asyncio.timeout(patience_s), self._lane:
                noted = await self._list(f"involvedObject.name={pod.name}")
        except (ApiFailure, TimeoutError):
            return None
        return _of(pod, noted)

    async def about_end(self, pod: Pod, *, patience_s: float = PATIENCE_S) -> tuple[PodEvent, ...] | None:
        """Of that, what tells why a pod ended. Who asks while an answer is under way shares the next one."""
        asked_at = next(self._order)
        try:
            async with asyncio.timeout(patience_s), self._turn:
                if self._read_at < asked_at:
                    begun_at = next(self._order)
                    self._of_ends = await self._ends()
                    self._read_at = begun_at
        except TimeoutError:
            return None
        return None if self._of_ends is None else _of(pod, self._of_ends.get(pod.name, []))

    async def _ends(self) -> dict[str, list[PodEvent]] | None:
        """By the names of pods. None: it could not be read."""
        found: dict[str, list[PodEvent]] = {}
        try:
            for reason in REASONS_OF_ENDS:
                for event in await self._list(f"reason={reason}"):
                    found.setdefault(event.name, []).append(event)
        except ApiFailure:
            return None
        return found

    async def _list(self, selector: str) -> list[PodEvent]:
        """Raises `ApiFailure`."""
        query = {"fieldSelector": f"involvedObject.kind=Pod,{selector}", "limit": "500"}
        noted: list[PodEvent] = []
        while True:
            page = await self._api.call("GET", f"{self._api.path('events')}?{urlencode(query)}", timeout_s=ANSWER_S)
            try:
                more, query["continue"] = parse_events(page)
            except ValueError as error:
                raise ApiFailure("list events", 0, "Garbled", str(error)) from error
            noted += more
            if not query["continue"]:
                return noted


def _of(pod: Pod, noted: list[PodEvent]) -> tuple[PodEvent, ...]:
    mine = [one for one in noted if one.uid in {pod.uid, ""}]  # some components leave the UID out
    return tuple(sorted(mine, key=lambda one: one.at))
