"""The pacer, in virtual time: what arrives at the server, who waits, and what a waiter is told."""

from __future__ import annotations

import time
from collections import Counter

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from sandbox.errors import AcquireTimeout
from sandbox.pacing import FLOOR, Pacer, PacerCore, PacerLimits, Permit, Turn

WIDE = PacerLimits(per_s=100.0, burst=10, max_in_flight=10**6, max_live=10**6)


def go(core: PacerCore, now: float) -> list[Turn]:
    """Whose requests may be sent now, and are."""
    granted = core.grants(now)
    for turn in granted:
        core.sent(turn, now)
    return granted


def run_to_the_end(core: PacerCore, now: float, *, until: float = float("inf")) -> list[tuple[float, Turn]]:
    """Let virtual time pass from look to look; every grant with its time."""
    sent: list[tuple[float, Turn]] = []
    while now <= until:
        sent += [(now, turn) for turn in go(core, now)]
        look_at = core.next_look()
        if look_at is None:
            break
        now = max(look_at, now + 1e-6)
    return sent


def fullest_excess(times: list[float], per_s: float, burst: int) -> float:
    """By how much the fullest window exceeds `burst + per_s * width`; at most 0 when the law holds."""
    level, last, worst = 0.0, None, float("-inf")
    for at in times:
        level = max(0.0, level - per_s * (at - last)) if last is not None else 0.0
        level += 1
        worst, last = max(worst, level - burst), at
    return worst


def test_4096_acquires_at_once_arrive_at_the_pace_of_the_bucket() -> None:
    """4,096 acquires in one moment: the burst goes at once, the rest at the rate, and all of them go."""
    core = PacerCore(WIDE, 0.0)
    for number in range(4096):
        core.request(f"caller {number % 7}", 0.0)

    sent = run_to_the_end(core, 0.0)

    assert 4096 == len(sent)
    assert 10 == sum(at == 0.0 for at, _ in sent)
    assert pytest.approx((4096 - 10) / 100.0, rel=1e-3) == sent[-1][0]
    assert fullest_excess([at for at, _ in sent], 100.0, 10) < 1e-3


def test_callers_take_turns_whatever_each_has_asked_for() -> None:
    """A caller with one wish beside one with a thousand waits for one turn, not for a thousand."""
    core = PacerCore(PacerLimits(per_s=10.0, burst=1, max_in_flight=9999, max_live=9999), 0.0)
    for _ in range(1000):
        core.request("greedy", 0.0)
    modest = core.request("modest", 0.0)

    sent = run_to_the_end(core, 0.0, until=1.0)

    assert modest in [turn for _, turn in sent[:2]]


def test_a_429_pauses_everybody_for_as_long_as_the_server_asked() -> None:
    """After Retry-After: 7 nothing is sent for 7 seconds, and then at half the rate."""
    core = PacerCore(WIDE, 0.0)
    first = core.request("a", 0.0)
    go(core, 0.0)
    for _ in range(200):
        core.request("a", 0.0)

    core.refused(first, 0.0, retry_after_s=7.0)
    core.send_again(first, 0.0)
    sent = run_to_the_end(core, 0.0, until=8.0)

    assert 7.0 == sent[0][0]
    assert first is sent[0][1]
    assert 50 == pytest.approx(len(sent), abs=4)


def test_one_storm_cuts_the_rate_once() -> None:
    """Fifty refusals of requests that were sent together halve the rate once, not fifty times."""
    core = PacerCore(PacerLimits(per_s=100.0, burst=50, max_in_flight=99, max_live=99), 0.0)
    for _ in range(50):
        core.request("a", 0.0)
    for turn in go(core, 0.0):
        core.refused(turn, 0.1)

    assert core.rate == pytest.approx(50.0, rel=0.01)


