"""The story of a run on stderr: one line that is rewritten on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

import anyio

from grader.console import printable
from grader.record import Grading
from grader.verdict import Outcome

LIVE_EVERY_S = 0.5
PLAIN_EVERY_S = 10.0


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
        return ", ".join(said)


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
        self._in_flight = 0
        self._began: float | None = None
        self._drawn = False

    def began(self) -> None:
        """A grading is in flight. The rate counts from the first, not from the building of images."""
        self._began = self._clock() if self._began is None else self._began
        self._in_flight += 1

    def gave_back(self) -> None:
        """A grading is no longer in flight, whether or not it ended."""
        self._in_flight -= 1

    def ended(self, grading: Grading) -> None:
        """A grading is in the ledger."""
        self._outcomes[grading.outcome] += 1

    def standing(self) -> Standing:
        elapsed_s = 0.0 if self._began is None else self._clock() - self._began
        return Standing(self._total, self._before, self._outcomes.copy(), self._in_flight, elapsed_s)

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
        last: Counter[Outcome] | None = None
        while True:
            if self._live or last != self._outcomes:
                self.draw()
                last = self._outcomes.copy()
            await anyio.sleep(LIVE_EVERY_S if self._live else PLAIN_EVERY_S)
