"""A scorer for trainers: usable from any thread and from any event loop, or from none.

    with SyncScorer(load(Path("campaign.toml"), {})) as scorer:
        group = scorer.score_group("django__django-15127", patches)  # waits
        (group,) = await scorer.score_groups_async([("django__django-15127", patches)])  # in whatever loop runs here

A thread with an event loop of its own does the work, so that a running loop in the caller's thread is no trouble.
Ctrl-C, and the cancellation of whoever awaits, give the sandboxes back. Not covered: use in a forked child, which has no
such thread; that raises instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from grader.campaign import Campaign
from grader.errors import UsageError
from grader.run import OpenGrounds
from grader.scorer import Group, Scorer, ScorerClosed, open_scorer
from sandbox.sync import LoopThread

Asked = Sequence[tuple[str, Sequence[bytes | str]]]
"""Groups: each a task id and its patches."""


class SyncScorer:
    """A `Scorer` whose calls may come from many threads at once. Use it in a `with`, or call `open` and `close`."""

    def __init__(self, campaign: Campaign, *, model: str = "policy", grounds: OpenGrounds | None = None) -> None:
        self._campaign, self._model, self._grounds = campaign, model, grounds
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
        """Open the provider and the ledger. Raises as `open_scorer`."""
        with contextlib.ExitStack() as stack:
            thread = LoopThread()
            stack.callback(thread.close)
            opening = open_scorer(self._campaign, model=self._model, grounds=self._grounds)
            self._opened = stack.enter_context(thread.held(opening)), thread, os.getpid()
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Give back every sandbox and close the ledger. Calls that still wait raise `ScorerClosed`."""
        self._opened = None
        self._stack.close()

    def score_group(self, task_id: str, patches: Sequence[bytes | str]) -> Group:
        """As `Scorer.score_group`; waits."""
        return self.score_groups([(task_id, patches)])[0]

    def score_groups(self, groups: Asked) -> list[Group]:
        """Several groups at once, each a task id and its patches; waits for all."""
        future = self._submit(groups)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def score_groups_async(self, groups: Asked) -> list[Group]:
        """As `score_groups`, awaited in any loop."""
        return await asyncio.wrap_future(self._submit(groups))

    def _submit(self, groups: Asked) -> Future[list[Group]]:
        if self._opened is None:
            raise ScorerClosed("the scorer is not open; use it in a `with`, or call open() first")
        scorer, thread, pid = self._opened
        if pid != os.getpid():
            raise UsageError("this scorer was opened before this process was forked; open one in each process")
        return thread.submit(scorer.score_groups(groups))