def test_refusals_without_advice_pause_longer_each_time_and_success_ends_that() -> None:
    """0.5, 1, 2, 4 s after refusal upon refusal; 0.5 s again after a success."""
    core = PacerCore(WIDE, 0.0)
    turn = core.request("a", 0.0)
    go(core, 0.0)
    now, pauses = 0.0, []
    for _ in range(4):
        core.refused(turn, now)
        pauses.append(core.paused_until - now)
        core.send_again(turn, now)
        now = core.paused_until + 1
        assert [turn] == go(core, now)
    core.accepted(turn, now)
    core.refused(turn, now)

    assert [0.5, 1.0, 2.0, 4.0] == pauses
    assert 0.5 == core.paused_until - now


def test_the_rate_has_a_floor_and_recovers_slowly() -> None:
    """However long a storm is the floor stays; without refusals the full rate is back within its two minutes."""
    core = PacerCore(WIDE, 0.0)
    turn = core.request("a", 0.0)
    go(core, 0.0)
    now = 0.0
    for _ in range(20):
        core.refused(turn, now, retry_after_s=0.0)
        core.send_again(turn, now)
        now += 1.0
        go(core, now)
    low = core.rate
    go(core, now + 60.0)
    half_way = core.rate
    go(core, now + 121.0)

    assert 100.0 * FLOOR <= low < 100.0 * FLOOR + 1.0
    assert 100.0 / 2 == pytest.approx(half_way, rel=0.1)
    assert 100.0 == core.rate


def test_a_429_storm_loses_no_create() -> None:
    """A server that refuses two of three requests gets every create in the end."""
    core = PacerCore(PacerLimits(per_s=50.0, burst=5, max_in_flight=40, max_live=500), 0.0)
    for _ in range(300):
        core.request("a", 0.0)
    made: set[int] = set()
    attempts, now = 0, 0.0
    while len(made) < 300 and attempts < 5000:
        for turn in go(core, now):
            attempts += 1
            if attempts % 3:
                core.refused(turn, now, retry_after_s=0.2)
                core.send_again(turn, now)
            else:
                core.accepted(turn, now)
                core.settled(turn, now)
                made.add(turn.number)
        now = max(core.next_look() or now, now + 1e-3)

    assert 300 == len(made)
    assert 300 == core.live
    assert 0 == core.in_flight


def test_caps_hold_until_somebody_says_settled_and_gone() -> None:
    """With a cap of 2 in flight and 3 live the third waits for a settled create, the fourth for a gone sandbox."""
    core = PacerCore(PacerLimits(per_s=1000.0, burst=100, max_in_flight=2, max_live=3), 0.0)
    turns = [core.request("a", 0.0) for _ in range(5)]

    assert turns[:2] == go(core, 0.0)
    assert [] == go(core, 1.0)
    core.settled(turns[0], 1.0)
    assert turns[2:3] == go(core, 1.0)
    core.settled(turns[1], 3.0)
    assert [] == go(core, 3.0)
    core.gone(turns[1], 4.0)
    assert turns[3:4] == go(core, 4.0)
    assert {"in_flight": 1.0, "live": 3.0} == core.waited_for(turns[3], 4.0)


