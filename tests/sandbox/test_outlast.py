"""What is awaited to its end is, whoever cancels and however often: tasks, threads, and what a provider's open made."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import anyio
import pytest

from sandbox import LocalConfig, open_provider
from sandbox.local.site import Site
from sandbox.outlast import in_thread, outlast

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_task_is_awaited_to_its_end(times: int) -> None:
    """Cancellations of a task and of a scope are raised only when all is done."""
    ended: list[str] = []

    async def work(name: str) -> None:
        await asyncio.sleep(0.1)
        ended.append(name)

    async def host() -> None:
        await outlast({asyncio.ensure_future(work(name)) for name in "ab"})

    task = asyncio.create_task(host())
    for _ in range(times):
        await asyncio.sleep(0.01)
        task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()

    with anyio.move_on_after(0.01) as scope:
        await outlast({asyncio.ensure_future(work("c"))})
        await anyio.sleep(0)
    assert scope.cancelled_caught
    assert ["a", "b", "c"] == sorted(ended)


async def test_a_wait_has_an_end() -> None:
    """A task that does not end is given up after the time-out, and left alone."""
    task = asyncio.ensure_future(asyncio.sleep(30))

    await outlast({task}, 0.05)

    assert not task.done()
    task.cancel()


async def test_a_thread_ends_before_its_caller_goes_on() -> None:
    """A cancelled caller finds nobody at work on its files; its thread's error is not left unheard."""
    at_work, go_on = threading.Event(), threading.Event()
    over = False

    def work() -> None:
        nonlocal over
        at_work.set()
        go_on.wait(20)
        over = True
        raise OSError("nobody hears this")

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(at_work.wait, 20)
    task.cancel()
    await asyncio.sleep(0.02)
    task.cancel()
    assert not over
    go_on.set()
    await asyncio.wait({task})

    assert task.cancelled()
    assert over
    with pytest.raises(OSError, match="nobody"):
        await in_thread(work)


async def test_an_open_that_is_cancelled_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider that is cancelled while it looks at the machine removes what it began, after its last write."""
    prepare, began, cancelled = Site.prepare, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly(*args: object) -> object:
        loop.call_soon_threadsafe(began.set)
        assert cancelled.wait(20)
        return prepare(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Site, "prepare", slowly)

    async def host() -> None:
        async with open_provider(LocalConfig(state_dir=tmp_path)):
            raise AssertionError("opened")

    task = asyncio.create_task(host())
    await began.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    cancelled.set()
    await asyncio.wait({task})

    assert task.cancelled()
    assert [] == list((tmp_path / "run").iterdir())
