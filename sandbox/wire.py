"""HTTP/1.1 to one execd and nothing else: a few kept connections, whole or piecewise answers, every wait bounded.

Why not a general client: docs/decisions/execd-client-speaks-http-itself.md. What the daemon sends is not trusted: heads
are bounded, lengths are checked, and anything unexpected is `Broken`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

_HEAD_LIMIT = 1 << 16
_PIECE = 1 << 20
_KEPT = 16


class Broken(Exception):
    """The connection was refused, ended early, timed out, or did not speak HTTP."""


class Answer:
    """A status and a body that is read once, by `pieces` or `read`."""

    def __init__(self, status: int, length: int | None, reader: asyncio.StreamReader, wait_s: float) -> None:
        self.status = status
        self.whole = False
        """Whether the body was read to its end, so that the connection can be used again."""
        self._length = length
        self._reader = reader
        self._wait_s = wait_s

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Broken when it ends early or nothing comes for the answer's wait."""
        try:
            if self._length is None:
                while size := int((await self._line()).partition(b";")[0], 16):
                    async for piece in self._exactly(size):
                        yield piece
                    await self._line()
                await self._line()
            else:
                async for piece in self._exactly(self._length):
                    yield piece
        except (OSError, EOFError, ValueError) as error:
            raise Broken(f"the answer's body broke off: {error!r}") from error
        self.whole = True

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size > 0:
            async with asyncio.timeout(self._wait_s):
                piece = await self._reader.read(min(size, _PIECE))
            if not piece:
                raise EOFError("connection closed")
            size -= len(piece)
            yield piece

    async def _line(self) -> bytes:
        async with asyncio.timeout(self._wait_s):
            return (await self._reader.readuntil(b"\r\n"))[:-2]


class Wire:
    """Requests to one host and port with one bearer token."""

    def __init__(self, host: str, port: int, token: str, *, connect_wait_s: float = 10.0) -> None:
        self._host = host
        self._port = port
        self._connect_wait_s = connect_wait_s
        self._common = f" HTTP/1.1\r\nHost: execd\r\nAuthorization: Bearer {token}\r\n"
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, target: str, body: bytes | AsyncIterator[bytes] = b"", *, wait_s: float = 30.0
    ) -> AsyncGenerator[Answer, None]:
        """Send a request and give its answer. `wait_s` bounds each wait for the daemon. Raises Broken.

        A connection whose answer was not read to its end is closed, whatever the reason.
        """
        reader, writer = self._idle.pop() if self._idle else await self._connect()
        kept = False
        try:
            answer = await self._exchange(reader, writer, f"{method} {target}{self._common}", body, wait_s)
            yield answer
            kept = answer.whole and len(self._idle) < _KEPT
        except Broken:
            self._forget_idle()  # the others are as old; a repeat must not meet the next stale one
            raise
        finally:
            if kept and not writer.is_closing():
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()

    async def aclose(self) -> None:
        """Close the kept connections."""
        self._forget_idle()
        await asyncio.sleep(0)  # lets the transports finish closing

    def _forget_idle(self) -> None:
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(self._connect_wait_s):
                return await asyncio.open_connection(self._host, self._port, limit=_PIECE)
        except OSError as error:  # TimeoutError is one
            raise Broken(f"no connection: {error!r}") from error

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: str,
        body: bytes | AsyncIterator[bytes],
        wait_s: float,
    ) -> Answer:
        try:
            if isinstance(body, bytes):
                framed = (
                    f"{head}Content-Length: {len(body)}\r\n\r\n".encode("ascii") if body else (head + "\r\n").encode()
                )
                writer.write(framed + body)
            else:
                writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode("ascii"))
                async for piece in body:
                    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    async with asyncio.timeout(wait_s):
                        await writer.drain()
                writer.write(b"0\r\n\r\n")
            async with asyncio.timeout(wait_s):
                await writer.drain()
                raw = await reader.readuntil(b"\r\n\r\n")
            status, length = _parse_head(raw)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise Broken(f"no answer: {error!r}") from error
        return Answer(status, length, reader, wait_s)


def _parse_head(raw: bytes) -> tuple[int, int | None]:
    """(status, body length or None for chunked). Raises ValueError."""
    if len(raw) > _HEAD_LIMIT:
        raise ValueError("the head is too long")
    first, *lines = raw[:-4].split(b"\r\n")
    if not first.startswith(b"HTTP/1.1 "):
        raise ValueError("not HTTP/1.1")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if headers.get(b"transfer-encoding") == b"chunked":
        return int(first[9:12]), None
    return int(first[9:12]), int(headers[b"content-length"]) if b"content-length" in headers else 0
