"""The client against the real daemon: what a caller sees."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.client import ExecdClient
from sandbox.errors import CommandRefused
from sandbox.spec import Chunk, ExecResult
from tests.execd.conftest import Running, daemon, on_each_python, running
from tests.sandbox.callers import alive, client, explained, until

__all__ = ["client", "on_each_python", "running"]  # fixtures

pytestmark = pytest.mark.anyio


async def test_a_new_daemon_has_run_nothing(tmp_path: Path) -> None:
    """The count of execs proves that a sandbox was never used, and counts from then on."""
    with daemon(tmp_path) as fresh, explained(fresh.port) as client:
        assert 0 == (await client.wait_ready(60)).execs
        await client.run("true", timeout_s=30)
        assert 1 == (await client.health()).execs
        await client.aclose()


async def test_every_python_starts_and_answers(on_each_python: Running, tmp_path: Path) -> None:
    """Commands, files, trees and facts work on each Python found."""
    async with on_each_python.client() as client:
        assert b"hi\n" == (await client.run("echo hi", timeout_s=30)).output
        await client.write(str(tmp_path / "a/b"), b"bytes\0\xff")
        assert b"bytes\0\xff" == await client.read(str(tmp_path / "a/b"))
        await client.upload(tmp_path / "a", str(tmp_path / "copy"))
        await client.download(str(tmp_path / "copy"), tmp_path / "back")
        assert b"bytes\0\xff" == (tmp_path / "back/b").read_bytes()
        facts = await client.facts()
        assert os.getuid() == facts.user_id
        assert len(os.sched_getaffinity(0)) == facts.visible_cpus
        assert 0 == (await client.health()).raw["failures"]


async def test_streaming_gives_chunks_as_they_come(client: ExecdClient) -> None:
    """The first output arrives before the command ends; the last item is the result with all of it."""
    items: list[Chunk | ExecResult] = []
    begun = time.monotonic()
    first_at = None
    async for item in client.stream("echo one; sleep 1.5; echo two", timeout_s=30, session="stream"):
        first_at = first_at or time.monotonic() - begun
        items.append(item)
    assert first_at is not None
    assert first_at < 1.4
    assert Chunk(0, b"one\n") == items[0]
    assert isinstance(items[-1], ExecResult)
    assert b"one\ntwo\n" == items[-1].output


async def test_a_stream_sees_all_of_a_long_output(client: ExecdClient) -> None:
    """Chunks carry their offsets; a consumer that keeps up can join them into the whole output."""
    offset = 0
    async for item in client.stream("seq 300000", timeout_s=60, max_output_bytes=8 << 20, session="long"):
        if isinstance(item, Chunk):
            assert offset == item.offset
            offset += len(item.data)
        else:
            assert offset == item.output_bytes == 1_988_895


async def test_a_cancelled_run_kills_its_command(client: ExecdClient) -> None:
    """Cancelled twice in a row, the run still takes its processes along."""
    marker = f"sleep 12345.{random.randrange(10**6)}"
    task = asyncio.create_task(client.run(f"{marker}; {marker}", timeout_s=300, session="cancelled"))
    await until(client, f"pgrep -fx '{marker}'", exit_code=0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(client, f"pgrep -fx '{marker}'", exit_code=1)


async def test_a_refused_command_is_an_error_and_no_result(client: ExecdClient) -> None:
    """A command that was not started never looks like one that failed."""
    with pytest.raises(CommandRefused) as caught:
        await client.run("a\0b", timeout_s=30)
    assert "bad_argument" == caught.value.code


async def test_lifetime_and_sigterm_end_the_daemon_and_its_children(tmp_path: Path) -> None:
    """At the end of its lifetime the daemon goes, and takes what it started along."""
    marker = f"sleep 23456.{random.randrange(10**6)}"
    with daemon(tmp_path, lifetime_s=4) as running:
        async with running.client() as client:
            await client.run(f"(setsid {marker} &) ; trap '' TERM", timeout_s=30)
        assert 0 == await asyncio.to_thread(running.process.wait, 30)
    assert not alive(marker)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=3000))
async def test_any_bytes_pass_through_a_command(client: ExecdClient, data: bytes) -> None:
    """stdin arrives and output returns byte for byte."""
    result = await client.run("cat", timeout_s=30, stdin=data, session="bytes")
    assert (0, data) == (result.exit_code, result.output)
