"""Output does not depend on how it was cut: by the writer, by the daemon, by the network, or by a lost connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.client import ExecdClient
from sandbox.spec import Chunk, ExecResult
from tests.execd.conftest import TOKEN, Running

pytestmark = pytest.mark.anyio

WRITER = """
import json, os, sys, time
for text, fd, pause_s in json.load(sys.stdin):
    data = text.encode("latin-1")
    while data:
        data = data[os.write(fd, data):]
    time.sleep(pause_s)
"""
# Whole and broken UTF-8, the daemon's own frame letters, line ends, NULs, and pieces longer than a pipe holds.
PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(["é", "漢字", "🙂", "\r\n", "S0 1\0", "r\0\0\0\2{}"]).map(str.encode),
    st.sampled_from([b"\xe6\xbc", b"\xa2", b"\xf0\x9f\x99", b"\x82", b"\xff\xfe", b"\0"]),
    st.binary(min_size=1, max_size=3).map(lambda seed: seed * 50_000),
)
WRITES = st.lists(st.tuples(PIECES, st.sampled_from([1, 2]), st.sampled_from([0.0, 0.0, 0.001, 0.01])), max_size=12)
SEARCH = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SEARCH
@given(writes=WRITES, limit=st.sampled_from([1 << 20, 1 << 20, 1001, 1, 0]))
async def test_any_interleaving_of_chunks_gives_the_same_output(
    running: Running, writes: list[tuple[bytes, int, float]], limit: int
) -> None:
    """Whenever and wherever a child cuts its output, answer and stream have the bytes that it wrote, in order."""
    whole = b"".join(piece for piece, _, _ in writes)
    expected = whole if len(whole) <= limit else whole[: limit - limit // 2] + whole[len(whole) - limit // 2 :]
    plan = json.dumps([(piece.decode("latin-1"), fd, pause) for piece, fd, pause in writes]).encode()
    command = f"{sys.executable} -I -S -c '{WRITER}'"
    async with running.client() as client:
        answered = await client.run(command, stdin=plan, timeout_s=60, max_output_bytes=limit)
        items = [item async for item in client.stream(command, stdin=plan, timeout_s=60, max_output_bytes=limit)]
    assert (0, len(whole), expected) == (answered.exit_code, answered.output_bytes, answered.output)
    result = items[-1]
    assert isinstance(result, ExecResult)
    assert (0, len(whole), expected) == (result.exit_code, result.output_bytes, result.output)
    offset = 0
    for chunk in items[:-1]:
        assert isinstance(chunk, Chunk)
        assert whole[chunk.offset : chunk.offset + len(chunk.data)] == chunk.data
        assert chunk.offset >= offset
        offset = chunk.offset + len(chunk.data)


@dataclass(frozen=True)
class Cutter:
    """Passes bytes between a client and the daemon in pieces of the given sizes, over and over."""

    port: int
    sizes: Sequence[int]

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[ExecdClient]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            client = ExecdClient("127.0.0.1", server.sockets[0].getsockname()[1], TOKEN)
            try:
                yield client
            finally:
                await client.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            await asyncio.gather(self._pass(reader, ours), self._pass(theirs, writer))
        except OSError:
            pass
        finally:
            ours.transport.abort()
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            for size in self.sizes:
                writer.write(data[:size])
                await writer.drain()
                await asyncio.sleep(0)  # the piece leaves by itself
                data = data[size:]
            writer.write(data)
        writer.close()


@SEARCH
@given(sizes=st.lists(st.integers(1, 90), max_size=20), stdin=st.binary(max_size=200))
async def test_any_cuts_of_the_network_give_the_same_answers(running: Running, sizes: list[int], stdin: bytes) -> None:
    """Requests and answers, whole and in chunks, mean the same however TCP cuts them."""
    async with Cutter(running.port, sizes).client() as client:
        assert stdin == (await client.run("cat", stdin=stdin, timeout_s=60)).output
        *chunks, result = [item async for item in client.stream("cat; echo; cat", stdin=stdin, timeout_s=60)]
        assert isinstance(result, ExecResult)
        assert stdin + b"\n" == result.output
        assert result.output == b"".join(chunk.data for chunk in chunks if isinstance(chunk, Chunk))
