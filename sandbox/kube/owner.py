"""The shell around the rules of ownership: carries out what they ask for, and keeps what is known of the pod.

Everything that is asked of the server runs in tasks of its own, so that no cancellation of a caller stops a create half
way or loses a delete. An owner lives until its claim is closed, whoever has gone by then.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from sandbox.kube import ownership as rules
from sandbox.kube.api import (
    Absent,
    Api,
    ApiFailure,
    CreateAnswer,
    Created,
    DeleteAccepted,
    Found,
    NameTaken,
    OtherUid,
    Rejected,
    Throttled,
    Unknown,
)
from sandbox.kube.snapshot import Pod, parse_pod
from sandbox.log import Log

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Owner:
    """Of one sandbox's pod. `tell` and the `on_` methods never wait."""

    def __init__(
        self,
        api: Api,
        claim: rules.Claim,
        manifest: bytes,
        *,
        grace_s: int,
        spawn: Spawn,
        watched: Callable[[], bool],
        on_send: Callable[[], None],
        on_closed: Callable[[Owner], None],
    ) -> None:
        self.claim = claim
        self.pod: Pod | None = None
        """The last that was heard of the claim's pod."""
        self.answer: CreateAnswer | None = None
        """To the last create."""
        self.looks = 0
        """Read-backs that were answered."""
        self.failed_deletes = 0
        self._changed: asyncio.Event | None = None
        """Of who waits for the next news, if anybody does."""
        self._api = api
        self._manifest = manifest
        self._grace_s = grace_s
        self._spawn = spawn
        self._watched = watched
        self._on_send = on_send
        self._on_closed = on_closed
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._looking = asyncio.Lock()
        self._looked_at = -math.inf
        """When the last look was asked for."""
        self._unread: ApiFailure | None = None
        """What kept the pod from being read then."""
        self._log = Log("sandbox.kube.owner")

    @property
    def pod_gone(self) -> bool:
        """Whether the pod in `pod` is no more."""
        return self.pod is not None and self.pod.uid in self.claim.gone

    async def change(self, within_s: float | None = None) -> None:
        """Wait for the next news; at most for `within_s`, if that is given."""
        if self._changed is None:
            self._changed = asyncio.Event()
        changed = self._changed
        # A timer of the loop costs a quarter of a cancel scope, and thousands wait here.
        timer = None if within_s is None else asyncio.get_running_loop().call_later(within_s, self._tell_of_change)
        try:
            await changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def tell(self, event: rules.Event) -> None:
        """Something happened. Acts on what the rules say to it."""
        self.claim, requests = rules.step(self.claim, event, time.monotonic())
        wake_at: list[float] = []
        for request in requests:
            match request:
                case rules.SendCreate():
                    self.answer = None
                    self._spawn(self._answered(self._send, rules.CreateUnknown()))
                case rules.ReadBack():
                    self._spawn(self._answered(self._read, rules.ReadFailed()))
                case rules.Delete(uid):
                    self._spawn(self._answered(partial(self._delete, uid), rules.DeleteEnded(uid, "failed")))
                case rules.WakeAt(at):
                    wake_at.append(at)
        self._wake_at(min(wake_at) if wake_at else None)
        self._tell_of_change()
        if self.claim.closed and not self._closed:
            self._closed = True
            self._on_closed(self)

    def stored(self) -> None:
        """The create needs not be sent again."""
        self._manifest = b""

    def on_pod(self, pod: Pod) -> None:
        """News of a pod of our name."""
        self._note(pod)
        if pod.uid == self.claim.uid and not self.claim.sending:  # nothing new to the rules
            self._tell_of_change()
        else:
            self.tell(rules.Seen(pod.uid, pod.nonce))

    def on_gone(self, pod: Pod) -> None:
        """The run's watch tells of this pod no more. One that was not being deleted may only have lost its labels."""
        self._note(pod)
        is_proof = pod.deleting and pod.nonce == self.claim.nonce and pod.run is not None
        self.tell(rules.SeenGone(pod.uid) if is_proof else rules.LostSight(pod.uid))

    def on_not_listed(self, asked_at: float) -> None:
        """A list had no pod of our name."""
        self.tell(rules.NotListed(asked_at))

    async def refresh(
        self, *, within_s: float, max_age_s: float = 0.0, unless_watched: bool = False
    ) -> ApiFailure | None:
        """Look at the pod, for who does not trust the watch alone. A look that was asked for no longer than `max_age_s`
        ago, or is asked for meanwhile, is shared. Returns what kept the pod from being read."""
        if unless_watched and self._watched() and not self.claim.must_look:
            return None
        since = time.monotonic() - max_age_s
        try:
            async with asyncio.timeout(within_s), self._looking:
                if self._looked_at < since:
                    async with self._api.lane:
                        asked_at = time.monotonic()
                        self._unread = await self._look(asked_at)
                        self._looked_at = asked_at
                return self._unread
        except TimeoutError:
            return ApiFailure("read the pod", 0, "Timeout", f"none within {within_s:.1f} s")

    async def _look(self, asked_at: float) -> ApiFailure | None:
        try:
            pod = parse_pod(await self._api.call("GET", self._api.path("pods", self.claim.name)))
        except ValueError as error:
            return ApiFailure("read the pod", 0, "Garbled", str(error))
        except ApiFailure as failure:
            if not failure.says_absent(self.claim.name):
                return failure
            self.on_not_listed(asked_at)
        else:
            self.on_pod(pod)
        return None

    def stop(self) -> None:
        """Ask for nothing any more: there is nobody to ask."""
        self._wake_at(None)
        self._spawn = lambda work: work.close()

    def _tell_of_change(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    def _note(self, pod: Pod) -> None:
        """Keep what is newest. Old news of an earlier pod of ours do not hide the one in use."""
        if pod.uid in self.claim.gone or (pod.nonce != self.claim.nonce and not self.claim.owns(pod.uid)):
            return
        self.pod = pod

    async def _answered(self, request: Callable[[], Awaitable[None]], failed: rules.Event) -> None:
        """An error that nobody foresaw leaves the outcome of a request as unknown as no answer does."""
        try:
            await request()
        except Exception as error:
            self._log.error("a request failed", pod=self.claim.name, exc_info=error)
            self.tell(failed)

    async def _send(self) -> None:
        async with self._api.lane:
            if not self.claim.wanted:  # given up between the word and the deed: nothing is sent
                self.tell(rules.WasRefused())
                return
            self._on_send()
            self.answer = await self._api.create_pod(self._manifest)
        match self.answer:
            case Created(pod):
                if self.pod is None or self.pod.uid != pod.uid:
                    self._note(pod)
                self.tell(rules.WasCreated(pod.uid))
            case Throttled() | Rejected():
                self.tell(rules.WasRefused())
            case NameTaken():
                self.tell(rules.NameWasTaken())
            case Unknown(_, _, is_over):
                self.tell(rules.CreateUnknown(answered=is_over))

    async def _read(self) -> None:
        if not self.claim.must_look and self._watched():  # after an accepted delete: its end will be told
            self.tell(rules.ReadFailed())
            return
        async with self._api.lane:
            asked_at = time.monotonic()
            answer = await self._api.read_pod(self.claim.name)
        if isinstance(answer, Found | Absent):
            self.looks += 1
        match answer:
            case Found(pod):
                self._note(pod)
                self.tell(rules.ReadFound(pod.uid, pod.nonce, asked_at))
            case Absent():
                self.tell(rules.ReadNothing(asked_at))
            case _:
                self.tell(rules.ReadFailed())

    async def _delete(self, uid: str) -> None:
        async with self._api.lane:
            answer = await self._api.delete_pod(self.claim.name, uid, grace_s=self._grace_s)
        match answer:
            case DeleteAccepted():
                self.tell(rules.DeleteEnded(uid, "accepted"))
            case Absent():
                self.tell(rules.DeleteEnded(uid, "absent"))
            case OtherUid(said):
                self.tell(rules.DeleteEnded(uid, "other_uid"))
                self._log.info("delete in conflict; the pod is looked at", pod=self.claim.name, said=said)
            case _:
                self.failed_deletes += 1
                asked_s = answer.retry_after_s if isinstance(answer, Throttled) else None
                self.tell(rules.DeleteEnded(uid, "failed", asked_s))
                self._log.warning("delete failed; it is tried again", pod=self.claim.name, said=answer.said)

    def _wake_at(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if at is not None:
            delay_s = max(0.0, at - time.monotonic()) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.tell, rules.TimePassed())
