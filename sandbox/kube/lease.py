"""A run's lease: while it is renewed the run lives, and its pods are nobody else's.

It is written and judged by the server's clock. A run whose lease has expired is dead. A pod that names a lease that is
not there is left from a run that ended, since a lease is made before its run's first pod and removed after its last.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import anyio

from sandbox.errors import ProviderUnavailable
from sandbox.kube.api import Api, ApiFailure
from sandbox.kube.manifest import PREFIX
from sandbox.kube.snapshot import parse_time
from sandbox.log import Log
from sandbox.outlast import outlast

GROUP = "apis/coordination.k8s.io/v1"
LABEL = "app.kubernetes.io/managed-by"
CLOCK_MARGIN_S = 5.0
"""The server's clock is known to about a second."""
MAKE_S = 30.0
RETRY_S = 1.5
"""After a renewal that failed; less for a lease of a few seconds."""
END_S = 5.0
"""How long an answer is awaited when a run ends: a lease that is left expires."""


@dataclass(frozen=True)
class Lease:
    """A lease as the server has it."""

    name: str
    uid: str
    version: str
    holder: str
    renewed_at: float | None
    duration_s: float

    def expired(self, server_time: float) -> bool:
        """Whether its run is dead. A lease that was never renewed counts as expired."""
        return self.renewed_at is None or server_time > self.renewed_at + self.duration_s + CLOCK_MARGIN_S


def parse_lease(raw: Mapping[str, Any]) -> Lease:
    """A lease from its JSON."""
    metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    return Lease(
        name=str(metadata.get("name")),
        uid=str(metadata.get("uid")),
        version=str(metadata.get("resourceVersion")),
        holder=str(spec.get("holderIdentity") or ""),
        renewed_at=parse_time(spec.get("renewTime")),
        duration_s=float(spec.get("leaseDurationSeconds") or 0),
    )


async def list_leases(api: Api) -> dict[str, Lease]:
    """All leases of runs in the namespace, by name. Raises `ApiFailure`."""
    query = urlencode({"labelSelector": f"{LABEL}={PREFIX}"})
    answer = await api.call("GET", f"{api.path('leases', group=GROUP)}?{query}")
    leases = [parse_lease(item) for item in answer.get("items") or []]
    return {lease.name: lease for lease in leases}


async def delete_lease(api: Api, lease: Lease) -> bool:
    """Delete it, if it is still as it was. Whether it is gone."""
    preconditions = {"uid": lease.uid, "resourceVersion": lease.version}
    try:
        await api.call("DELETE", api.path("leases", lease.name, group=GROUP), {"preconditions": preconditions})
    except ApiFailure as failure:
        return failure.status == 404
    return True


class RunLease:
    """This run's own. `begin`, then `renew` in a task of its own; when that is cancelled and over, `end`."""

    def __init__(self, api: Api, name: str, *, duration_s: float) -> None:
        self._api = api
        self._name = name
        self._duration_s = duration_s
        self._renewed_at = time.monotonic()
        self._log = Log("sandbox.kube.lease")

    async def begin(self) -> None:
        """Make it. Raises `ProviderUnavailable`. Where that fails or is cancelled, none is left of it."""
        try:
            await self._api.call("GET", "/version")  # tells the server's clock
            making = asyncio.get_running_loop().create_task(self._make(MAKE_S))
            try:
                await asyncio.shield(making)
            except BaseException:
                await outlast({asyncio.get_running_loop().create_task(self._unmake(making))})
                raise
        except ApiFailure as failure:
            raise ProviderUnavailable(
                f"the run's lease cannot be made: {failure}; `kubectl auth can-i create leases` must say yes in "
                f"namespace {self._api.namespace}"
            ) from failure

    async def renew(self) -> None:
        """Renew it until cancelled: three times in its duration, and where that fails again soon, with less patience
        for an answer."""
        while True:
            await anyio.sleep(max(0.0, self._renewed_at + self._duration_s / 3 - time.monotonic()))
            patience_s, longest_s = self._duration_s / 3, self._duration_s / 10
            pause_s = min(RETRY_S, longest_s)
            while not await self._renewed(patience_s):
                await anyio.sleep(pause_s * random.uniform(0.7, 1.3))
                patience_s, pause_s = longest_s, min(longest_s, 2 * pause_s)

    async def _renewed(self, timeout_s: float) -> bool:
        """Renew it, or make it again where it is not there. Whether the server said that it was done."""
        began = time.monotonic()
        try:
            await self._api.call("PATCH", self._path, {"spec": self._spec()}, timeout_s=timeout_s)
        except ApiFailure as failure:
            self._log.warning("lease not renewed", lease=self._name, said=str(failure))
            if failure.status != 404 or not await self._remade(timeout_s):
                return False
        self._renewed_at = began
        return True

    async def end(self) -> None:
        """Take it away: all pods of the run are gone."""
        try:
            await self._api.call("DELETE", self._path, timeout_s=END_S)
        except ApiFailure as failure:
            if failure.status != 404:
                self._log.info("lease left to expire", said=str(failure))

    async def _unmake(self, making: asyncio.Task[None]) -> None:
        """A request that is cut off may be carried out all the same, so its answer is awaited for a little."""
        await asyncio.wait({making}, timeout=END_S)
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
        await self.end()

    async def _remade(self, timeout_s: float) -> bool:
        try:
            await self._make(timeout_s)
        except ApiFailure as failure:
            self._log.warning("lease not made again", lease=self._name, said=str(failure))
            return False
        return True

    async def _make(self, timeout_s: float) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "labels": {LABEL: PREFIX}},
            "spec": self._spec(),
        }
        await self._api.call("POST", self._api.path("leases", group=GROUP), body, timeout_s=timeout_s)

    @property
    def _path(self) -> str:
        return self._api.path("leases", self._name, group=GROUP)

    def _spec(self) -> dict[str, Any]:
        now = datetime.fromtimestamp(self._api.server_time(), UTC)
        return {
            "holderIdentity": f"{socket.gethostname()}/{os.getpid()}",
            "leaseDurationSeconds": round(self._duration_s),
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
