"""The rules of ownership: no pod of ours is forgotten, no pod of another is deleted, whatever server and net do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandbox.kube.ownership import (
    DOUBT_S,
    Abandoned,
    Claim,
    CreateUnknown,
    Delete,
    DeleteEnded,
    Event,
    LostSight,
    MaySend,
    NameWasTaken,
    NotListed,
    ReadBack,
    ReadFailed,
    ReadFound,
    ReadNothing,
    Request,
    Seen,
    SeenGone,
    SendCreate,
    TimePassed,
    WakeAt,
    WasCreated,
    WasRefused,
    step,
)

OURS = "our-nonce"


def walk(*events: tuple[Event, float]) -> tuple[Claim, tuple[Request, ...]]:
    """A fresh claim after these events, and the requests of the last one."""
    claim, requests = Claim("name", OURS), tuple[Request, ...]()
    for event, now in events:
        claim, requests = step(claim, event, now)
    return claim, requests


def test_a_create_is_sent_when_its_turn_comes() -> None:
    """The pacer's word sends it once, and not a second time while it is out."""
    claim, requests = walk((MaySend(), 1))
    _, again = step(claim, MaySend(), 2)

    assert (SendCreate(),) == requests
    assert () == again


def test_a_create_that_is_cancelled_before_it_was_sent_is_not_sent() -> None:
    """After the caller gave up its turn sends nothing, and the claim is closed at once."""
    claim, requests = walk((Abandoned(), 1), (MaySend(), 2))

    assert () == requests
    assert claim.closed


def test_an_abandoned_create_is_deleted_as_soon_as_its_uid_is_known() -> None:
    """Not when it is ready: the answer to the create is followed by the delete. So is its sight, before the answer."""
    _, by_answer = walk((MaySend(), 1), (Abandoned(), 2), (WasCreated("u1"), 3))
    _, by_sight = walk((MaySend(), 1), (Abandoned(), 2), (Seen("u1", OURS), 3))

    assert (Delete("u1"),) == by_answer == by_sight


def test_a_lost_reply_is_read_back_and_adopted() -> None:
    """An unknown outcome asks for the name; a pod with our nonce is ours from then on."""
    unknown, look = walk((MaySend(), 1), (CreateUnknown(), 2))
    claim, _ = step(unknown, ReadFound("u1", OURS, asked_at=2), 3)

    assert (ReadBack(),) == look
    assert ("u1", ()) == (claim.uid, claim.doubts)


def test_a_strangers_pod_is_never_ours() -> None:
    """A pod of our name with another nonce is told and left alone, whoever gives up."""
    claim, requests = walk(
        (MaySend(), 1), (NameWasTaken(), 2), (ReadFound("u9", "theirs", asked_at=2), 3), (Abandoned(), 4)
    )

    assert claim.stranger
    assert claim.closed
    assert not any(isinstance(request, Delete) for request in requests)


def test_a_request_in_doubt_is_looked_after_until_no_server_can_store_it() -> None:
    """Absent now is not absent for good: the claim stays open for the server's longest time-out."""
    claim, _ = walk((MaySend(), 0), (CreateUnknown(), 30), (Abandoned(), 31), (ReadNothing(asked_at=31), 32))
    late, _ = step(claim, TimePassed(), DOUBT_S)
    done, _ = step(late, ReadNothing(asked_at=DOUBT_S), DOUBT_S + 1)

    assert not claim.closed
    assert not late.closed
    assert done.closed


def test_a_failed_delete_is_tried_again_later_and_later() -> None:
    """A delete without success comes again after 0.1, 0.2, 0.4 s, and for ever at the longest pause."""
    claim, requests = walk((MaySend(), 0), (WasCreated("u1"), 0), (Abandoned(), 0))
    now, pauses = 0.0, []
    for _ in range(10):
        assert (Delete("u1"),) == requests
        claim, [wake] = step(claim, DeleteEnded("u1", "failed"), now)
        assert isinstance(wake, WakeAt)
        pauses.append(round(wake.at - now, 3))
        now = wake.at
        claim, requests = step(claim, TimePassed(), now)

    assert [0.1, 0.2, 0.4, 0.8] == pauses[:4]
    assert 10.0 == pauses[-1]


