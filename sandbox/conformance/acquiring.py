"""Acquiring a sandbox: what is missing is named, deadlines hold, many at once."""

from __future__ import annotations

import asyncio

from sandbox.conformance.subject import Check, Subject, expect, expect_raises, output
from sandbox.errors import AcquireTimeout, ImageError


async def a_missing_image_is_named(subject: Subject) -> None:
    """An image that is not there raises `ImageError`, and a later sandbox works."""
    with expect_raises(ImageError, "a missing image"):
        async with subject.provider.sandbox(subject.spec.model_copy(update={"image": subject.missing_image})):
            pass
    async with subject.provider.sandbox(subject.spec) as box:
        await output(box, "true")


async def an_acquire_has_a_deadline(subject: Subject) -> None:
    """When the caller's deadline passes, `AcquireTimeout` says where the time went."""
    try:
        async with subject.provider.sandbox(subject.spec, acquire_timeout_s=0.001):
            raise AssertionError("a sandbox within a millisecond")
    except AcquireTimeout as late:
        expect(True, bool(late.waited_in) and all(value >= 0 for value in late.waited_in.values()), "waited_in")


async def twenty_at_once(subject: Subject) -> None:
    """Twenty concurrent sandboxes each answer for themselves."""

    async def one(number: int) -> bytes:
        async with subject.provider.sandbox(subject.spec) as box:
            await box.write("/tmp/number", b"%d" % number)
            return await output(box, "cat /tmp/number")

    expect([b"%d" % n for n in range(20)], await asyncio.gather(*map(one, range(20))), "answers")


async def an_error_of_the_caller_passes_through(subject: Subject) -> None:
    """What the caller raises in the `with` comes out as it was."""
    with expect_raises(ZeroDivisionError, "the caller's own error"):
        async with subject.provider.sandbox(subject.spec):
            raise ZeroDivisionError


CHECKS: tuple[Check, ...] = (
    a_missing_image_is_named,
    an_acquire_has_a_deadline,
    twenty_at_once,
    an_error_of_the_caller_passes_through,
)
