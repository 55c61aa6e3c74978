"""The story of a run on stderr: one line that is rewritten on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TextIO

import anyio

from grader.console import printable
from grader.record import Grading
from grader.verdict import Outcome

LIVE_EVERY_S = 0.5
PLAIN_EVERY_S = 10.0
STRAGGLES_AFTER_S = 60.0
"""A grading in flight for less is never called a straggler."""
STRAGGLES_TIMES = 3.0
"""A straggler takes so many times what half of the gradings took."""


@dataclass(frozen=True)
class Standing:
    """Where a run stands at one moment."""

    total: int
    before: int
    """Gradings that had a verdict when this command began."""
    outcomes: Counter[Outcome]
    """Gradings that ended since, by outcome."""
    in_flight: int
    elapsed_s: float
    stragglers: tuple[tuple[str, float], ...] = ()
    """Gradings that take far longer than most, with their seconds so far, the longest first."""

    def line(self) -> str:
        """The standing in words, with the rate per minute and the time left once one grading has ended."""
        ended = sum(self.outcomes.values())
        said = [
            f"{self.before + ended}/{self.total} done",
            *(f"{self.outcomes[o]} {o.value.replace('_', ' ')}" for o in Outcome if self.outcomes[o] or o in _ALWAYS),
            f"{self.in_flight} in flight",
        ]
        if ended and self.elapsed_s > 0:
            left = self.total - self.before - ended
            said.append(f"{60 * ended / self.elapsed_s:.1f}/min")
            said.append(f"eta {_duration(left * self.elapsed_s / ended)}")
        if self.stragglers:
            name, seconds = self.stragglers[0]
            others = f" and {len(self.stragglers) - 1} more" if len(self.stragglers) > 1 else ""
            said.append(f"waiting for {name} ({_duration(seconds)}){others}")
        return ", ".join(said)


def stragglers(in_flight: Mapping[str, float], took: Collection[float]) -> tuple[tuple[str, float], ...]:
    """Those of `in_flight` (seconds so far, by name) that take far longer than what has ended `took`. Pure."""
    bound = max(STRAGGLES_AFTER_S, STRAGGLES_TIMES * statistics.median(took)) if took else STRAGGLES_AFTER_S
    found = [(name, seconds) for name, seconds in in_flight.items() if seconds >= bound]
    return tuple(sorted(found, key=lambda each: -each[1]))


_ALWAYS = frozenset({Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.NO_VERDICT})


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


class Progress:
    """Says where a run stands. `clock` gives seconds that only grow."""

    def __init__(self, out: TextIO, total: int, before: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._live = out.isatty()
        self._total, self._before, self._clock = total, before, clock
        self._outcomes: Counter[Outcome] = Counter()
        self._in_flight: dict[str, float] = {}
        self._took: deque[float] = deque(maxlen=1000)
        self._began: float | None = None
        self._drawn = False

    def began(self, name: str) -> None:
        """The grading of that name is in flight. The rate counts from the first, not from the building of images."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        self._in_flight[name] = now

    def gave_back(self, name: str) -> None:
        """The grading of that name is no longer in flight, whether or not it ended."""
        self._in_flight.pop(name, None)

    def ended(self, grading: Grading) -> None:
        """A grading is in the ledger."""
        self._outcomes[grading.outcome] += 1
        if grading.seconds:
            self._took.append(grading.seconds)

    def standing(self) -> Standing:
        now = self._clock()
        elapsed_s = 0.0 if self._began is None else now - self._began
        slow = stragglers({name: now - began for name, began in self._in_flight.items()}, self._took)
        return Standing(self._total, self._before, self._outcomes.copy(), len(self._in_flight), elapsed_s, slow)

    def say(self, text: str) -> None:
        """A line of the story that stays."""
        self.clear()
        self._out.write(printable(text) + "\n")
        self._out.flush()

    def draw(self) -> None:
        """The standing as it is now."""
        line = self.standing().line()
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r\x1b[2K{line[:width]}")
            self._drawn = True
        else:
            self._out.write(line + "\n")
        self._out.flush()

    def clear(self) -> None:
        """Take the live line away, so that something else can be written where it stood."""
        if self._drawn:
            self._out.write("\r\x1b[2K")
            self._out.flush()
            self._drawn = False

    async def keep_drawing(self) -> None:
        """Draw until cancelled; without a terminal, only when something has changed."""
        last: object = None
        while True:
            now = self.standing()
            changed = now.outcomes, [name for name, _ in now.stragglers]
            if self._live or last != changed:
                self.draw()
                last = changed
            await anyio.sleep(LIVE_EVERY_S if self._live else PLAIN_EVERY_S)