def test_a_delete_waits_as_long_as_the_server_asks_but_not_for_a_day() -> None:
    """What is asked for is longer than the rules' own pause, and bounded."""
    claim, _ = walk((MaySend(), 0), (WasCreated("u1"), 0), (Abandoned(), 0))
    _, asked = step(claim, DeleteEnded("u1", "failed", retry_after_s=5.0), 1)
    _, asked_too_much = step(claim, DeleteEnded("u1", "failed", retry_after_s=86400.0), 1)

    assert ((WakeAt(6.0),), (WakeAt(61.0),)) == (asked, asked_too_much)


def test_an_accepted_delete_is_not_yet_a_pod_that_is_gone() -> None:
    """The claim closes when the server says that the pod is no more."""
    claim, _ = walk((MaySend(), 0), (WasCreated("u1"), 0), (Abandoned(), 1), (DeleteEnded("u1", "accepted"), 2))
    closed, _ = step(claim, SeenGone("u1"), 3)

    assert not claim.closed
    assert closed.closed


def test_old_news_of_a_pod_that_is_gone_change_nothing() -> None:
    """A watch that lags tells of a deleted pod again: it is known to be gone."""
    claim, _ = walk((MaySend(), 0), (WasCreated("u1"), 0), (Abandoned(), 1), (DeleteEnded("u1", "absent"), 2))
    late, requests = step(claim, Seen("u1", OURS), 3)

    assert (True, ()) == (late.closed, requests)


def test_a_look_that_was_asked_for_before_the_create_says_nothing_about_it() -> None:
    """A read-back that found nothing, answered late, does not hide the pod that came meanwhile."""
    claim, _ = walk((MaySend(), 0), (CreateUnknown(), 1), (MaySend(), 2), (WasCreated("u2"), 3))
    after, _ = step(claim, ReadNothing(asked_at=1.0), 4)

    assert "u2" == after.uid


def test_a_replaced_pod_is_told_by_its_uid() -> None:
    """Ours was deleted and a stranger took the name: our delete is in conflict, and a look that finds another is the
    end."""
    doubted, look = walk((MaySend(), 0), (WasCreated("u1"), 0), (Abandoned(), 1), (DeleteEnded("u1", "other_uid"), 2))
    claim, _ = step(doubted, ReadFound("u9", "theirs", asked_at=2.5), 3)

    assert (ReadBack(),) == look
    assert (False, True) == (doubted.closed, claim.closed)


def test_a_conflict_is_no_proof_that_a_pod_is_gone() -> None:
    """A webhook can be in conflict too: a look that finds ours is followed by the delete, later and later."""
    claim, _ = walk((MaySend(), 0), (WasCreated("u1"), 0), (Abandoned(), 0))
    now, pauses = 1.0, []
    for _ in range(4):
        claim, look = step(claim, DeleteEnded("u1", "other_uid"), now)
        assert (ReadBack(),) == look
        claim, [wake] = step(claim, ReadFound("u1", OURS, asked_at=now + 0.01), now + 0.02)
        assert isinstance(wake, WakeAt)
        pauses.append(round(wake.at - now - 0.02, 3))
        now = wake.at
        claim, requests = step(claim, TimePassed(), now)
        assert (Delete("u1"),) == requests

    assert [0.1, 0.2, 0.4, 0.8] == pauses


def test_a_look_after_a_conflict_that_gets_no_answer_is_repeated() -> None:
    """Until the server says what stands under the name."""
    claim, _ = walk((MaySend(), 0), (WasCreated("u1"), 0), (Abandoned(), 1), (DeleteEnded("u1", "other_uid"), 2))
    failed, [wake] = step(claim, ReadFailed(), 3)
    assert isinstance(wake, WakeAt)
    again, look = step(failed, TimePassed(), wake.at)
    gone, _ = step(again, ReadNothing(asked_at=wake.at), wake.at + 1)

    assert (ReadBack(),) == look
    assert (False, True) == (again.closed, gone.closed)


def test_a_pod_that_is_out_of_sight_is_looked_at() -> None:
    """A watch by labels that tells of it no more proves nothing: it stays ours, in use or to go, until a look says."""
    used, look = walk((MaySend(), 0), (WasCreated("u1"), 0), (LostSight("u1"), 1))
    there, _ = step(used, ReadFound("u1", OURS, asked_at=1.5), 2)
    _, later = step(there, Abandoned(), 3)
    gone, _ = step(used, ReadNothing(asked_at=1.5), 2)

    assert (ReadBack(),) == look
    assert ("u1", None) == (there.uid, gone.uid)
    assert (Delete("u1"),) == later


