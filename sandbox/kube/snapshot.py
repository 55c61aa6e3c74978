"""What the server says of a pod, as a frozen value parsed from its JSON. Pure; nothing is decided here.

Absent fields are None, so that servers from 1.20 on are understood. Times are the server's own, in seconds since the
epoch; they are never compared with a clock of ours.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sandbox.kube.manifest import CONTAINER, NONCE_LABEL, RUN_LABEL
from sandbox.kube.podjson import (
    EVENT,
    EVENT_LIST,
    LINE,
    POD,
    POD_LIST,
    ConditionJSON,
    ContainerJSON,
    EventJSON,
    ListMetadataJSON,
    PodJSON,
    Raw,
    TerminatedJSON,
    WaitingJSON,
    read,
)

_UNTOLD: ConditionJSON = {"type": "", "status": "Unknown"}


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


def parse_pod(raw: Raw) -> Pod:
    """The snapshot of a pod's JSON. Raises ValueError when it has no name or UID, or is none at all."""
    return _pod(read(POD, raw))


def parse_list(raw: Raw) -> tuple[list[Pod], ListMetadataJSON]:
    """The pods of one page of a list, and what the page says of itself. Raises ValueError."""
    page = read(POD_LIST, raw)
    return [_pod(one) for one in page.get("items") or ()], page["metadata"]


def _pod(raw: PodJSON) -> Pod:
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    nothing: ContainerJSON = {"name": CONTAINER}
    container = next((one for one in status.get("containerStatuses") or () if one["name"] == CONTAINER), nothing)
    state = container.get("state") or {}
    scheduled, ready = conditions.get("PodScheduled", _UNTOLD), conditions.get("Ready", _UNTOLD)
    disruption, whole = conditions.get("DisruptionTarget", _UNTOLD), conditions.get("ContainersReady", _UNTOLD)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata.get("resourceVersion") or "",
        nonce=labels.get(NONCE_LABEL),
        run=labels.get(RUN_LABEL),
        phase=status.get("phase") or "Pending",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        node=(raw.get("spec") or {}).get("nodeName") or None,
        ip=status.get("podIP") or None,
        created_at=parse_time(metadata.get("creationTimestamp")),
        scheduled_at=parse_time(scheduled.get("lastTransitionTime")) if scheduled["status"] == "True" else None,
        running_since=parse_time((state.get("running") or {}).get("startedAt")),
        deleting=bool(metadata.get("deletionTimestamp")),
        unschedulable=_unschedulable(scheduled),
        disruption=(disruption.get("reason") or "unknown") if disruption["status"] == "True" else None,
        ready={"True": True, "False": False}.get(ready["status"]),
        node_silent=ready["status"] == "False" and whole["status"] == "True",
        waiting=_waiting(state.get("waiting")),
        terminated=_terminated(state.get("terminated")),
        image_id=container.get("imageID") or None,
    )


@dataclass(frozen=True)
class PodEvent:
    """What a component of the cluster noted about a pod."""

    reason: str
    message: str
    name: str = ""
    """The pod's, and its UID: "" where whoever noted it left that out."""
    uid: str = ""
    at: float = 0.0
    """When it was noted last. Some components tell whole seconds only. 0.0: it is not told."""


def parse_events(raw: Raw) -> tuple[list[PodEvent], str]:
    """The events of one page of a list's JSON, and what the next page goes on from; "" when there is none.
    An event that cannot be read is left out. Raises ValueError when it is no list."""
    page = read(EVENT_LIST, raw)
    events: list[PodEvent] = []
    for item in page.get("items") or ():
        with contextlib.suppress(ValueError):
            events.append(_event(read(EVENT, item)))
    return events, (page.get("metadata") or {}).get("continue") or ""


def _event(raw: EventJSON) -> PodEvent:
    about = raw.get("involvedObject") or {}
    return PodEvent(
        raw.get("reason") or "",
        raw.get("message") or "",
        about.get("name") or "",
        about.get("uid") or "",
        parse_time(raw.get("lastTimestamp") or raw.get("eventTime")) or 0.0,
    )


@dataclass(frozen=True)
class WatchEvent:
    """One line of a watch."""

    kind: Literal["added", "modified", "deleted", "bookmark", "error"]
    pod: Pod | None
    version: str | None
    """Where to go on from. None after an error."""
    code: int | None = None
    """Of an error: 410 means that the version is too old."""


_KINDS: dict[str, Literal["added", "modified", "deleted"]] = {
    "ADDED": "added",
    "MODIFIED": "modified",
    "DELETED": "deleted",
}


def parse_watch_event(raw: Raw) -> WatchEvent:
    """A line of a watch. Raises ValueError when it is none."""
    line = read(LINE, raw)
    if line["type"] == "ERROR":
        return WatchEvent("error", None, None, line["object"].get("code"))
    if line["type"] == "BOOKMARK":
        return WatchEvent("bookmark", None, line["object"]["metadata"].get("resourceVersion") or None)
    pod = _pod(line["object"])
    return WatchEvent(_KINDS[line["type"]], pod, pod.version or None)


def parse_time(text: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time. None: it is absent or is none."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _unschedulable(scheduled: ConditionJSON) -> str | None:
    if scheduled["status"] == "False" and scheduled.get("reason") == "Unschedulable":
        return scheduled.get("message") or "no node takes it"
    return None


def _waiting(state: WaitingJSON | None) -> Waiting | None:
    return Waiting(state.get("reason") or "", state.get("message") or "") if state else None


def _terminated(state: TerminatedJSON | None) -> Terminated | None:
    if not state:
        return None
    return Terminated(
        exit_code=state.get("exitCode") or 0,
        reason=state.get("reason") or "",
        message=state.get("message") or "",
        started_at=parse_time(state.get("startedAt")),
        finished_at=parse_time(state.get("finishedAt")),
    )
