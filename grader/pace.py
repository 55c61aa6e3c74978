"""How many gradings should be in flight: fewer while the place is saturated, more again when it is not. Pure.

A suite that runs beside too many others takes longer, and one that takes too long is a time-out that the patch did not
earn. Two signs of that are read. *Stretch*: how long suites take, against the median of earlier ones of the same task;
it is there only where tasks come again (groups of patches, repeats). *Load*: processes that want a core, for each core
of this machine; it is there only where sandboxes run on this machine.

One step at a time, and slower up than down: a reading comes every `EVERY_S`, the load of the last minute lags behind,
and a pace that swings costs more than one that is a little off. The number that was asked for is never passed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

EVERY_S = 15.0
"""Seconds between two readings."""
STRETCHED = 1.5
"""Suites that take so many times their median are saturated, whatever the load is."""
RELAXED = 1.2
"""Below this stretch nothing is saturated, whatever the load is."""
LOADED = 2.0
"""Load for each core at which the place is saturated, where no stretch says otherwise."""
IDLE = 1.25
"""Load for each core below which there is room."""
LEAST = 4
"""A run never goes below one in so many of what was asked for (nor below one): signs may mislead."""
CALM = 2
"""Readings in a row that must find room before one more is let in."""
KEPT = 32
"""Suite times that are kept of each task."""
ENOUGH = 3
"""Earlier suite times of a task that make a median."""


@dataclass(frozen=True)
class Reading:
    """What was seen since the last reading. None: it cannot be known here."""

    stretch: float | None
    load_per_core: float | None


@dataclass(frozen=True)
class Pace:
    """How many gradings may be in flight, between `ceiling // LEAST` (at least 1) and `ceiling`."""

    limit: int
    ceiling: int
    """What the campaign asks for."""
    calm: int = 0
    """Readings in a row that found room."""

    def after(self, reading: Reading) -> Pace:
        """The pace from now on."""
        if _saturated(reading):
            return replace(self, limit=max(1, self.ceiling // LEAST, self.limit - max(1, self.limit // 8)), calm=0)
        if not _has_room(reading):
            return replace(self, calm=0)
        if self.calm + 1 < CALM:
            return replace(self, calm=self.calm + 1)
        return replace(self, limit=min(self.ceiling, self.limit + max(1, self.limit // 16)), calm=0)


def _saturated(reading: Reading) -> bool:
    if reading.stretch is not None and reading.stretch >= STRETCHED:
        return True
    if reading.load_per_core is None or reading.load_per_core < LOADED:
        return False
    return reading.stretch is None or reading.stretch >= RELAXED


def _has_room(reading: Reading) -> bool:
    calm = reading.stretch is None or reading.stretch < RELAXED
    return calm and (reading.load_per_core is None or reading.load_per_core < IDLE)


@dataclass(frozen=True)
class Suites:
    """Suite times of each task, and how those since the last reading stand against them."""

    earlier: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    stretches: tuple[float, ...] = ()

    def after(self, task_id: str, seconds: float) -> Suites:
        """With one more suite that ended."""
        earlier = self.earlier.get(task_id, ())
        known = len(earlier) >= ENOUGH and statistics.median(earlier) > 0
        return Suites(
            {**self.earlier, task_id: (*earlier, seconds)[-KEPT:]},
            (*self.stretches, seconds / statistics.median(earlier)) if known else self.stretches,
        )

    def stretch(self) -> float | None:
        """The median stretch since the last reading. None: no task came again."""
        return statistics.median(self.stretches) if self.stretches else None

    def read(self) -> Suites:
        """As it stands once it was read."""
        return replace(self, stretches=())
