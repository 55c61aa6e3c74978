"""A scorer for trainers: usable from any thread and from any event loop, or from none.

    with SyncScorer(load(Path("campaign.toml"), {})) as scorer:
        group = scorer.score_group("django__django-15127", patches)  # waits
        scores = await scorer.score_all_async(pairs)  # in whatever loop runs here

A thread with an event loop of its own does the work, so that a running loop in the caller's thread is no trouble.
Ctrl-C, and the cancellation of whoever awaits, give the sandboxes back. Not covered: use in a forked child, which has
no such thread; that raises instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from grader.campaign import Campaign
from grader.errors import UsageError
from grader.run import OpenGrounds
from grader.samples import Pair, Patch
from grader.scorer import Group, Score, Scorer, ScorerClosed, open_scorer
from sandbox.sync import LoopThread


class SyncScorer:
    """A `Scorer` whose calls may come from many threads at once. Use it in a `with`, or call `open` and `close`."""

    def __init__(self, campaign: Campaign, *, model: str = "policy", grounds: OpenGrounds | None = None) -> None:
        self._campaign, self._model, self._grounds = campaign, model, grounds
        self._lock = threading.Lock()
        self._opened: tuple[Scorer, LoopThread, int] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Open the provider and the ledger, if they are not open. The end of the interpreter closes what is left open.

        Raises as `open_scorer`.
        """
        with self._lock, contextlib.ExitStack() as stack:
            if self._opened is not None:
                return
            thread = LoopThread()
            stack.callback(thread.close)
            opening = open_scorer(self._campaign, model=self._model, grounds=self._grounds)
            self._opened = stack.enter_context(thread.held(opening)), thread, os.getpid()
            self._stack = stack.pop_all()
            atexit.register(self.close)

    def close(self) -> None:
        """Give back every sandbox and close the ledger. Calls that still wait raise `ScorerClosed`.

        Raises what a ledger raised that still cannot be written.
        """
        with self._lock:
            atexit.unregister(self.close)
            opened, self._opened = self._opened, None
            if opened is not None and opened[2] == os.getpid():
                self._stack.close()

    def score_group(self, task_id: str, patches: Sequence[Patch]) -> Group:
        """As `Scorer.score_group`; waits."""
        scorer, thread = self._here()
        return thread.call(scorer.score_group(task_id, patches))

    def score_all(self, samples: Sequence[Pair]) -> list[Score]:
        """As `Scorer.score_all`; waits."""
        scorer, thread = self._here()
        return thread.call(scorer.score_all(samples))

    async def score_all_async(self, samples: Sequence[Pair]) -> list[Score]:
        """As `Scorer.score_all`, awaited in any loop."""
        scorer, thread = self._here()
        return await asyncio.wrap_future(thread.submit(scorer.score_all(samples)))

    def _here(self) -> tuple[Scorer, LoopThread]:
        if self._opened is None:
            raise ScorerClosed("the scorer is not open; use it in a `with`, or call open() first")
        scorer, thread, pid = self._opened
        if pid != os.getpid():
            raise UsageError("this scorer was opened before this process was forked; open one in each process")
        return scorer, thread
