"""Deletes what dead runs left behind: pods whose run's lease has expired or is gone, and nothing else.

Pods are listed before leases. A lease is made before its run's first pod, so one that is missing then is of a run that
has ended. Deletes take their time, and a run may renew its lease late: the leases are looked at again meanwhile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from sandbox.kube.api import Absent, Api, ApiFailure, DeleteAccepted, Found, OtherUid
from sandbox.kube.lease import Lease, delete_lease, list_leases
from sandbox.kube.manifest import LEASE_LABEL, NONCE_LABEL, SANDBOX_LABEL

LEASES_HOLD_S = 2.0
"""Deletes go on for so long after a look at the leases, and then there is another."""


@dataclass(frozen=True)
class Marked:
    """A pod that carries our marks."""

    name: str
    uid: str
    lease: str


@dataclass(frozen=True)
class Swept:
    """What one run of the janitor did."""

    deleted: tuple[str, ...]
    """Pods that were deleted, by name."""
    kept: int
    """Pods of runs that live."""
    failed: tuple[str, ...]
    """Pods that the server would not delete; the next run tries again."""
    leases: tuple[str, ...]
    """Expired leases that were removed."""


def ownerless(pods: Iterable[Marked], leases: Mapping[str, Lease], server_time: float) -> list[Marked]:
    """Those whose run is dead. Pure."""
    return [pod for pod in pods if pod.lease not in leases or leases[pod.lease].expired(server_time)]


async def sweep(api: Api, *, grace_s: int = 1) -> Swept:
    """Delete what dead runs left in the namespace. Raises `ApiFailure` when it cannot be listed."""
    pods = await _marked_pods(api)
    leases = await list_leases(api)
    doomed = ownerless(pods, leases, api.server_time())
    kept = len(pods) - len(doomed)
    deleted: list[str] = []
    failed: list[str] = []
    looked_at = -math.inf
    for number, pod in enumerate(doomed):
        if time.monotonic() - looked_at > LEASES_HOLD_S:
            looked_at = time.monotonic()
            try:
                leases = await list_leases(api)
            except ApiFailure:
                failed += [left.name for left in doomed[number:]]
                break
        if not ownerless([pod], leases, api.server_time()):
            kept += 1
        elif isinstance(answer := await api.delete_pod(pod.name, pod.uid, grace_s=grace_s), DeleteAccepted):
            deleted.append(pod.name)
        elif not isinstance(answer, Absent) and not (isinstance(answer, OtherUid) and await _is_gone(api, pod)):
            failed.append(pod.name)
    removed = await _remove_leases(api, leases, keep={pod.lease for pod in pods} if failed else frozenset())
    return Swept(tuple(deleted), kept, tuple(failed), removed)


async def _is_gone(api: Api, pod: Marked) -> bool:
    found = await api.read_pod(pod.name)
    return isinstance(found, Absent) or (isinstance(found, Found) and found.pod.uid != pod.uid)


async def _remove_leases(api: Api, leases: Mapping[str, Lease], *, keep: Iterable[str]) -> tuple[str, ...]:
    now = api.server_time()
    expired = [lease for lease in leases.values() if lease.expired(now) and lease.name not in set(keep)]
    return tuple([lease.name for lease in expired if await delete_lease(api, lease)])


async def _marked_pods(api: Api) -> list[Marked]:
    """Pods with all of our marks; one that lacks any of them is not ours to touch. Raises `ApiFailure`."""
    query = {"labelSelector": f"{SANDBOX_LABEL}=true,{LEASE_LABEL},{NONCE_LABEL}"}
    try:
        return await _pages_of_pods(api, {**query, "limit": "500"})
    except ApiFailure as failure:
        if failure.status != 410:
            raise
    return await _pages_of_pods(api, query)  # the server kept no such old list: it comes in one piece


async def _pages_of_pods(api: Api, query: dict[str, str]) -> list[Marked]:
    found: list[Marked] = []
    while True:
        page = await api.call("GET", f"{api.path('pods')}?{urlencode(query)}")
        for item in page.get("items") or []:
            metadata = item.get("metadata") or {}
            found.append(Marked(metadata["name"], metadata["uid"], metadata["labels"][LEASE_LABEL]))
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return found
        query = {**query, "continue": str(following)}


__all__ = ["ApiFailure", "Marked", "Swept", "ownerless", "sweep"]
