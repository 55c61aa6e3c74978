"""Timing, and a measurement as a value. Medians, since machines are shared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """One line of the benchmark page. Times are in milliseconds."""

    name: str
    median_ms: float
    worst_ms: float
    times: int
    beside: str
    """What it is measured against, in the same run."""
    beside_ms: float | None
    aim: str

    @property
    def ratio(self) -> float | None:
        return self.median_ms / self.beside_ms if self.beside_ms else None


def timed(action: Callable[[], object], times: int) -> list[float]:
    """Milliseconds that each of `times` calls took."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append((time.perf_counter() - start) * 1000)
    return taken


async def timed_async(action: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Milliseconds that each of `times` awaited calls took."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        await action()
        taken.append((time.perf_counter() - start) * 1000)
    return taken


def measurement(
    name: str, taken: list[float], *, beside: str = "", beside_ms: float | None = None, aim: str = ""
) -> Measurement:
    return Measurement(name, statistics.median(taken), max(taken), len(taken), beside, beside_ms, aim)
