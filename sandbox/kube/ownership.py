"""Who must delete a pod, and when: the rules of one sandbox's claim on its pods. Pure: events in, requests out.

The law, whatever is lost, doubled, delayed or refused, and in whatever order it is heard of:
- Name and nonce are chosen before the request. A create that was not sent when its caller gave up is not sent.
- A create whose outcome is unknown stays in doubt until it is read back, and until no server can store it any more.
- Only a pod that carries our nonce comes to be ours. A delete names the UID, so it can hit no other pod.
- An abandoned pod is deleted as soon as its UID is known, not when it is ready. A delete that fails is tried again for
  as long as the process lives. A pod is gone when the server says so of its UID, not when that was asked for.
- A claim is closed only when no pod of it exists and none can come to exist.

News may be old: a watch lags behind the answers to requests. So a pod counts until there is proof that it is gone, and
a look at the name proves something only about pods that were known before it was asked for. The same create may be sent
again under its name, since the server stores one pod of a name: a repeat meets itself.

What else happens to the pod (ready, killed, evicted) is no matter of ownership.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

DOUBT_S = 90.0
"""How long after a create was sent a server may still store it: the longest request time-out of an API server (60 s)
and what a request may wait before. An answer that says otherwise ends the doubt earlier."""

ANSWERED_DOUBT_S = 10.0
"""The same once the API server has answered with an error of its own: the request is over there, but what it had asked
of the store may not be."""

FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 10.0
LONGEST_RETRY_AFTER_S = 60.0
"""However long the server asks to wait with a delete, it is tried again by then."""
FIRST_LOOK_S = 5.0
LONGEST_LOOK_S = 60.0
"""An accepted delete is looked after, less and less often, in case no watch tells of its end."""


# -- what happens ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaySend:
    """The caller's turn has come: the create may be sent, for the first time or again."""


@dataclass(frozen=True)
class WasCreated:
    """The server's answer: stored."""

    uid: str


@dataclass(frozen=True)
class WasRefused:
    """The server's answer: this request was not stored and will not be."""


@dataclass(frozen=True)
class CreateUnknown:
    """No answer, or one that leaves open whether the pod is stored or will be."""

    answered: bool = False
    """The API server itself ended the request, with an error of its own."""


@dataclass(frozen=True)
class NameWasTaken:
    """The server's answer: a pod of our name exists, so this request was not stored. It may be ours, from before."""


@dataclass(frozen=True)
class Seen:
    """A pod of our name exists, or did: from a list or a watch."""

    uid: str
    nonce: str | None


@dataclass(frozen=True)
class SeenGone:
    """The server said that the pod with this UID is no more (a watch's DELETED)."""

    uid: str


@dataclass(frozen=True)
class LostSight:
    """A watch tells of the pod with this UID no more, and not why: it is gone, or its labels are."""

    uid: str


@dataclass(frozen=True)
class NotListed:
    """A list, sent at `asked_at`, had no pod of our name."""

    asked_at: float


@dataclass(frozen=True)
class ReadFound:
    """A read-back, sent at `asked_at`, found this pod under our name."""

    uid: str
    nonce: str | None
    asked_at: float


@dataclass(frozen=True)
class ReadNothing:
    """A read-back, sent at `asked_at`, found no pod of our name."""

    asked_at: float


@dataclass(frozen=True)
class ReadFailed:
    """A read-back got no answer."""


@dataclass(frozen=True)
class Abandoned:
    """The caller is done, or gave up, or failed. May be said at any time, any number of times."""


@dataclass(frozen=True)
class DeleteEnded:
    """The answer to a delete. "other_uid" is a word of a conflict, which only a look at the name can prove."""

    uid: str
    outcome: Literal["accepted", "absent", "other_uid", "failed"]
    retry_after_s: float | None = None
    """Of a failed one: how long the server asked to wait."""


@dataclass(frozen=True)
class TimePassed:
    """Nothing happened but time."""


Event = (
    MaySend
    | WasCreated
    | WasRefused
    | NameWasTaken
    | CreateUnknown
    | Seen
    | SeenGone
    | LostSight
    | NotListed
    | ReadFound
    | ReadNothing
    | ReadFailed
    | Abandoned
    | DeleteEnded
    | TimePassed
)


# -- what to do --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SendCreate:
    """Send the create once; answer with WasCreated, WasRefused, NameWasTaken or CreateUnknown."""


@dataclass(frozen=True)
class ReadBack:
    """Read the pod by name; answer with ReadFound, ReadNothing or ReadFailed."""


@dataclass(frozen=True)
class Delete:
    """Delete the pod with this UID and no other; answer with DeleteEnded."""

    uid: str


@dataclass(frozen=True)
class WakeAt:
    """Say TimePassed at this time."""

    at: float


Request = SendCreate | ReadBack | Delete | WakeAt


