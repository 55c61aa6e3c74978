"""Ownership: whatever happens to callers and to the provider, no sandbox is left."""

from __future__ import annotations

import asyncio
import time

from sandbox.conformance.subject import LifecycleCheck, LifecycleSubject, expect
from sandbox.errors import SandboxError, SandboxLost
from sandbox.provider import Provider
from sandbox.spec import SandboxSpec


async def cancelling_twice_at_any_moment_leaves_nothing(subject: LifecycleSubject) -> None:
    """A caller that is cancelled twice, at any of many moments of its life, leaves no sandbox behind."""

    async def use(provider: Provider) -> None:
        async with provider.sandbox(subject.spec) as box:
            await box.run("sleep 30", timeout_s=60)

    async with subject.open() as provider:
        for step in range(25):
            task = asyncio.create_task(use(provider))
            await asyncio.sleep(step * 0.01)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await _expect_nothing_left(subject, sandboxes_only=True)
    await _expect_nothing_left(subject)


async def closing_deletes_what_is_still_held(subject: LifecycleSubject) -> None:
    """Leaving the provider deletes sandboxes whose callers are still in their `with`; their next call says so."""
    entered, leave = asyncio.Event(), asyncio.Event()
    heard: list[BaseException] = []

    async def hold(provider: Provider) -> None:
        async with provider.sandbox(subject.spec) as box:
            entered.set()
            await leave.wait()
            try:
                await box.run("true", timeout_s=5)
            except SandboxError as error:
                heard.append(error)

    async with subject.open() as provider:
        task = asyncio.create_task(hold(provider))
        await entered.wait()
    await _expect_nothing_left(subject)
    leave.set()
    await task
    expect([SandboxLost], [type(error) for error in heard], "what the holder hears")


async def closing_answers_those_who_wait(subject: LifecycleSubject) -> None:
    """A caller that still waits for its sandbox when the provider closes hears an error at once."""
    async with subject.open() as provider:
        task = asyncio.create_task(_enter(provider, subject.spec))
        await asyncio.sleep(0.01)
    done, _ = await asyncio.wait([task], timeout=5)
    expect(True, bool(done), "the caller is answered")
    expect(True, isinstance(task.exception(), SandboxError), f"a SandboxError, not {task.exception()!r}")
    await _expect_nothing_left(subject)


async def closing_while_creating_leaves_nothing(subject: LifecycleSubject) -> None:
    """Leaving the provider, itself cancelled twice, while sandboxes are being created leaves nothing."""

    async def own() -> None:
        async with subject.open() as provider:
            await asyncio.gather(*(_enter(provider, subject.spec) for _ in range(5)))

    for step in range(6):
        task = asyncio.create_task(own())
        await asyncio.sleep(0.02 + step * 0.08)
        task.cancel()
        await asyncio.sleep(0.001 * step)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await _expect_nothing_left(subject)


async def _enter(provider: Provider, spec: SandboxSpec) -> None:
    async with provider.sandbox(spec):
        await asyncio.sleep(30)


async def _expect_nothing_left(subject: LifecycleSubject, *, sandboxes_only: bool = False) -> None:
    deadline = time.monotonic() + subject.settle_s
    while (left := _leftovers(subject, sandboxes_only)) and time.monotonic() < deadline:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.05)
    expect([], left, "left behind")


def _leftovers(subject: LifecycleSubject, sandboxes_only: bool) -> list[str]:
    return [line for line in subject.leftovers() if not sandboxes_only or line.startswith("sandbox ")]


CHECKS: tuple[LifecycleCheck, ...] = (
    cancelling_twice_at_any_moment_leaves_nothing,
    closing_deletes_what_is_still_held,
    closing_answers_those_who_wait,
    closing_while_creating_leaves_nothing,
)
