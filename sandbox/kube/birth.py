"""From a claim to a running container: each phase with its own budget, each kind of trouble its own error."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from sandbox.config import KubernetesConfig
from sandbox.errors import CreateError, ImageError, ProviderUnavailable, QuotaExceeded, SandboxError, Unschedulable
from sandbox.kube import ownership as rules
from sandbox.kube.api import ApiFailure, Created, Rejected, Throttled, Unknown
from sandbox.kube.endings import (
    Trouble,
    create_failure,
    ended_early,
    ending,
    ending_of_a_vanished,
    is_pulling,
    last_failure,
    never_started,
    trouble,
)
from sandbox.kube.events import Events
from sandbox.kube.owner import Owner
from sandbox.kube.snapshot import Pod, PodEvent
from sandbox.kube.ticket import PodTicket
from sandbox.pacing import Permit

ASK_AGAIN_S = 1.0
"""After a question about a late pod that the cluster did not answer."""
LOOK_S = 5.0
"""How long a pod may take to be read of which nothing was heard."""
EXPLAIN_AGAIN_S = 2.0
"""Between two questions why a pod waits for its image."""


async def be_stored(owner: Owner, permit: Permit) -> None:
    """Until the pod is stored: sent, sent again where the server asks for it, read back where it is not known."""
    while True:
        owner.tell(rules.MaySend())
        while owner.claim.sending and owner.claim.uid is None:
            await owner.change()
        answer = owner.answer
        if _is_stored(owner):
            permit.accepted()
            owner.stored()
            return
        match answer:
            case Rejected(failure):
                raise _rejected(owner.claim.name, failure)
            case Throttled(retry_after_s):
                permit.refused(retry_after_s)
            case Unknown(_, by_server) if by_server:
                permit.refused()
            case _:
                pass
        if not isinstance(answer, Throttled):
            await _looked_for(owner)
            if _is_stored(owner):
                owner.stored()
                return
        await permit.again()


def _is_stored(owner: Owner) -> bool:
    """Or was, and is gone already: `run` tells of its end."""
    return owner.claim.uid is not None or owner.pod_gone or isinstance(owner.answer, Created)


async def _looked_for(owner: Owner) -> None:
    """Until a read-back has found the pod or answered that it is not there now."""
    looks = owner.looks
    while not _is_stored(owner) and owner.looks == looks:
        await owner.change()
    if owner.claim.uid is None and owner.claim.stranger:
        raise CreateError(
            f"a pod named {owner.claim.name} that is not ours stands in the way; find who makes pods with our names",
            phase="queue",
        )


async def run(ticket: PodTicket, owner: Owner, events: Events, config: KubernetesConfig) -> Pod:
    """Until the container runs and has an address. Raises the typed error of whatever keeps it from that."""
    ticket.clock.enter("schedule")
    budgets = config.budgets
    deadline = time.monotonic() + budgets.schedule_s
    noted = _Noted(events)
    was_looked_at = False
    while True:
        pod = owner.pod
        if owner.pod_gone:
            of_the_end = await events.about_end(pod) if pod is not None else ()
            raise ended_early(
                ticket.sandbox_id,
                ticket.clock.phase or "schedule",
                ending_of_a_vanished(pod, of_the_end, lifetime_s=ticket.spec.lifetime_s),
            )
        if pod is not None:
            end = ending(pod, lifetime_s=ticket.spec.lifetime_s)
            if end is not None:
                never = never_started(pod)
                if never is not None:
                    raise create_failure(ticket.sandbox_id, ticket.spec.image, never)
                raise ended_early(ticket.sandbox_id, ticket.clock.phase or "start", end)
            if pod.running_since is not None and pod.ip is not None:
                return pod
            if pod.node is not None and ticket.clock.phase == "schedule":
                ticket.clock.enter("start")
                deadline = time.monotonic() + budgets.start_s
            known = await noted.about(pod)
            if _is_old(pod, owner):
                continue
            if _judge(ticket, pod, known) and ticket.clock.phase == "start":
                ticket.clock.enter("pull")
                deadline = time.monotonic() + budgets.pull_s
        left_s = deadline - time.monotonic()
        if left_s > 0:
            await owner.change(min(left_s, noted.due_in_s(pod)))
            continue
        if ticket.clock.phase == "schedule" and not was_looked_at and (pod is None or pod.unschedulable is None):
            was_looked_at = True
            await _look(ticket, owner)
            continue
        late = await events.about(pod) if ticket.clock.phase == "start" and pod is not None else ()
        if not _is_old(pod, owner):
            deadline = _extended(ticket, pod, late, config)


def _is_old(pod: Pod | None, owner: Owner) -> bool:
    """Whether there was news of the pod while something else was waited for."""
    return owner.pod is not pod or owner.pod_gone


async def _look(ticket: PodTicket, owner: Owner) -> None:
    """See for ourselves what the scheduler is to be blamed for. Raises where the cluster cannot be read."""
    failure = await owner.refresh(within_s=LOOK_S)
    if failure is None:
        return
    if failure.status in {401, 403}:
        raise _not_allowed("read", failure)
    raise CreateError(
        f"what became of sandbox {ticket.sandbox_id} is not known, the cluster cannot be read: {failure}; see to the "
        "API server and the way to it",
        phase="schedule",
        status=failure.status,
        said=failure.said,
    )


class _Noted:
    """A pod's events, where its status hides why it waits. Asked for anew when that has changed, but not at once."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._known: tuple[PodEvent, ...] = ()
        self._known_of: str | None = None
        """The version of the pod that they were last asked for."""
        self._again_at = 0.0

    async def about(self, pod: Pod) -> tuple[PodEvent, ...]:
        """What is known now."""
        if self.due_in_s(pod) == 0.0:
            told = await self._events.about(pod)
            self._again_at = time.monotonic() + EXPLAIN_AGAIN_S
            if told is not None:
                self._known, self._known_of = told, pod.version
        return self._known

    def due_in_s(self, pod: Pod | None) -> float:
        """When to ask next. Infinite: there is nothing to ask."""
        if pod is None or pod.waiting is None or pod.waiting.reason != "ImagePullBackOff":
            return math.inf
        return math.inf if pod.version == self._known_of else max(0.0, self._again_at - time.monotonic())


