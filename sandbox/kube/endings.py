"""How a sandbox's pod ended, or why it will not start: from what the server says, never from what ran inside. Pure.

`ending` names the cause of a pod that is over; `trouble` names what keeps a pending pod from starting for good, and
what may pass. The errors that callers get are made here too: each cause has its own type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sandbox.errors import (
    ContainerEnded,
    CreateError,
    DeletedByAnother,
    Evicted,
    ImageError,
    LifetimeOver,
    NodeLost,
    OutOfMemory,
    Preempted,
    Replaced,
    SandboxError,
    SandboxLost,
    Unschedulable,
)
from sandbox.kube.snapshot import Pod, PodEvent, Terminated, Waiting

Cause = Literal[
    "out_of_memory", "evicted", "preempted", "node_lost", "lifetime", "deleted", "replaced", "ended", "rejected_by_node"
]

_LOST: dict[Cause, tuple[type[SandboxLost], str]] = {
    "out_of_memory": (OutOfMemory, "give it more memory, or take a new sandbox"),
    "evicted": (Evicted, "take a new sandbox; if its node was short of memory or disk, set requests that are true"),
    "preempted": (Preempted, "give the sandboxes a higher priority class, or take a new one"),
    "node_lost": (NodeLost, "take a new sandbox; the pod may still run until the cluster gives the node up"),
    "lifetime": (LifetimeOver, "ask for a longer `lifetime_s`"),
    "deleted": (DeletedByAnother, "find who deletes pods in this namespace; take a new sandbox"),
    "replaced": (Replaced, "find who makes pods with our names in this namespace; take a new sandbox"),
    "ended": (ContainerEnded, "take a new sandbox"),
    "rejected_by_node": (SandboxLost, "take a new sandbox; where its node refuses them all, mend what it names"),
}

_POD_REASONS: dict[str, Cause] = {
    "Evicted": "evicted",
    "Preempting": "preempted",
    "Preempted": "preempted",
    "NodeLost": "node_lost",
    "NodeShutdown": "node_lost",
    "Shutdown": "node_lost",
    "Terminated": "node_lost",
    "DeadlineExceeded": "lifetime",
}

_REFUSALS = {
    "AppArmor",
    "Forbidden",
    "InvalidNodeInfo",
    "NoNewPrivs",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "ProcMount",
    "SysctlForbidden",
    "TaintToleration",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
}
"""Of a node that will not have a pod which the scheduler gave it (kubelet's `lifecycle` and its admit handlers); beside
these it says what it is out of: `OutOfcpu`, `OutOfpods`, ..."""

_DISRUPTIONS: dict[str, Cause] = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "evicted",
    "DeletionByTaintManager": "node_lost",  # see `_by_a_taint`
    "DeletionByPodGC": "node_lost",
    "TerminationByKubelet": "evicted",
}

_EVENTS: dict[str, Cause] = {
    "Preempted": "preempted",
    "Evicted": "evicted",
    "TaintManagerEviction": "node_lost",  # see `_by_a_taint`
}

REASONS_OF_ENDS = tuple(_EVENTS)
"""Of events: those that tell why a pod ended."""

_CALLED_OFF = "Cancelling"
"""So begins the note, under the same reason, that a taint was taken away before its pods had to go."""

KILLED_EXIT = 128 + 9
_BY_ANOTHER = "the pod was deleted, and not by this run"

LIFETIME_TOLERANCE_S = 2.0
"""The server's times are whole seconds."""


@dataclass(frozen=True)
class Ending:
    """Why a sandbox is no more, with what was seen."""

    cause: Cause
    said: str
    """The cluster's own words, for people. They choose nothing."""
    node: str | None = None
    exit_code: int | None = None


def ending(pod: Pod, *, lifetime_s: float) -> Ending | None:
    """Why the pod is over. None: it is not, as far as this snapshot tells."""
    whole = _end_of_the_pod(pod)
    if whole is not None:
        said = pod.message.strip() or pod.reason or str(pod.disruption)
        return Ending(whole, said, pod.node, _exit_code(pod))
    if pod.terminated is not None:
        return _end_of_the_container(pod, pod.terminated, lifetime_s)
    if pod.phase in {
        "Failed",
        "Succeeded",
    }:  # a node that is asked to end a pod may say so first, and how it ended later
        said = pod.message or f"the pod is {pod.phase}"
        return (
            Ending("deleted", f"{_BY_ANOTHER}; {said}", pod.node) if pod.deleting else Ending("ended", said, pod.node)
        )
    return None


def nothing_runs(pod: Pod) -> bool:
    """Whether its node, or the cluster for it, has said that the pod's container runs no more, or is about to."""
    return pod.terminated is not None or pod.phase in {"Failed", "Succeeded"}


def _end_of_the_container(pod: Pod, ended: Terminated, lifetime_s: float) -> Ending:
    said = f"{ended.reason or 'ended'} with exit code {ended.exit_code}"
    if ended.reason == "OOMKilled" and ended.exit_code == KILLED_EXIT:  # else it was some command, and long ago
        return Ending("out_of_memory", said, pod.node, ended.exit_code)
    if pod.deleting:  # its first process ends as it is asked to, which is no end of its own
        return Ending("deleted", f"{_BY_ANOTHER}; {said}", pod.node, ended.exit_code)
    ran_s = ended.ran_s
    if ended.exit_code == 0 and ran_s is not None and ran_s >= lifetime_s - LIFETIME_TOLERANCE_S:
        return Ending("lifetime", said, pod.node, ended.exit_code)
    return Ending("ended", said, pod.node, ended.exit_code)


def ending_of_a_vanished(last: Pod | None, events: Sequence[PodEvent] | None, *, lifetime_s: float) -> Ending:
    """Why a pod is gone, or going, that we did not delete: from its last snapshot and the last that the cluster noted,
    where that could be read."""
    known = ending(last, lifetime_s=lifetime_s) if last is not None else None
    if known is not None and known.cause != "deleted":
        return known
    node, exit_code = (last.node, _exit_code(last)) if last is not None else (None, None)
    for event in reversed(events or ()):
        if event.reason in _EVENTS and not event.message.startswith(_CALLED_OFF):
            cause = _by_a_taint(_EVENTS[event.reason], last)
            return Ending(cause, f"{event.reason}: {event.message}", node, exit_code)
    if last is not None and last.node_silent:
        return silence(last)
    if events is None:
        return Ending("deleted", f"{_BY_ANOTHER}; what the cluster noted about it could not be read", node, exit_code)
    return known or Ending("deleted", _BY_ANOTHER, node)


def replaced(pod: Pod, *, by: Pod) -> Ending:
    """The ending of a pod whose name and nonce another pod bears now."""
    return Ending("replaced", f"the pod is {by.uid} now and was {pod.uid}", pod.node)


def silence(pod: Pod) -> Ending:
    """The ending of a sandbox that cannot be reached and whose pod is `node_silent`."""
    return Ending("node_lost", "the cluster has not heard of its node lately", pod.node)


def _by_a_taint(cause: Cause, pod: Pod | None) -> Cause:
    """A node that reports how a container ended is there: somebody empties it."""
    return "evicted" if cause == "node_lost" and pod is not None and pod.terminated is not None else cause


def lost(sandbox_id: str, end: Ending) -> SandboxLost:
    """The error of a sandbox that is no more."""
    kind, remedy = _LOST[end.cause]
    where = f" on {end.node}" if end.node else ""
    return kind(
        f"sandbox {sandbox_id}{where} is lost ({end.cause}): {end.said}; {remedy}",
        cause=end.cause,
        said=end.said,
        node=end.node,
        exit_code=end.exit_code,
    )


@dataclass(frozen=True)
class Trouble:
    """What keeps a pending pod from starting."""

    kind: Literal["unschedulable", "image", "container"]
    for_good: bool
    """Waiting longer does not help. False: it may pass within the phase's budget."""
    said: str


_IMAGE_FOR_GOOD = (
    "not found",
    "manifest unknown",
    "name unknown",
    "does not exist",
    "unauthorized",
    "authorization failed",
    "access denied",
    "denied:",
    "forbidden",
    "invalid reference",
    "no match for platform",
)
_IMAGE_MAY_PASS = ("429", "too many requests", "toomanyrequests", "timeout", "timed out", "no such host")
_WAITING_FOR_THE_IMAGE = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"}
_NEVER_AN_IMAGE = {"InvalidImageName", "ErrImageNeverPull"}
_NEVER_A_CONTAINER = {"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"}


def trouble(pod: Pod, events: Sequence[PodEvent] = ()) -> Trouble | None:
    """What a pending pod waits for that is not its ordinary way. `events` tell what a back-off hides."""
    if pod.unschedulable is not None:
        return Trouble("unschedulable", False, pod.unschedulable)
    return _container_trouble(pod.waiting, events) if pod.waiting is not None else None


def _container_trouble(waiting: Waiting, events: Sequence[PodEvent]) -> Trouble | None:
    said = waiting.message
    if waiting.reason == "ImagePullBackOff":  # its message does not tell why
        said = next((one.message for one in reversed(events) if one.reason == "Failed" and ":" in one.message), said)
    words = f"{waiting.reason}: {said}"
    if waiting.reason in _NEVER_AN_IMAGE:
        return Trouble("image", True, words)
    if waiting.reason in _WAITING_FOR_THE_IMAGE:
        return Trouble("image", _is_for_good(said), words)
    if waiting.reason in _NEVER_A_CONTAINER:
        return Trouble("container", True, words)
    if waiting.reason == "CreateContainerConfigError":  # a ConfigMap or secret may come a moment later
        return Trouble("container", False, words)
    return None


def never_started(pod: Pod) -> Trouble | None:
    """What kept a container whose end is told from running at all."""
    ended = pod.terminated
    if ended is None or ended.reason not in _NEVER_A_CONTAINER:
        return None
    return Trouble("container", True, f"{ended.reason}: {ended.message}")


def last_failure(events: Sequence[PodEvent]) -> str | None:
    """What failed last on the way to a running container: a volume, the pod's network."""
    return next((f"{one.reason}: {one.message}" for one in reversed(events) if one.reason.startswith("Failed")), None)


def is_pulling(events: Sequence[PodEvent]) -> bool:
    """Whether the node pulls the image now, as its events tell."""
    pulls = [one.reason for one in events if one.reason in {"Pulling", "Pulled"}]
    return bool(pulls) and pulls[-1] == "Pulling"


def pull_seconds(events: Sequence[PodEvent]) -> float | None:
    """How long the pull took, from the kubelet's own words. None: it did not pull, or does not say."""
    for event in reversed(events):
        said = re.search(r"pulled image .* in (?:(\d+)m)?(\d+(?:\.\d+)?)(ms|s)", event.message)
        if event.reason == "Pulled" and said:
            minutes, number, unit = said.groups()
            return int(minutes or 0) * 60 + float(number) * (0.001 if unit == "ms" else 1.0)
    return None


def create_failure(sandbox_id: str, image: str, found: Trouble) -> SandboxError:
    """The error of a sandbox that will not start."""
    if found.kind == "unschedulable":
        return Unschedulable(
            f"no node takes sandbox {sandbox_id}: {found.said}; ask for less, add nodes, or correct node selector and "
            "tolerations",
            phase="schedule",
            said=found.said,
        )
    if found.kind == "image":
        return ImageError(
            f"image {image} cannot be had for sandbox {sandbox_id}: {found.said}; check the reference, the registry "
            "and `pull_secrets`",
            reference=image,
            said=found.said,
            phase="pull",
        )
    return CreateError(
        f"the container of sandbox {sandbox_id} does not start: {found.said}; the image needs bash, and the cluster "
        "what the config names",
        phase="start",
        said=found.said,
    )


def ended_early(sandbox_id: str, phase: str, end: Ending) -> CreateError:
    """The error of a sandbox that ended before it was ready, with its cause chained."""
    cause = lost(sandbox_id, end)
    error = CreateError(
        f"sandbox {sandbox_id} ended before it was ready ({end.cause}): {end.said}; take a new one",
        phase=phase,
        cause=end.cause,
        said=end.said,
        node=end.node,
        exit_code=end.exit_code,
    )
    error.__cause__ = cause
    return error


def _end_of_the_pod(pod: Pod) -> Cause | None:
    if pod.phase == "Failed" and (pod.reason.startswith("OutOf") or pod.reason in _REFUSALS):
        return "rejected_by_node"
    if pod.reason in _POD_REASONS and pod.phase in {"Failed", "Unknown"}:
        return _POD_REASONS[pod.reason]
    if pod.phase == "Unknown":
        return "node_lost"
    if pod.disruption is not None and (pod.deleting or pod.phase == "Failed"):
        return _by_a_taint(_DISRUPTIONS.get(pod.disruption, "evicted"), pod)
    return None


def _exit_code(pod: Pod) -> int | None:
    return pod.terminated.exit_code if pod.terminated is not None else None


def _is_for_good(said: str) -> bool:
    text = said.lower()
    if any(sign in text for sign in _IMAGE_MAY_PASS):
        return False
    return any(sign in text for sign in _IMAGE_FOR_GOOD)