def test_who_gives_up_takes_nothing_along() -> None:
    """A withdrawn wish is not granted, leaves no slot behind and costs no token."""
    core = PacerCore(PacerLimits(per_s=1.0, burst=1, max_in_flight=1, max_live=1), 0.0)
    core.request("a", 0.0)
    [first] = go(core, 0.0)
    second, third = core.request("a", 0.0), core.request("b", 0.0)
    core.gone(second, 0.5)
    core.gone(first, 2.0)

    assert [third] == go(core, 2.0)
    core.gone(third, 2.0)
    assert (0, 0, 0) == (core.waiting, core.in_flight, core.live)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3)), min_size=1, max_size=120), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_nobody_starves(wishes: list[tuple[float, int]], burst: int) -> None:
    """Whoever asks is served, and while several wait no key is served twice before another is served once."""
    core = PacerCore(PacerLimits(per_s=3.0, burst=burst, max_in_flight=999, max_live=999), 0.0)
    waiting: Counter[str] = Counter()
    since_served: dict[str, Counter[str]] = {}
    now = 0.0
    events = sorted(wishes)
    served = 0
    while events or core.waiting:
        if events and (core.next_look() is None or events[0][0] <= (core.next_look() or 0)):
            at, who = events.pop(0)
            now = max(now, at)
            core.request(str(who), now)
            waiting[str(who)] += 1
            since_served.setdefault(str(who), Counter())
        else:
            now = max(core.next_look() or now, now)
        for turn in go(core, now):
            served += 1
            waiting[turn.key] -= 1
            for other, meanwhile in since_served.items():
                if other != turn.key and waiting[other]:
                    meanwhile[turn.key] += 1
                    assert meanwhile[turn.key] <= 2
            since_served[turn.key] = Counter()

    assert len(wishes) == served


def test_callers_that_run_late_do_not_run_together() -> None:
    """Tokens are taken when requests are sent: ten granted long ago and sent now leave none for the next."""
    core = PacerCore(WIDE, 0.0)
    for _ in range(30):
        core.request("a", 0.0)
    late = core.grants(0.0)
    assert [] == core.grants(5.0)
    for turn in late:
        core.sent(turn, 5.0)

    assert 10 == len(late)
    assert [] == core.grants(5.0)
    assert 1 == len(core.grants(5.0101))


class PacerMachine(RuleBasedStateMachine):
    """Any order of wishes, answers, refusals, gifts and withdrawals, against the law."""

    wishes = Bundle("wishes")

    def __init__(self) -> None:
        super().__init__()
        self.limits = PacerLimits(per_s=5.0, burst=3, max_in_flight=4, max_live=6)
        self.core = PacerCore(self.limits, 0.0)
        self.now = 0.0
        self.sent: list[float] = []
        self.granted: set[Turn] = set()
        self.unsettled: set[Turn] = set()
        self.alive: set[Turn] = set()

    def look(self) -> None:
        for turn in go(self.core, self.now):
            assert self.now >= self.core.paused_until
            self.sent.append(self.now)
            self.granted.add(turn)
            if turn not in self.alive:
                self.alive.add(turn)
                self.unsettled.add(turn)

    @rule(target=wishes, key=st.sampled_from("abc"))
    def wish(self, key: str) -> Turn:
        turn = self.core.request(key, self.now)
        self.look()
        return turn

    @rule(seconds=st.floats(0.001, 30))
    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        while (look_at := self.core.next_look()) is not None and look_at <= until:
            self.now = max(self.now + 1e-9, look_at)
            self.look()
        self.now = max(self.now, until)
        self.look()

    @rule(turn=wishes, retry_after_s=st.none() | st.floats(0, 20), again=st.booleans())
    def refuse(self, turn: Turn, retry_after_s: float | None, again: bool) -> None:
        if turn in self.granted:
            self.core.refused(turn, self.now, retry_after_s)
            if again:
                self.granted.discard(turn)
                self.core.send_again(turn, self.now)
            self.look()

    @rule(turn=wishes)
    def settle(self, turn: Turn) -> None:
        if turn in self.granted:
            self.core.accepted(turn, self.now)
            self.core.settled(turn, self.now)
            self.unsettled.discard(turn)
            self.look()

    @rule(turn=consumes(wishes))
    def leave(self, turn: Turn) -> None:
        self.core.gone(turn, self.now)
        for group in (self.granted, self.unsettled, self.alive):
            group.discard(turn)
        self.look()

    @invariant()
    def the_bucket_holds(self) -> None:
        assert fullest_excess(self.sent, self.limits.per_s, self.limits.burst) < 1e-3

    @invariant()
    def the_caps_hold(self) -> None:
        assert len(self.unsettled) == self.core.in_flight <= self.limits.max_in_flight
        assert len(self.alive) == self.core.live <= self.limits.max_live

    @precondition(lambda self: self.core.waiting > 0)
    @invariant()
    def somebody_is_waited_for(self) -> None:
        holding_time = self.core.next_look() is not None
        full = len(self.alive) == self.limits.max_live or len(self.unsettled) == self.limits.max_in_flight
        assert holding_time or full

    def teardown(self) -> None:
        for turn in list(self.alive):
            self.core.gone(turn, self.now)
        for _ in range(5000):
            if not self.core.waiting:
                break
            self.now = max(self.now, self.core.next_look() or self.now)
            for turn in go(self.core, self.now):
                self.core.gone(turn, self.now)
        assert (0, 0, 0) == (self.core.waiting, self.core.in_flight, self.core.live)