def _judge(ticket: PodTicket, pod: Pod, events: Sequence[PodEvent]) -> bool:
    """Raise for what will not pass; note what may. Whether that is its image."""
    found = trouble(pod, events)
    ticket.waits_for = found.said if found is not None else ""
    if found is not None and found.for_good:
        raise create_failure(ticket.sandbox_id, ticket.spec.image, found)
    return found is not None and found.kind == "image"


def _extended(ticket: PodTicket, pod: Pod | None, events: Sequence[PodEvent] | None, config: KubernetesConfig) -> float:
    """The deadline of a pod that is late, if it pulls its image: that has a budget of its own. Where the cluster does
    not tell whether it does, it may, and is asked again. Else raises."""
    budgets, phase = config.budgets, ticket.clock.phase
    if events is None and ticket.clock.seconds()["start"] < budgets.start_s + budgets.pull_s:
        return time.monotonic() + ASK_AGAIN_S
    events = events or ()
    if is_pulling(events):
        ticket.clock.enter("pull")
        return time.monotonic() + budgets.pull_s
    said = ticket.waits_for or last_failure(events) or "the cluster gives no reason"
    if phase == "schedule":
        if pod is not None and pod.unschedulable is not None:
            raise create_failure(
                ticket.sandbox_id, ticket.spec.image, Trouble("unschedulable", True, pod.unschedulable)
            )
        raise Unschedulable(
            f"sandbox {ticket.sandbox_id} got no node in {budgets.schedule_s:g} s: {said}; see to the scheduler, or "
            "allow more (`budgets.schedule_s`)",
            phase="schedule",
            said=said,
        )
    if phase == "pull":
        raise ImageError(
            f"image {ticket.spec.image} was not on its node in {budgets.pull_s:g} s: {said}; pull it beforehand, or "
            "allow more (`budgets.pull_s`)",
            reference=ticket.spec.image,
            phase="pull",
            said=said,
        )
    raise CreateError(
        f"the container of sandbox {ticket.sandbox_id} did not run in {budgets.start_s:g} s: {said}; look at its node"
        f"{' ' + pod.node if pod is not None and pod.node else ''}, or allow more (`budgets.start_s`)",
        phase="start",
        said=said,
    )


def _rejected(name: str, failure: ApiFailure) -> SandboxError:
    """The server will not have this pod."""
    if failure.status == 403 and "exceeded quota" in failure.said:
        return QuotaExceeded(
            f"the namespace's quota has no room for sandbox {name}: {failure.said}; ask for less, or raise the quota",
            phase="queue",
            said=failure.said,
        )
    if failure.status in {401, 403}:
        return _not_allowed("create", failure)
    return CreateError(
        f"the API server rejects sandbox {name}: {failure}; correct what it names in the spec or the provider's config",
        phase="queue",
        status=failure.status,
        said=failure.said,
    )


def _not_allowed(verb: str, failure: ApiFailure) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"the API server does not let us {verb} pods: {failure.said}; give the role that docs/kubernetes.md lists",
        status=failure.status,
        said=failure.said,
    )