# -- the claim ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Owned:
    """A pod of ours that exists, as far as is proved."""

    uid: str
    since: float
    """When it became known. What was asked before that says nothing about it."""
    deleting: bool = False
    """A delete is out and unanswered."""
    accepted: bool = False
    """The server took the delete; the pod is on its way out."""
    doubted_at: float | None = None
    """When it was said to be no more, without proof: a look at the name tells, one that is asked after that."""
    watched: bool = True
    """A watch will tell of its end."""
    retry_at: float = 0.0
    tries: int = 0


@dataclass(frozen=True)
class Claim:
    """One sandbox's claim. `step` is the only way to the next one."""

    name: str
    nonce: str
    wanted: bool = True
    owned: tuple[Owned, ...] = ()
    """Nearly always at most one."""
    gone: frozenset[str] = frozenset()
    """UIDs that are no more, so that late news of them is known for what it is."""
    sending: bool = False
    """A create is out and unanswered."""
    sent_at: float = 0.0
    sighted: bool = False
    """The pod of the create that is out was seen before its answer."""
    doubts: tuple[float, ...] = ()
    """Creates of unknown outcome: until when each may still be stored."""
    stranger: bool = False
    """At the last look our name was another's."""
    reading: bool = False
    retry_at: float = 0.0
    """When to read back next."""
    tries: int = 0

    @property
    def uid(self) -> str | None:
        """The pod to use, if one is known."""
        return self.owned[0].uid if self.owned else None

    def owns(self, uid: str) -> bool:
        """Whether this pod is known to be ours, whatever labels it bears by now."""
        return any(uid == pod.uid for pod in self.owned)

    @property
    def must_look(self) -> bool:
        """Whether a look at the name tells what no watch will."""
        return bool(self.doubts) or not all(pod.watched for pod in self.owned)

    @property
    def closed(self) -> bool:
        """Nothing of it exists and nothing can come to exist: nobody need look after it any more."""
        return not (self.wanted or self.owned or self.sending or self.doubts)


def step(claim: Claim, event: Event, now: float) -> tuple[Claim, tuple[Request, ...]]:
    """The claim after `event`, and what to do. `now` is any monotonic clock's time in seconds."""
    claim = _heard(claim, event, now)
    if isinstance(event, MaySend):
        if not claim.wanted or claim.owned or claim.sending:
            return claim, ()
        return replace(claim, sending=True, sent_at=now, sighted=False, stranger=False), (SendCreate(),)
    return _next(claim, now)


def _heard(claim: Claim, event: Event, now: float) -> Claim:
    """What the event tells, put down."""
    match event:
        case WasCreated() | WasRefused() | NameWasTaken() | CreateUnknown():
            claim = _answered(claim, event, now)
        case Seen(uid, nonce):
            claim = _learn(claim, uid, now) if nonce == claim.nonce else claim
        case SeenGone(uid):
            claim = _forget(claim, uid)
        case LostSight(uid):
            claim = _doubt(claim, uid, now)
        case NotListed(asked_at):
            claim = _looked(claim, None, asked_at)
        case ReadFound() | ReadNothing() | ReadFailed():
            claim = _read(replace(claim, reading=False), event, now)
        case Abandoned():
            claim = replace(claim, wanted=False)
        case DeleteEnded(uid, outcome):
            claim = _forget(claim, uid) if outcome == "absent" else _asked_to_go(claim, event, now)
            claim = _doubt(claim, uid, now) if outcome == "other_uid" else claim
        case MaySend() | TimePassed():
            pass
    return claim


def _next(claim: Claim, now: float) -> tuple[Claim, tuple[Request, ...]]:
    """What is to be done now, given what is known."""
    requests: list[Request] = []
    look_at = [pod.retry_at for pod in claim.owned if pod.doubted_at is not None]
    if not claim.wanted:
        for pod in claim.owned:
            if pod.accepted:
                look_at.append(pod.retry_at)
            elif not pod.deleting and pod.doubted_at is None:
                requests.append(Delete(pod.uid) if pod.retry_at <= now else WakeAt(pod.retry_at))
        to_go = {request.uid for request in requests if isinstance(request, Delete)}
        claim = replace(
            claim, owned=tuple(replace(pod, deleting=pod.deleting or pod.uid in to_go) for pod in claim.owned)
        )
    if claim.doubts and not claim.sending and not claim.owned:
        look_at.append(claim.retry_at)
    if look_at and not claim.reading:
        if min(look_at) <= now:
            claim = replace(claim, reading=True)
            requests.append(ReadBack())
        else:
            requests.append(WakeAt(min(look_at)))
    return claim, tuple(requests)


def _answered(claim: Claim, event: WasCreated | WasRefused | NameWasTaken | CreateUnknown, now: float) -> Claim:
    """The create that was out is out no more."""
    sighted = claim.sighted
    claim = replace(claim, sending=False, sighted=False)
    match event:
        case WasCreated(uid):
            return _add(claim, uid, now)
        case NameWasTaken():  # one look that is asked from now on settles it
            return replace(claim, doubts=(*claim.doubts, now), retry_at=now, tries=0)
        case CreateUnknown(answered) if not sighted:
            until = now + ANSWERED_DOUBT_S if answered else claim.sent_at + DOUBT_S
            return replace(claim, doubts=(*claim.doubts, until), retry_at=now, tries=0)
        case _:
            return claim


