"""What the server says of a pod, as a frozen value parsed from its JSON. Pure; nothing is decided here.

Unknown fields are ignored and absent ones are None, so that servers from 1.20 on are understood. Times are the server's
own, in seconds since the epoch; they are never compared with a clock of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sandbox.kube.manifest import CONTAINER, NONCE_LABEL, RUN_LABEL

JSON = Mapping[str, Any]


@dataclass(frozen=True)
class Waiting:
    """The container does not run yet."""

    reason: str
    message: str


@dataclass(frozen=True)
class Terminated:
    """The container ran, or was to run, and ended."""

    exit_code: int
    reason: str
    message: str
    """Of the runtime or, where the container failed, its last output: never to be trusted."""
    started_at: float | None
    finished_at: float | None

    @property
    def ran_s(self) -> float | None:
        if self.started_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.started_at


@dataclass(frozen=True)
class Pod:
    """One pod at one moment."""

    name: str
    uid: str
    version: str
    """`resourceVersion`: to be compared for equality only."""
    nonce: str | None
    run: str | None
    phase: str
    reason: str
    """Why the pod as a whole is as it is: `Evicted`, `DeadlineExceeded`, `NodeLost`, ..., or empty."""
    message: str
    node: str | None
    ip: str | None
    created_at: float | None
    scheduled_at: float | None
    running_since: float | None
    """Since when the container runs. None: it does not."""
    deleting: bool
    """A delete was accepted; the pod ends within its grace."""
    unschedulable: str | None
    """The scheduler's reason why no node takes it. None: it did not say so."""
    disruption: str | None
    """Reason of the `DisruptionTarget` condition (servers from 1.26 on)."""
    ready: bool | None
    node_silent: bool
    """The cluster itself took the pod's readiness away, the containers' not: its node has not been heard of lately."""
    waiting: Waiting | None
    terminated: Terminated | None
    image_id: str | None


def parse_pod(raw: JSON) -> Pod:
    """The snapshot of a pod's JSON. Raises ValueError when it has no name or UID: it is no pod then."""
    metadata, status, spec = _map(raw, "metadata"), _map(raw, "status"), _map(raw, "spec")
    name, uid = metadata.get("name"), metadata.get("uid")
    if not isinstance(name, str) or not isinstance(uid, str):
        raise ValueError("the server sent a pod without name or UID")
    labels = _map(metadata, "labels")
    conditions = {str(one.get("type")): one for one in _list(status, "conditions")}
    container = next((one for one in _list(status, "containerStatuses") if one.get("name") == CONTAINER), {})
    state = _map(container, "state")
    scheduled, ready = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    disruption, whole = conditions.get("DisruptionTarget", {}), conditions.get("ContainersReady", {})
    return Pod(
        name=name,
        uid=uid,
        version=str(metadata.get("resourceVersion") or ""),
        nonce=labels.get(NONCE_LABEL),
        run=labels.get(RUN_LABEL),
        phase=str(status.get("phase") or "Pending"),
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or ""),
        node=spec.get("nodeName") or None,
        ip=status.get("podIP") or None,
        created_at=parse_time(metadata.get("creationTimestamp")),
        scheduled_at=parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        running_since=parse_time(_map(state, "running").get("startedAt")),
        deleting=bool(metadata.get("deletionTimestamp")),
        unschedulable=_unschedulable(scheduled),
        disruption=str(disruption.get("reason") or "unknown") if disruption.get("status") == "True" else None,
        ready={"True": True, "False": False}.get(str(ready.get("status"))),
        node_silent=ready.get("status") == "False" and whole.get("status") == "True",
        waiting=_waiting(_map(state, "waiting")),
        terminated=_terminated(_map(state, "terminated")),
        image_id=container.get("imageID") or None,
    )


@dataclass(frozen=True)
class PodEvent:
    """What a component of the cluster noted about a pod."""

    reason: str
    message: str


def parse_events(raw: JSON, uid: str) -> tuple[PodEvent, ...]:
    """The events of a list's JSON that are about the pod with this UID, or do not say about which, oldest first."""
    items = [one for one in _list(raw, "items") if _map(one, "involvedObject").get("uid") in (uid, "", None)]
    items.sort(key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
    return tuple(PodEvent(str(one.get("reason") or ""), str(one.get("message") or "")) for one in items)


@dataclass(frozen=True)
class WatchEvent:
    """One line of a watch."""

    kind: Literal["added", "modified", "deleted", "bookmark", "error"]
    pod: Pod | None
    version: str | None
    """Where to go on from. None after an error."""
    code: int | None = None
    """Of an error: 410 means that the version is too old."""


def parse_watch_event(raw: JSON) -> WatchEvent:
    """A line of a watch. Raises ValueError when it is none."""
    kind, thing = str(raw.get("type") or ""), _map(raw, "object")
    if kind == "ERROR":
        return WatchEvent("error", None, None, thing.get("code"))
    version = str(_map(thing, "metadata").get("resourceVersion") or "") or None
    if kind == "BOOKMARK":
        return WatchEvent("bookmark", None, version)
    kinds: dict[str, Literal["added", "modified", "deleted"]] = {
        "ADDED": "added",
        "MODIFIED": "modified",
        "DELETED": "deleted",
    }
    if kind not in kinds:
        raise ValueError(f"the server sent a watch event of the unknown kind {kind[:40]!r}")
    return WatchEvent(kinds[kind], parse_pod(thing), version)


def parse_time(text: object) -> float | None:
    """Seconds since the epoch of an RFC 3339 time. None: it is absent or is none."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _unschedulable(scheduled: JSON) -> str | None:
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return str(scheduled.get("message") or "no node takes it")
    return None


def _waiting(state: JSON) -> Waiting | None:
    return Waiting(str(state.get("reason") or ""), str(state.get("message") or "")) if state else None


def _terminated(state: JSON) -> Terminated | None:
    if not state:
        return None
    return Terminated(
        exit_code=int(state.get("exitCode") or 0),
        reason=str(state.get("reason") or ""),
        message=str(state.get("message") or ""),
        started_at=parse_time(state.get("startedAt")),
        finished_at=parse_time(state.get("finishedAt")),
    )


def _map(raw: JSON, name: str) -> JSON:
    value = raw.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(raw: JSON, name: str) -> list[JSON]:
    value = raw.get(name)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, Sequence) else []
