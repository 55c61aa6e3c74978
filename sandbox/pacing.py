"""One pacer for every create of a run: when may the next request go to the server, and whose is it?

`PacerCore` decides and never looks at a clock: events and the time go in, grants come out. `Pacer` is its shell.

The law, for any order of events:
- Requests never exceed the token bucket: in any window of `w` seconds at most `burst + per_s * w` are sent. A grant
  reserves a token; it is taken at the moment of sending, so that callers who run late do not run together.
- A refusal by the server (429, an admission webhook's 5xx) halves the rate once per storm and pauses all requests for
  as long as the server asked, or for a growing while when it said nothing. The rate recovers slowly and linearly.
- At most `max_in_flight` creates are unsettled and at most `max_live` sandboxes exist at once.
- Callers take turns by their key, whatever each has asked for; within a key the first comes first. A create that must
  be sent again keeps its slots and goes before new ones: a 429 never loses a create.
- Whoever gives up is told what the queue waited for meanwhile.

It paces no deletes: what is to go may always go.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import anyio
import anyio.lowlevel

from sandbox.errors import AcquireTimeout

Reason = Literal["server", "live", "in_flight", "rate"]
"""What holds the queue: the server's wish to wait, the cap on live sandboxes or on unsettled creates, the bucket."""

REASONS: tuple[Reason, ...] = ("server", "live", "in_flight", "rate")

REMEDIES: dict[Reason, str] = {
    "server": "the API server refused creates; ask for fewer at once, or see to its admission webhooks",
    "live": "all sandboxes that `max_live` allows are in use; release some, or raise it",
    "in_flight": "creates do not settle; see which phase they are in, or raise `max_in_flight`",
    "rate": "the pace is `creates_per_s`; raise it, or allow more time",
}

CUT = 0.5
"""The rate is multiplied by this at a refusal."""

RECOVERY_S = 120.0
"""From the floor back to the full rate, in seconds without a refusal."""

FLOOR = 1 / 16
"""The rate never falls below this share of the configured one."""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LONGEST_RETRY_AFTER_S = 300.0


@dataclass(frozen=True)
class PacerLimits:
    """What a run may ask of the server."""

    per_s: float
    """Creates a second, in the long run."""
    burst: int
    """Creates that may go at once after a quiet while; at least 1."""
    max_in_flight: int
    """Creates that are asked for and not settled: neither ready nor failed."""
    max_live: int
    """Sandboxes that exist, or are about to."""

    def __post_init__(self) -> None:
        if self.per_s <= 0 or min(self.burst, self.max_in_flight, self.max_live) < 1:
            raise ValueError(f"every limit must be positive: {self}")


@dataclass(eq=False)
class Turn:
    """One create's way through the pacer. Made by `PacerCore.request`; its state is the core's to change."""

    key: str
    asked_at: float
    held_then: dict[Reason, float]
    number: int
    state: Literal["waiting", "granted", "again", "withdrawn"] = "waiting"
    in_flight: bool = False
    live: bool = False
    reserved: bool = False
    """It holds a token that is not yet taken."""
    sent_in_storm: int = 0
    """How many cuts there had been when it was granted: a refusal of an older one tells nothing new."""


