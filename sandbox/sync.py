"""Sandboxes for code that is not async (notebooks, simple agents): the same calls, each of which waits.

    with SyncProvider(LocalConfig()) as provider, provider.sandbox(SandboxSpec(image="host")) as box:
        result = box.run("echo hello", timeout_s=10)

A thread with an event loop of its own does the work, so this runs inside a notebook's loop as well. Calls may come from
several threads at once. An interrupt (Ctrl-C) cancels the call that waits, which kills its command.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sandbox.config import ProviderConfig, open_provider
from sandbox.provider import DEFAULT_MAX_OUTPUT_BYTES, Provider, Sandbox
from sandbox.spec import Chunk, ExecResult, Facts, Identity, SandboxSpec

T = TypeVar("T")


class LoopThread:
    """A thread that runs an event loop from its making until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandman-sync", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin `work`. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises. An interrupted wait cancels it first."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @contextlib.contextmanager
    def held(self, context: contextlib.AbstractAsyncContextManager[T]) -> Iterator[T]:
        """What `context` gives, entered and left by one task of the loop, as anyio's scopes need it."""
        entered: concurrent.futures.Future[T] = concurrent.futures.Future()
        leave = asyncio.Event()

        async def hold() -> None:
            try:
                async with context as value:
                    entered.set_result(value)
                    await leave.wait()
            except BaseException as error:
                if entered.done():
                    raise
                entered.set_exception(error)

        holding = asyncio.run_coroutine_threadsafe(hold(), self._loop)
        try:
            yield entered.result()
        except BaseException:
            if not entered.done():
                holding.cancel()
            raise
        finally:
            self._loop.call_soon_threadsafe(leave.set)
            with contextlib.suppress(concurrent.futures.CancelledError):
                holding.result()

    def close(self) -> None:
        """End the loop and its thread."""
        self.call(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncProvider:
    """A provider whose calls wait. Use it in a `with`; leaving it deletes every sandbox."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._thread = LoopThread()
            stack.callback(self._thread.close)
            self._provider: Provider = stack.enter_context(self._thread.held(open_provider(self._config)))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def sandbox(self, spec: SandboxSpec, *, acquire_timeout_s: float = 120.0) -> Iterator[SyncSandbox]:
        """As `Provider.sandbox`."""
        with self._thread.held(self._provider.sandbox(spec, acquire_timeout_s=acquire_timeout_s)) as box:
            yield SyncSandbox(self._thread, box)


class SyncSandbox:
    """A sandbox whose calls wait; each does what its namesake of `Sandbox` does."""

    def __init__(self, thread: LoopThread, box: Sandbox) -> None:
        self._thread = thread
        self._box = box

    @property
    def identity(self) -> Identity:
        return self._box.identity

    def run(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> ExecResult:
        return self._thread.call(
            self._box.run(command, timeout_s=timeout_s, stdin=stdin, max_output_bytes=max_output_bytes, session=session)
        )

    def stream(
        self, command: str | bytes, *, timeout_s: float, stdin: bytes = b"", session: str = "main"
    ) -> Iterator[Chunk | ExecResult]:
        items = self._box.stream(command, timeout_s=timeout_s, stdin=stdin, session=session)
        try:
            while (item := self._thread.call(_next(items))) is not None:
                yield item
        finally:
            self._thread.call(_close(items))

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return self._thread.call(self._box.read(path, offset=offset, limit=limit))

    def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        self._thread.call(self._box.write(path, data, mode=mode))

    def upload(self, local: Path, remote: str) -> None:
        self._thread.call(self._box.upload(local, remote))

    def download(self, remote: str, local: Path) -> None:
        self._thread.call(self._box.download(remote, local))

    def facts(self) -> Facts:
        return self._thread.call(self._box.facts())


async def _next(items: AsyncIterator[Chunk | ExecResult]) -> Chunk | ExecResult | None:
    return await anext(items, None)


async def _close(items: AsyncIterator[Chunk | ExecResult]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