@dataclass
class Reply:
    """An answer on its way to us."""

    kind: Literal["create", "read", "delete"]
    event: Event


@dataclass
class Server:
    """A model API server for one name: what is stored, what is on the way, and the log that watches tell."""

    pod: tuple[str, str] | None = None
    """UID and nonce."""
    creates: list[float] = field(default_factory=list)
    """Creates of ours that arrived, or may yet, by when they were sent."""
    deletes: list[str] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    uids: int = 0
    ours: set[str] = field(default_factory=set)
    terminating: bool = False

    def store(self, nonce: str) -> str:
        self.uids += 1
        uid = f"uid-{self.uids}"
        self.pod, self.terminating = (uid, nonce), False
        if nonce == OURS:
            self.ours.add(uid)
        self.log.append(Seen(uid, nonce))
        return uid

    def remove(self, *, at_once: bool = False) -> None:
        assert self.pod is not None
        self.log.append(LostSight(self.pod[0]) if at_once else SeenGone(self.pod[0]))
        self.pod = None

    def serve_create(self) -> Event:
        """What the answer to one create would be."""
        if self.pod is not None:
            return NameWasTaken()
        return WasCreated(self.store(OURS))

    def serve_read(self, asked_at: float) -> Event:
        return ReadFound(*self.pod, asked_at) if self.pod else ReadNothing(asked_at)

    def serve_delete(self, uid: str, *, at_once: bool) -> Event:
        assert uid in self.ours, "a delete of a foreign pod was asked for"
        if self.pod is None:
            return DeleteEnded(uid, "absent")
        if self.pod[0] != uid:
            return DeleteEnded(uid, "other_uid")
        self.terminating = True
        if at_once:
            self.remove()
        else:
            self.log.append(Seen(uid, OURS))
        return DeleteEnded(uid, "accepted")


