"""What the checks are given, and the few words in which they speak."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from sandbox.provider import Provider, Sandbox
from sandbox.spec import SandboxSpec

ALL_BYTES = bytes(range(256))
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Subject:
    """A provider under test."""

    provider: Provider
    spec: SandboxSpec
    """Works with the provider; egress denied."""
    canary: tuple[str, int] | None = None
    """An address at which something listens that `egress="open"` reaches and `denied` must not. None: not checked."""
    missing_image: str = "sha256:" + "0" * 64
    """A well-formed reference that leads nowhere."""


@dataclass(frozen=True)
class LifecycleSubject:
    """How to open the provider under test, and how to find what it left, without asking it."""

    open: Callable[[], AbstractAsyncContextManager[Provider]]
    spec: SandboxSpec
    leftovers: Callable[[], Sequence[str]]
    """A line per process, mount, directory or remote object that is still there."""
    settle_s: float = 10.0
    """How long a released sandbox may take to disappear while its provider stays open."""


Check = Callable[[Subject], Awaitable[None]]
LifecycleCheck = Callable[[LifecycleSubject], Awaitable[None]]


async def output(box: Sandbox, command: str, **options: Any) -> bytes:
    """What a command that must succeed wrote."""
    result = await box.run(command, **{"timeout_s": TIMEOUT_S, **options})
    expect(0, result.exit_code, f"exit code of {command!r}, which wrote {result.output[-500:]!r}")
    return result.output


def expect(expected: object, found: object, what: str) -> None:
    """Raise `AssertionError` unless both are equal."""
    if expected != found:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


@contextlib.contextmanager
def expect_raises(kind: type[BaseException], what: str) -> Any:
    """Raise `AssertionError` unless the body raises `kind`."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{what}: expected {kind.__name__}, and nothing was raised")
