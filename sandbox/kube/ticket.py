"""What a caller and the task that makes its sandbox share: a wish, its answer, the caller's word that it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import anyio

from sandbox.errors import AcquireTimeout
from sandbox.kube.box import KubeSandbox
from sandbox.local.ticket import PhaseClock
from sandbox.pacing import Turn
from sandbox.spec import SandboxSpec


@dataclass(eq=False)
class Ticket:
    """One acquire. Its task calls `hand_over` or `fail` once; the caller calls `release`, which never waits."""

    name: str
    """Of the pod, chosen before it is asked for."""
    spec: SandboxSpec
    clock: PhaseClock = field(default_factory=PhaseClock)
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    settled: anyio.Event = field(default_factory=anyio.Event)
    released: anyio.Event = field(default_factory=anyio.Event)
    creating: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """The create runs in it. Releasing cancels it: nobody waits for what nobody wants."""
    turn: Turn | None = None
    """Its place in the pacer's queue."""
    waits_for: str = ""
    """In the cluster's words, what keeps the pod from starting; for the caller whose deadline passes."""
    box: KubeSandbox | None = None
    error: Exception | None = None

    def hand_over(self, box: KubeSandbox) -> None:
        self.box = box
        self.settled.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.settled.set()

    def release(self) -> None:
        """The caller wants no more of it. Synchronous, so that no cancellation can come in between."""
        self.released.set()
        self.creating.cancel()

    def result(self, *, acquire_timeout_s: float) -> KubeSandbox:
        """The sandbox, or the reason why there is none, raised."""
        if self.error is not None:
            raise self.error
        if self.box is None:
            spent = {phase: round(seconds, 3) for phase, seconds in self.clock.seconds().items()} or {"queue": 0.0}
            phase = self.clock.phase or "queue"
            why = f": {self.waits_for}" if self.waits_for else ""
            raise AcquireTimeout(
                f"no sandbox after {acquire_timeout_s:g} s, the last of them in phase {phase}{why} ({spent}): allow "
                "more time, or ask for fewer at once",
                waited_in=spent,
                phase=phase,
                said=self.waits_for,
            )
        return self.box
