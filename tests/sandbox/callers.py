"""A caller of a daemon, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.client import ExecdClient
from tests.execd.conftest import TOKEN, Running


@pytest.fixture
async def client(running: Running) -> AsyncIterator[ExecdClient]:
    async with running.client() as ready:
        yield ready


@contextmanager
def explained(port: int, cause: str | None = None) -> Iterator[ExecdClient]:
    """A client with an outside cause, as a provider gives one. The tests close it themselves."""

    async def explain() -> str | None:
        return cause

    yield ExecdClient("127.0.0.1", port, TOKEN, explain=explain)


async def until(client: ExecdClient, command: str, *, exit_code: int) -> None:
    """Wait, boundedly, until a command in another session ends with this code."""
    for _ in range(100):
        if (await client.run(command, timeout_s=30, session="watch")).exit_code == exit_code:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{command!r} never ended with {exit_code}")


def alive(command: str) -> bool:
    wanted = command.replace(" ", "\0").encode() + b"\0"
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False