def _read(claim: Claim, event: ReadFound | ReadNothing | ReadFailed, now: float) -> Claim:
    match event:
        case ReadFailed():
            return _later(claim, now)
        case ReadNothing(asked_at):
            return _later(_looked(replace(claim, stranger=False), None, asked_at), now)
        case ReadFound(uid, nonce, asked_at) if nonce == claim.nonce or claim.owns(uid):
            claim = _still_there(_looked(claim, uid, asked_at), uid, asked_at, now)
            return _later(_learn(replace(claim, stranger=False), uid, now), now)
        case ReadFound(uid, _, asked_at):
            return _later(_looked(replace(claim, stranger=True), None, asked_at), now)


def _looked(claim: Claim, found: str | None, asked_at: float) -> Claim:
    """A look at the name, sent at `asked_at`, found the pod `found` of ours, or none of ours: the pods that were known
    before and not found are gone, and creates that no server could store any more by then have not been stored since.
    """
    for pod in claim.owned:
        if pod.uid != found and pod.since < asked_at:
            claim = _forget(claim, pod.uid)
    return replace(claim, doubts=tuple(until for until in claim.doubts if until > asked_at))


def _doubt(claim: Claim, uid: str, now: float) -> Claim:
    def doubted(pod: Owned) -> Owned:
        return replace(pod, doubted_at=now, watched=False, retry_at=now) if pod.uid == uid else pod

    return replace(claim, owned=tuple(doubted(pod) for pod in claim.owned))


def _still_there(claim: Claim, uid: str, asked_at: float, now: float) -> Claim:
    """A look, sent at `asked_at`, found this pod, whatever was said of it before."""
    return replace(
        claim,
        owned=tuple(
            replace(_put_off(pod, now), doubted_at=None)
            if pod.uid == uid and pod.doubted_at is not None and pod.doubted_at < asked_at
            else pod
            for pod in claim.owned
        ),
    )


def _learn(claim: Claim, uid: str, now: float) -> Claim:
    """A pod of ours was seen. If it was not known it answers one create of unknown outcome, or the one that is out."""
    if uid in claim.gone or claim.owns(uid):
        return claim
    if claim.sending:
        claim = replace(claim, sighted=not claim.doubts)
    elif claim.doubts:  # whichever it was: the latest limit stays for the others
        claim = replace(claim, doubts=tuple(sorted(claim.doubts)[1:]))
    return _add(claim, uid, now)


def _add(claim: Claim, uid: str, now: float) -> Claim:
    if uid in claim.gone or claim.owns(uid):
        return claim
    return replace(claim, owned=(*claim.owned, Owned(uid, now)))


def _forget(claim: Claim, uid: str) -> Claim:
    """The server said that this pod is no more."""
    return replace(claim, owned=tuple(pod for pod in claim.owned if pod.uid != uid), gone=claim.gone | {uid})


def _asked_to_go(claim: Claim, event: DeleteEnded, now: float) -> Claim:
    def after(pod: Owned) -> Owned:
        if pod.uid != event.uid:
            return pod
        if event.outcome == "accepted":
            return replace(pod, deleting=False, accepted=True, retry_at=now + FIRST_LOOK_S, tries=0)
        pod = replace(pod, deleting=False)
        return _put_off(pod, now, event.retry_after_s or 0.0) if event.outcome == "failed" else pod

    return replace(claim, owned=tuple(after(pod) for pod in claim.owned))


def _later(claim: Claim, now: float) -> Claim:
    """Look again, later and later, but not later than the end of the doubt: at the name, and after accepted deletes."""
    owned = tuple(_looked_after(pod, now) for pod in claim.owned)
    retry_at = now + _delay_s(claim.tries)
    doubtless_at = max(claim.doubts, default=0.0)
    if now < doubtless_at < retry_at:
        retry_at = doubtless_at
    return replace(claim, owned=owned, retry_at=retry_at, tries=claim.tries + 1)


def _looked_after(pod: Owned, now: float) -> Owned:
    if pod.doubted_at is not None:
        return _put_off(pod, now)
    if not pod.accepted:
        return pod
    tries = pod.tries + 1
    return replace(pod, retry_at=now + min(LONGEST_LOOK_S, FIRST_LOOK_S * 2.0 ** min(tries, 16)), tries=tries)


def _put_off(pod: Owned, now: float, asked_s: float = 0.0) -> Owned:
    delay_s = max(_delay_s(pod.tries), min(LONGEST_RETRY_AFTER_S, asked_s))
    return replace(pod, retry_at=now + delay_s, tries=pod.tries + 1)


def _delay_s(tries: int) -> float:
    return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(tries, 16))