class PacerCore:
    """The decisions. Every method takes `now`, in seconds of any monotonic clock, which never runs back."""

    def __init__(self, limits: PacerLimits, now: float) -> None:
        self.limits = limits
        self.rate = limits.per_s
        self.paused_until = now
        self._now = now
        self._tokens = float(limits.burst)
        self._reserved = 0
        self._numbers = itertools.count()
        self._queues: OrderedDict[str, OrderedDict[int, Turn]] = OrderedDict()
        self._again: OrderedDict[int, Turn] = OrderedDict()
        self._waiting = 0
        self._in_flight = 0
        self._live = 0
        self._cuts = 0
        self._refusals_in_a_row = 0
        self._holding: Reason | None = None
        self._held: dict[Reason, float] = dict.fromkeys(REASONS, 0.0)

    @property
    def waiting(self) -> int:
        return self._waiting + len(self._again)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def live(self) -> int:
        return self._live

    def request(self, key: str, now: float) -> Turn:
        """A caller wants a create. `key` says whose turn it uses."""
        self._advance(now)
        turn = Turn(key, now, dict(self._held), next(self._numbers))
        self._queues.setdefault(key, OrderedDict())[turn.number] = turn
        self._waiting += 1
        return turn

    def send_again(self, turn: Turn, now: float) -> None:
        """A granted create must be sent once more. It keeps its slots and waits for the server and the bucket only."""
        self._advance(now)
        if turn.state == "granted":
            turn.state = "again"
            turn.held_then = dict(self._held)
            self._again[turn.number] = turn

    def sent(self, turn: Turn, now: float) -> None:
        """The request goes out at this moment. What the server says of it implies that it was said."""
        self._advance(now)
        if turn.reserved:
            turn.reserved = False
            self._reserved -= 1
            self._tokens -= 1.0

    def refused(self, turn: Turn, now: float, retry_after_s: float | None = None) -> None:
        """The server would not take the request (429, or a webhook's 5xx). `retry_after_s` is what it asked for."""
        self.sent(turn, now)
        if turn.sent_in_storm == self._cuts:
            self._cuts += 1
            self.rate = max(self.limits.per_s * FLOOR, self.rate * CUT)
            self._refusals_in_a_row += 1
            self._tokens = min(self._tokens, 1.0)
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(16, max(0, self._refusals_in_a_row - 1)))
        if retry_after_s is not None:
            pause_s = min(max(retry_after_s, 0.0), LONGEST_RETRY_AFTER_S)
        self.paused_until = max(self.paused_until, now + pause_s)

    def accepted(self, turn: Turn, now: float) -> None:
        """The server took the request."""
        self.sent(turn, now)
        if turn.sent_in_storm == self._cuts:
            self._refusals_in_a_row = 0

    def settled(self, turn: Turn, now: float) -> None:
        """The create is over: ready, failed or given up. May be said more than once."""
        self._advance(now)
        if turn.in_flight:
            turn.in_flight = False
            self._in_flight -= 1

    def gone(self, turn: Turn, now: float) -> None:
        """Nothing of the sandbox is left, or it was never asked for. May be said more than once, at any time."""
        self.settled(turn, now)
        if turn.reserved:  # nothing was sent: the token stays in the bucket
            turn.reserved = False
            self._reserved -= 1
        if turn.live:
            turn.live = False
            self._live -= 1
        if turn.state == "waiting":
            self._waiting -= 1
            del self._queues[turn.key][turn.number]
            if not self._queues[turn.key]:
                del self._queues[turn.key]
        self._again.pop(turn.number, None)
        turn.state = "withdrawn"

    def grants(self, now: float) -> list[Turn]:
        """Whose requests may be sent now. Call it after any event and at `next_look`."""
        self._advance(now)
        granted: list[Turn] = []
        while self.waiting and self._hold() is None:
            turn = self._next()
            turn.reserved = True
            self._reserved += 1
            turn.state = "granted"
            turn.sent_in_storm = self._cuts
            granted.append(turn)
        self._holding = self._hold() if self.waiting else None
        return granted

    def next_look(self) -> float | None:
        """When the passing of time alone may change the answer of `grants`. None: not before another event."""
        if self._holding == "server":
            return self.paused_until
        if self._holding == "rate":
            return self._now + max(0.0, 1.0 + self._reserved - self._tokens) / self.rate
        return None

    def waited_for(self, turn: Turn, now: float) -> dict[str, float]:
        """Seconds that the queue was held by each reason since the turn began to wait."""
        self._advance(now)
        spent = {reason: self._held[reason] - turn.held_then[reason] for reason in REASONS}
        return {reason: seconds for reason, seconds in spent.items() if seconds > 0}

    def _hold(self) -> Reason | None:
        if self._now < self.paused_until:
            return "server"
        if not self._again:
            if self._live >= self.limits.max_live:
                return "live"
            if self._in_flight >= self.limits.max_in_flight:
                return "in_flight"
        # A share of a token is forgiven for the clock's own rounding, and never adds up: what is forgiven is taken.
        return "rate" if self._tokens - self._reserved < 1.0 - 1e-9 else None

    def _next(self) -> Turn:
        if self._again:
            return self._again.popitem(last=False)[1]
        key, queue = next(iter(self._queues.items()))
        turn = queue.popitem(last=False)[1]
        if queue:
            self._queues.move_to_end(key)
        else:
            del self._queues[key]
        self._waiting -= 1
        turn.in_flight = turn.live = True
        self._in_flight += 1
        self._live += 1
        return turn

    def _advance(self, now: float) -> None:
        """Let time pass: fill the bucket (not during a pause), let the rate recover, count what held the queue."""
        if now <= self._now:
            return
        if self._holding is not None:
            self._held[self._holding] += now - self._now
        running_s = now - min(max(self._now, self.paused_until), now)
        slope = self.limits.per_s * (1 - FLOOR) / RECOVERY_S
        faster = min(self.limits.per_s, self.rate + slope * running_s)
        self._tokens = min(float(self.limits.burst), self._tokens + (self.rate + faster) / 2 * running_s)
        self.rate = faster
        self._now = now