class OwnershipMachine(RuleBasedStateMachine):
    """One claim against a server that loses requests and replies, is slow, fails before and after the store, and has
    other users who take our name and delete our pod."""

    @initialize(is_stored=st.booleans())
    def begin(self, is_stored: bool) -> None:
        self.now = 1.0
        self.server = Server()
        self.claim = Claim("name", OURS)
        self.wake_at: float | None = None
        if is_stored:  # so that half of the trials come to what happens later
            self.tell(MaySend())
            self.server.creates.clear()
            self.tell(self.server.serve_create())

    def tell(self, event: Event) -> None:
        self.claim, requests = step(self.claim, event, self.now)
        self.wake_at = None
        for request in requests:
            match request:
                case SendCreate():
                    self.server.creates.append(self.now)
                case ReadBack():
                    self.server.reads.append(self.now)
                case Delete(uid):
                    self.server.deletes.append(uid)
                case WakeAt(at):
                    self.wake_at = min(at, self.wake_at or at)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        # A server drops what is older than its longest time-out. That it then answers is not certain.
        self.server.creates = [at for at in self.server.creates if self.now < at + DOUBT_S]
        if self.claim.sending and self.now >= self.claim.sent_at + DOUBT_S:
            self.hang_up()
            self.tell(CreateUnknown())
        if self.wake_at is not None and self.now >= self.wake_at:
            self.tell(TimePassed())

    def hang_up(self) -> None:
        """Wait for the create's answer no more: it cannot come as the answer to a later one."""
        self.server.replies = [one for one in self.server.replies if one.kind != "create"]

    @rule()
    def turn_comes(self) -> None:
        self.tell(MaySend())

    @rule()
    def caller_gives_up(self) -> None:
        self.tell(Abandoned())

    @rule(seconds=st.sampled_from([0.05, 0.5, 6.0, 40.0, DOUBT_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @precondition(lambda self: self.server.creates)
    @rule(data=st.data(), fate=st.sampled_from(["stored", "stored", "dropped", "refused"]))
    def a_create_arrives(self, data: st.DataObject, fate: str) -> None:
        at = data.draw(st.sampled_from(self.server.creates))
        self.server.creates.remove(at)
        answer: Event = self.server.serve_create() if fate == "stored" else WasRefused()
        if self.claim.sending and at == self.claim.sent_at and fate != "dropped":
            self.server.replies.append(Reply("create", answer))

    @precondition(lambda self: self.claim.sending)
    @rule()
    def the_answer_to_a_create_is_lost(self) -> None:
        """A 5xx before or after the store, a cut connection, a client time-out: the request may be under way."""
        self.hang_up()
        self.pass_time(0.01)
        self.tell(CreateUnknown())

    @precondition(lambda self: self.server.reads)
    @rule(fails=st.booleans())
    def a_read_is_served(self, fails: bool) -> None:
        asked_at = self.server.reads.pop(0)
        self.server.replies.append(Reply("read", ReadFailed() if fails else self.server.serve_read(asked_at)))

    @precondition(lambda self: self.server.deletes)
    @rule(
        at_once=st.booleans(), fate=st.sampled_from(["served", "served", "conflict", "failed before", "failed after"])
    )
    def a_delete_is_served(self, at_once: bool, fate: str) -> None:
        uid = self.server.deletes.pop(0)
        answer: Event = DeleteEnded(uid, "other_uid" if fate == "conflict" else "failed")
        if fate not in {"failed before", "conflict"}:
            served = self.server.serve_delete(uid, at_once=at_once)
            answer = served if fate == "served" else answer
        self.server.replies.append(Reply("delete", answer))

    @precondition(lambda self: self.server.replies)
    @rule(data=st.data())
    def a_reply_comes(self, data: st.DataObject) -> None:
        reply = data.draw(st.sampled_from(self.server.replies))
        self.server.replies.remove(reply)
        self.pass_time(0.001)
        self.tell(reply.event)

    @precondition(lambda self: self.server.log)
    @rule()
    def the_watch_tells(self) -> None:
        self.tell(self.server.log.pop(0))

    @precondition(lambda self: self.server.log)
    @rule()
    def the_watch_is_cut_and_lists(self) -> None:
        self.server.log.clear()
        self.pass_time(0.001)
        self.tell(NotListed(self.now) if self.server.pod is None else Seen(*self.server.pod))

    @precondition(lambda self: self.server.pod is not None and self.server.terminating)
    @rule()
    def the_node_finishes(self) -> None:
        self.server.remove()

    @precondition(lambda self: self.server.pod is None)
    @rule()
    def a_stranger_takes_the_name(self) -> None:
        self.server.store("their-nonce")

    @precondition(lambda self: self.server.pod is not None)
    @rule(at_once=st.booleans())
    def somebody_deletes_what_stands_there(self, at_once: bool) -> None:
        self.server.remove(at_once=at_once)

    @precondition(lambda self: self.server.pod is not None and self.claim.owns(self.server.pod[0]))
    @rule()
    def somebody_takes_the_labels_away(self) -> None:
        uid, _ = self.server.pod or ("", "")
        self.server.pod = uid, ""
        self.server.log.append(LostSight(uid))

    @invariant()
    def a_closed_claim_has_left_nothing(self) -> None:
        if self.claim.closed:
            assert self.server.pod is None or self.server.pod[0] not in self.server.ours
            assert not self.server.creates

    def teardown(self) -> None:
        """Once the caller is gone and the server answers, everything of ours goes, within bounded time."""
        if not hasattr(self, "claim"):
            return
        self.tell(Abandoned())
        for _ in range(400):
            if self.claim.closed:
                break
            if self.server.reads:
                self.a_reply(self.server.serve_read(self.server.reads.pop(0)))
            elif self.server.deletes:
                self.a_reply(self.server.serve_delete(self.server.deletes.pop(0), at_once=True))
            elif self.server.replies:
                self.a_reply(self.server.replies.pop(0).event)
            elif self.server.log:
                self.tell(self.server.log.pop(0))
            elif self.server.terminating and self.server.pod is not None:
                self.the_node_finishes()
            else:
                self.pass_time(1.0)
                self.tell(TimePassed())
        assert self.claim.closed
        self.a_closed_claim_has_left_nothing()

    def a_reply(self, event: Event) -> None:
        self.pass_time(0.001)
        self.tell(event)


TestOwnershipMachine = OwnershipMachine.TestCase
TestOwnershipMachine.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
