"""What a caller and the task that owns its sandbox share: a wish, its answer, and the caller's word that it is done."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

import anyio

from sandbox.box import DaemonSandbox
from sandbox.errors import AcquireTimeout, CreateError, SandboxError
from sandbox.spec import PhaseTimes, SandboxSpec

Box = TypeVar("Box", bound=DaemonSandbox)


class PhaseClock:
    """Times the phases of a create, each apart. Monotonic."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._phase: str | None = None
        self._since = 0.0

    def enter(self, phase: str | None) -> None:
        """End the running phase and begin `phase`, or none."""
        now = time.monotonic()
        self._seconds = self.seconds(now)
        self._phase, self._since = phase, now

    @property
    def phase(self) -> str | None:
        return self._phase

    def seconds(self, now: float | None = None) -> dict[str, float]:
        """Seconds spent in each phase so far, the running one included."""
        running = {self._phase: (time.monotonic() if now is None else now) - self._since} if self._phase else {}
        return {**self._seconds, **running}

    def times(self) -> PhaseTimes:
        return PhaseTimes(**{f"{phase}_s": seconds for phase, seconds in self.seconds().items()})


@dataclass(eq=False)
class Ticket(Generic[Box]):
    """One acquire. The owner calls `hand_over` or `fail` once; the caller calls `release`, which never waits."""

    sandbox_id: str
    """Chosen before anything is made under it."""
    spec: SandboxSpec
    clock: PhaseClock = field(default_factory=PhaseClock)
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    creating: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """The create runs in it. Releasing cancels it: nobody waits for what nobody wants."""
    waits_for: str = ""
    """What keeps the sandbox from starting, as the provider sees it; for the caller whose deadline passes."""
    box: Box | None = None
    error: Exception | None = None

    def hand_over(self, box: Box) -> None:
        self.box = box
        self.settled.set()

    def fail(self, error: Exception) -> None:
        """`error` is the caller's to hear: as ours, whoever foresaw it."""
        self.error = error if isinstance(error, SandboxError) else self._surprise(error)
        self.settled.set()

    def release(self) -> None:
        """The caller wants no more of it. Synchronous, so that no cancellation can come in between."""
        self.released.set()
        self.creating.cancel()

    def result(self, *, acquire_timeout_s: float) -> Box:
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

    def _surprise(self, error: Exception) -> CreateError:
        phase = self.clock.phase or "queue"
        ours = CreateError(f"creating the sandbox failed in phase {phase}: {error!r}; please report this", phase=phase)
        ours.__cause__ = error
        return ours
