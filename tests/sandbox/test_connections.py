"""The way to a daemon: broken, silent, stale, gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.client import ExecdClient
from sandbox.errors import SandboxLost
from sandbox.spec import Chunk, ExecResult
from sandbox.wire import Broken, Wire
from tests.execd.conftest import TOKEN, Running, daemon, running
from tests.sandbox.callers import explained

__all__ = ["running"]  # fixtures

pytestmark = pytest.mark.anyio


async def test_a_broken_connection_is_resumed_and_the_command_runs_once(running: Running, tmp_path: Path) -> None:
    """A proxy cuts every first connection of a command in the middle; the result is whole, the command ran once."""
    cuts = 0
    tasks: set[asyncio.Task[None] | None] = set()

    async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        upstream_r, upstream_w = await asyncio.open_connection("127.0.0.1", running.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, cut: bool) -> None:
            nonlocal cuts
            seen = b""
            while data := await source.read(1 << 16):
                seen += data
                sink.write(data)
                if cut and b"half\n" in seen and cuts < 2:
                    cuts += 1
                    writer.transport.abort()
                    upstream_w.transport.abort()

        ways = [
            asyncio.ensure_future(pump(reader, upstream_w, False)),
            asyncio.ensure_future(pump(upstream_r, writer, True)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        upstream_w.transport.abort()
        writer.transport.abort()
        await asyncio.wait(ways)

    log = tmp_path / "log"
    server = await asyncio.start_server(through, "127.0.0.1", 0)
    client = ExecdClient("127.0.0.1", server.sockets[0].getsockname()[1], TOKEN)
    try:
        command = f"echo ran >> {log}; echo half; sleep 1; echo whole"
        items = [item async for item in client.stream(command, timeout_s=30, session="resume")]
    finally:
        await client.aclose()
        server.close()
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)
        await asyncio.sleep(0)
    assert cuts >= 1
    assert isinstance(items[-1], ExecResult)
    assert b"half\nwhole\n" == items[-1].output
    assert b"half\nwhole\n" == b"".join(item.data for item in items if isinstance(item, Chunk))
    assert "ran\n" == log.read_text()


async def test_a_dead_daemon_is_a_lost_sandbox_with_its_cause(tmp_path: Path) -> None:
    """The error's cause is what the outside says, never a guess."""
    with daemon(tmp_path) as running, explained(running.port, "out of memory") as client:
        await client.wait_ready(60)
        running.process.kill()
        running.process.wait()
        with pytest.raises(SandboxLost) as caught:
            await client.run("true", timeout_s=30)
        assert "out of memory" == caught.value.cause
        await client.aclose()


async def test_who_waits_for_a_daemon_that_is_known_to_be_gone_hears_so_at_once() -> None:
    """Requests under way, to a peer that keeps the connection and says nothing, and later ones: each is lost within a
    second, and nothing connects any more."""
    connections = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        with explained(server.sockets[0].getsockname()[1], "its pod is gone") as client:
            asked = client.run("sleep 60", timeout_s=60), client.read("/x")
            waiting = asyncio.gather(*asked, return_exceptions=True)
            while connections < len(asked):
                await asyncio.sleep(0.01)
            began = time.monotonic()
            client.break_off()
            later = client.run("true", timeout_s=60), client.wait_ready(30)
            told = [*await waiting, *await asyncio.gather(*later, return_exceptions=True)]
            assert time.monotonic() - began < 1.0
            await client.aclose()

    assert [SandboxLost] * 4 == [type(one) for one in told]
    assert {"its pod is gone"} == {getattr(one, "cause", None) for one in told}
    assert 2 == connections


async def test_a_kept_connection_that_the_daemon_has_closed_is_not_used_again() -> None:
    """Not even for a request that nothing would send again."""
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    async with server:
        wire = Wire(*server.sockets[0].getsockname(), TOKEN)
        for _ in range(3):
            await _one_request(wire)
            await asyncio.sleep(0.2)
        await wire.aclose()
    assert 3 == connections


@pytest.mark.parametrize("cuts", [1, 2])
async def test_a_manifest_is_asked_for_once_more_where_its_connection_broke(cuts: int) -> None:
    """Reading it again changes nothing; a second break loses the sandbox."""
    connections = 0

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if connections > cuts:
            result = json.dumps({"entries": 0}).encode()
            frame = b"r" + len(result).to_bytes(4, "big") + result
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(frame), frame))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        with explained(server.sockets[0].getsockname()[1], "the way is cut") as client:
            if cuts == 1:
                assert {} == await client.baseline("/testbed")
            else:
                with pytest.raises(SandboxLost, match="the way is cut"):
                    await client.baseline("/testbed")
            await client.aclose()
    assert 2 == connections


async def test_a_daemon_may_be_known_to_be_gone_at_any_moment_of_a_connect() -> None:
    """Also at the moment at which the connect's own time runs out, and as often as the news comes."""
    with _a_full_backlog() as address:
        for steps in range(8):
            wire = Wire(*address, TOKEN, connect_wait_s=0.0)
            asked = asyncio.get_running_loop().create_task(_one_request(wire))
            for _ in range(steps):
                await asyncio.sleep(0)
            for _ in range(4):
                wire.shut()
                await asyncio.sleep(0)
            with pytest.raises(Broken):
                await asked
            await wire.aclose()


async def _one_request(wire: Wire) -> None:
    async with wire.request("GET", "/health") as answer:
        await answer.read()


@contextlib.contextmanager
def _a_full_backlog() -> Iterator[tuple[str, int]]:
    """Where nobody accepts a connection, nor refuses it."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()


async def test_nothing_there_is_said_within_the_deadline() -> None:
    """wait_ready gives up at its deadline, not later."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ExecdClient("127.0.0.1", silent.getsockname()[1], TOKEN)
        begun = time.monotonic()
        with pytest.raises(SandboxLost) as caught:
            await client.wait_ready(0.5)
        assert time.monotonic() - begun < 5
        assert "unknown" == caught.value.cause
        await client.aclose()
