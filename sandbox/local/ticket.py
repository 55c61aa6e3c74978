"""What a caller and the task that owns its sandbox share: a wish, its answer, and the caller's word that it is done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import anyio

from sandbox.box import DaemonSandbox
from sandbox.errors import AcquireTimeout
from sandbox.local.image import StoredImage
from sandbox.spec import PhaseTimes, SandboxSpec


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
class Ticket:
    """One acquire. The owner calls `hand_over` or `fail` once; the caller calls `release`, which never waits."""

    sandbox_id: str
    spec: SandboxSpec
    image: StoredImage | None = None
    """Given by an image build; otherwise the owner resolves the spec's reference."""
    keep_upper: Path | None = None
    clock: PhaseClock = field(default_factory=PhaseClock)
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    settled: anyio.Event = field(default_factory=anyio.Event)
    released: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)
    """Nothing runs in it any more; for an image build, nothing but the kept upper directory is left."""
    creating: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """The create runs in it. Releasing cancels it: nobody waits for what nobody wants."""
    box: DaemonSandbox | None = None
    error: Exception | None = None

    def hand_over(self, box: DaemonSandbox) -> None:
        self.box = box
        self.settled.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.settled.set()

    def release(self) -> None:
        """The caller wants no more of it. Synchronous, so that no cancellation can come in between."""
        self.released.set()
        self.creating.cancel()

    def result(self, *, acquire_timeout_s: float) -> DaemonSandbox:
        """The sandbox, or the reason why there is none, raised."""
        if self.error is not None:
            raise self.error
        if self.box is None:
            spent = {phase: round(seconds, 3) for phase, seconds in self.clock.seconds().items()}
            raise AcquireTimeout(
                f"no sandbox after {acquire_timeout_s:g} s, the last of them in phase {self.clock.phase or 'queue'} "
                f"({spent}): allow more time, or ask for fewer at once",
                waited_in=spent,
            )
        return self.box