TestPacerMachine = PacerMachine.TestCase
TestPacerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.anyio
async def test_the_tail_of_the_queue_is_told_why_it_waited() -> None:
    """An acquire that times out names the reason, its seconds and what to change."""
    pacer = Pacer(PacerLimits(per_s=100.0, burst=5, max_in_flight=5, max_live=1))
    held = await pacer.acquire("a", timeout_s=1)

    with pytest.raises(AcquireTimeout, match="max_live") as told:
        await pacer.acquire("b", timeout_s=0.1)

    assert 0.1 == pytest.approx(told.value.waited_in["live"], abs=0.05)
    held.gone()
    (await pacer.acquire("b", timeout_s=1)).gone()
    assert (0, 0, 0) == (pacer.core.waiting, pacer.core.in_flight, pacer.core.live)


@pytest.mark.anyio
async def test_a_thousand_callers_in_real_time_keep_to_the_bucket() -> None:
    """The shell wakes its callers at the core's pace: 300 at 1,000 a second with a burst of 20 take 0.28 s."""
    pacer = Pacer(PacerLimits(per_s=1000.0, burst=20, max_in_flight=999, max_live=999))
    sent: list[float] = []

    async def caller(number: int) -> None:
        permit = await pacer.acquire(str(number % 5), timeout_s=30)
        permit.sent()
        sent.append(time.monotonic())
        permit.gone()

    began = time.monotonic()
    async with anyio.create_task_group() as group:
        for number in range(300):
            group.start_soon(caller, number)

    assert 0.28 <= time.monotonic() - began < 5
    assert 300 == len(sent)


@pytest.mark.anyio
async def test_callers_that_are_cancelled_while_they_wait_leave_nothing() -> None:
    """Half of the waiting callers are cancelled; the others are served and no slot is lost."""
    pacer = Pacer(PacerLimits(per_s=500.0, burst=1, max_in_flight=9, max_live=9))
    served: list[Permit] = []

    async def caller() -> None:
        permit = await pacer.acquire("a", timeout_s=30)
        served.append(permit)
        permit.gone()

    async with anyio.create_task_group() as group:
        for number in range(40):
            scope = anyio.CancelScope()

            async def maybe(scope: anyio.CancelScope = scope, doomed: bool = number % 2 == 1) -> None:
                with scope:
                    if doomed:
                        scope.cancel()
                    await caller()

            group.start_soon(maybe)

    assert 20 == len(served)
    assert (0, 0, 0) == (pacer.core.waiting, pacer.core.in_flight, pacer.core.live)


@pytest.mark.anyio
async def test_a_refused_create_is_sent_again_after_the_pause() -> None:
    """`again` returns when the server's pause is over, and the create kept its slots."""
    pacer = Pacer(PacerLimits(per_s=100.0, burst=5, max_in_flight=1, max_live=1))
    permit = await pacer.acquire("a", timeout_s=1)
    began = time.monotonic()

    permit.refused(0.2)
    await permit.again()

    assert 0.2 <= time.monotonic() - began < 2
    assert 1 == pacer.core.live
    permit.gone()
