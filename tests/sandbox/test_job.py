"""Jobs: background commands that are found again by their id."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest

from sandbox.client import ExecdClient
from sandbox.errors import CommandRefused
from tests.execd.conftest import Running, on_each_python, running
from tests.sandbox.callers import client

__all__ = ["client", "on_each_python", "running"]  # fixtures

pytestmark = pytest.mark.anyio


async def test_a_job_starts_where_its_session_is(client: ExecdClient) -> None:
    """Directory and exported variables are the session's; what the job does to its shell is its own."""
    await client.run("cd /usr; export A='1 2'", timeout_s=30, session="like")
    job = await client.start('pwd; echo "$A"; cd /; exit 3', session="like")
    result = await job.wait(timeout_s=30)
    assert result is not None
    assert (3, b"/usr\n1 2\n") == (result.exit_code, result.output)
    assert b"/usr\n" == (await client.run("pwd", timeout_s=30, session="like")).output


async def test_output_is_read_while_it_runs(running: Running, client: ExecdClient) -> None:
    """Another client finds the job by its id, reads from an offset and waits for more."""
    started = await client.start("echo one; until [ -e go ]; do sleep 0.05; done; echo two; rm go")
    async with running.client() as other:
        job = other.job(started.id)
        first = await job.read(wait_s=20)
        assert b"one\n" == first.data
        assert await job.poll() is None
        assert b"" == (await job.read(4)).data
        await other.run("touch go", timeout_s=30)
        assert (4, b"two\n") == ((chunk := await job.read(4, wait_s=20)).offset, chunk.data)
        result = await job.wait(timeout_s=30)
        assert result is not None
        assert (0, b"one\ntwo\n", False) == (result.exit_code, result.output, result.truncated)
        assert started.id in [each.id for each in await other.jobs()]
        assert b"one\ntwo\n" == (await job.read()).data


async def test_a_signal_reaches_the_jobs_processes(client: ExecdClient) -> None:
    """TERM and INT end what runs, double forks included; the job's result says how."""
    marker = f"sleep 45678.{random.randrange(10**6)}"
    job = await client.start(f"(setsid {marker} &); {marker}; echo never; exit 9")
    for _ in range(100):
        if (await client.run(f"pgrep -fxc '{marker}'", timeout_s=30)).output == b"2\n":
            break
        await asyncio.sleep(0.05)
    assert 2 == await job.signal(signal.SIGTERM)
    result = await job.wait(timeout_s=30)
    assert result is not None
    assert (9, b"never\n") == (result.exit_code, result.output[-6:])
    assert 1 == (await client.run(f"pgrep -fx '{marker}'", timeout_s=30)).exit_code


async def test_a_wait_that_ends_leaves_the_job(client: ExecdClient) -> None:
    """Waiting has a deadline, and the job does not mind it."""
    job = await client.start("sleep 1; echo done")
    assert await job.wait(timeout_s=0.1) is None
    result = await job.wait(timeout_s=30)
    assert result is not None
    assert b"done\n" == result.output


async def test_a_job_may_have_a_time_limit(client: ExecdClient) -> None:
    """A job over its time is ended like a command, with what it wrote."""
    job = await client.start("echo a; sleep 60", timeout_s=0.5)
    result = await job.wait(timeout_s=30)
    assert result is not None
    assert (True, b"a\n") == (result.timed_out, result.output[:2])


async def test_an_unknown_job_is_refused(client: ExecdClient) -> None:
    """An id that was never given is no job."""
    with pytest.raises(Exception, match="no such job") as caught:
        await client.job("nobody").poll()
    assert "unknown_exec" == getattr(caught.value, "code", None)
    with pytest.raises(CommandRefused):
        await client.start("a\0b")


async def test_long_output_keeps_head_and_tail(on_each_python: Running) -> None:
    """As for a command; on every Python."""
    async with on_each_python.client() as client:
        job = await client.start("echo first; head -c 3000000 /dev/zero; echo last", max_output_bytes=1000)
        result = await job.wait(timeout_s=60)
        assert result is not None
        assert (True, 3_000_011, 1000) == (result.truncated, result.output_bytes, len(result.output))
        assert result.output.startswith(b"first\n")
        assert result.output.endswith(b"\0last\n")
        assert 0 == (await client.health()).raw["failures"]