@dataclass(eq=False)
class Permit:
    """The right to send one create request. Whoever holds it says when it is sent and what became of it; nothing here
    ever waits but `again`. `gone` must be said at last, whatever happened."""

    pacer: Pacer = field(repr=False)
    turn: Turn

    def sent(self) -> None:
        """The request goes out now."""
        self.pacer.tell(self.pacer.core.sent, self.turn)

    def accepted(self) -> None:
        """The server took the request."""
        self.pacer.tell(self.pacer.core.accepted, self.turn)

    def refused(self, retry_after_s: float | None = None) -> None:
        """The server would not take it for now (429, a webhook's 5xx): everybody's pace is cut."""
        self.pacer.core.refused(self.turn, self.pacer.now(), retry_after_s)
        self.pacer.pump()

    def settled(self) -> None:
        """The create is over: ready, failed or given up."""
        self.pacer.tell(self.pacer.core.settled, self.turn)

    def gone(self) -> None:
        """Nothing of the sandbox is left."""
        self.pacer.tell(self.pacer.core.gone, self.turn)

    async def again(self) -> None:
        """Wait until the same create may be sent once more."""
        self.pacer.tell(self.pacer.core.send_again, self.turn)
        await self.pacer.wait(self.turn)


class Pacer:
    """The shell: one per run, in one event loop. A timer of the loop wakes it; there is no task to look after."""

    def __init__(self, limits: PacerLimits, *, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.core = PacerCore(limits, now())
        self._wakers: dict[Turn, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pumping: asyncio.Handle | None = None

    def ask(self, key: str) -> Turn:
        """Take a place in the queue, for who wants to say later where it waited. `acquire` or `give_up` must follow."""
        return self.core.request(key, self.now())

    async def acquire(self, key: str, *, timeout_s: float, turn: Turn | None = None) -> Permit:
        """Wait for the caller's turn. Raises `AcquireTimeout`, which says what the queue waited for.

        A caller that is cancelled while it waits has asked for nothing: no slot, no token. `turn` is a place that was
        taken by `ask`.
        """
        turn = turn or self.ask(key)
        try:
            with anyio.move_on_after(timeout_s):
                self.pump()
                await self.wait(turn)
                return Permit(self, turn)
            raise self.late(turn, timeout_s)
        except BaseException:
            self.give_up(turn)
            raise

    def give_up(self, turn: Turn) -> None:
        """Leave the queue. May be said more than once."""
        self.tell(self.core.gone, turn)

    def late(self, turn: Turn, timeout_s: float) -> AcquireTimeout:
        """The error of who waited `timeout_s` for this turn."""
        waited = self.core.waited_for(turn, self.now())
        spent = {reason: round(seconds, 3) for reason, seconds in waited.items()} or {"rate": timeout_s}
        others = max(0, self.core.waiting - 1)
        return AcquireTimeout(
            _sentence(timeout_s, spent, others), waited_in=spent, phase="queue", others_waiting=others
        )

    async def wait(self, turn: Turn) -> None:
        """Until `turn` is granted. A caller that is cancelled by then hears of it here, before anything is sent."""
        if turn.state != "granted":
            waker = self._wakers[turn] = asyncio.Event()
            try:
                await waker.wait()
            finally:
                self._wakers.pop(turn, None)
        await anyio.lowlevel.checkpoint()

    def tell(self, event: Callable[[Turn, float], None], turn: Turn) -> None:
        """Pass an event on to the core. What follows is acted on once for all events of this moment."""
        event(turn, self.now())
        if self._pumping is None:
            self._pumping = asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Wake whoever may go on, and set the timer for the next look."""
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for turn in self.core.grants(self.now()):
            waker = self._wakers.get(turn)
            if waker is not None:
                waker.set()
        look_at = self.core.next_look()
        if look_at is not None:
            delay_s = max(0.0005, look_at - self.now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.pump)


def _sentence(timeout_s: float, spent: dict[str, float], others: int) -> str:
    reason: Reason = max(REASONS, key=lambda one: spent.get(one, 0.0))
    return (
        f"no turn to create after {timeout_s:g} s, {others} others waiting; the queue waited for {spent or 'nothing'} "
        f"seconds: {REMEDIES[reason]}"
    )
