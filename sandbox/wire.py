"""HTTP/1.1 to one execd and nothing else: a few kept connections, whole or piecewise answers, every wait bounded.

Why not a general client: docs/decisions/execd-client-speaks-http-itself.md. What the daemon sends is not trusted: heads
are bounded, lengths are checked, and anything unexpected is `Broken`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import cast

_HEAD_LIMIT = 1 << 16
_UNREAD_LIMIT = 1 << 22
_KEPT = 16


class Broken(Exception):
    """The connection was refused, ended early, timed out, or did not speak HTTP."""

    silent_s = 0.0
    """How long nothing had come over it, at most, when it broke."""


class _Connection(asyncio.Protocol):
    """What arrived, in the pieces in which it came, until it is taken. Nobody but one request uses it at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[bytes] = deque()
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ended: Exception | None = None
        self._full = False
        self.silent_s = 0.0
        """The longest wait for the peer since it was last set to zero."""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._arrived.append(data)
        self._unread += len(data)
        if self._unread > _UNREAD_LIMIT:
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = exc or EOFError("connection closed")
        self._wake()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake()

    @property
    def answered(self) -> bool:
        """Whether something has arrived that was not taken."""
        return bool(self._arrived)

    async def written(self, wait_s: float) -> None:
        """Wait until the peer takes more, or answers."""
        while self._full and not self._arrived:
            await self._wait(wait_s)

    async def piece(self, limit: int, wait_s: float) -> bytes:
        """What came next, `limit` bytes at most, once something has come."""
        while not self._arrived:
            await self._wait(wait_s)
        data = self._arrived.popleft()
        if len(data) > limit:
            self._arrived.appendleft(data[limit:])
            data = data[:limit]
        self._unread -= len(data)
        if self._unread <= _UNREAD_LIMIT and not self.transport.is_closing():
            self.transport.resume_reading()
        return data

    async def until(self, mark: bytes, wait_s: float) -> bytes:
        """What came up to `mark`, which is taken too. Raises ValueError when that is longer than a head may be."""
        data = await self.piece(_UNREAD_LIMIT, wait_s)
        while (end := data.find(mark)) < 0:
            if len(data) > _HEAD_LIMIT:
                raise ValueError("a line or a head is too long")
            data += await self.piece(_UNREAD_LIMIT, wait_s)
        rest = data[end + len(mark) :]
        if rest:
            self._arrived.appendleft(rest)
            self._unread += len(rest)
        return data[:end]

    async def _wait(self, wait_s: float) -> None:
        if self._ended is not None:
            raise self._ended
        self._waiter = waiter = self._loop.create_future()
        timer = self._loop.call_later(wait_s, _give_up, waiter)
        began = self._loop.time()
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
            self.silent_s = max(self.silent_s, self._loop.time() - began)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError("nothing came in time"))


class Answer:
    """A status and a body that is read once, by `pieces` or `read`."""

    def __init__(self, status: int, length: int | None, connection: _Connection, wait_s: float) -> None:
        self.status = status
        self.whole = False
        """Whether the body was read to its end, so that the connection can be used again."""
        self._length = length
        self._connection = connection
        self._wait_s = wait_s

    @property
    def silent_s(self) -> float:
        """The longest wait for any of it so far."""
        return self._connection.silent_s

    async def read(self) -> bytes:
        """The whole body."""
        pieces: list[bytes] = []
        try:
            if self._length is None:
                while size := await self._chunk_size():
                    await self._take(size, pieces)
                    await self._line()
                await self._line()
            else:
                await self._take(self._length, pieces)
        except (OSError, EOFError, ValueError) as error:
            raise _broke_off(error) from error
        self.whole = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Broken when it ends early or nothing comes for the answer's wait."""
        try:
            size = await self._chunk_size() if self._length is None else self._length
            while size:
                while size:
                    piece = await self._connection.piece(size, self._wait_s)
                    size -= len(piece)
                    yield piece
                if self._length is None:
                    await self._line()
                    size = await self._chunk_size()
            if self._length is None:
                await self._line()
        except (OSError, EOFError, ValueError) as error:
            raise _broke_off(error) from error
        self.whole = True

    async def _take(self, size: int, pieces: list[bytes]) -> None:
        while size:
            pieces.append(await self._connection.piece(size, self._wait_s))
            size -= len(pieces[-1])

    async def _chunk_size(self) -> int:
        return int((await self._line()).partition(b";")[0], 16)

    async def _line(self) -> bytes:
        return await self._connection.until(b"\r\n", self._wait_s)


class Wire:
    """Requests to one host and port with one bearer token."""

    def __init__(self, host: str, port: int, token: str, *, connect_wait_s: float = 10.0) -> None:
        self._host = host
        self._port = port
        self._connect_wait_s = connect_wait_s
        self._common = f" HTTP/1.1\r\nHost: execd\r\nAuthorization: Bearer {token}\r\n"
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._connecting: set[asyncio.Timeout] = set()
        self.is_shut = False
        """`shut` was called."""

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, target: str, body: bytes | AsyncIterator[bytes] = b"", *, wait_s: float = 30.0
    ) -> AsyncGenerator[Answer, None]:
        """Send a request and give its answer. `wait_s` bounds each wait for the daemon. Raises Broken.

        A connection whose answer was not read to its end, or came before its question's, is closed in any case.
        """
        connection = self._kept_one() or await self._connect()
        kept = False
        connection.silent_s = 0.0
        self._busy.add(connection)
        try:
            try:
                whole = await _send(connection, f"{method} {target}{self._common}", body, wait_s)
                status, length = _parse_head(await connection.until(b"\r\n\r\n", wait_s))
            except (OSError, EOFError, ValueError) as error:
                raise Broken(f"no answer: {error!r}") from error
            answer = Answer(status, length, connection, wait_s)
            yield answer
            kept = whole and answer.whole and len(self._idle) < _KEPT
        except Broken as broken:
            broken.silent_s = connection.silent_s
            self._forget_idle()  # the others are as old; a repeat must not meet the next stale one
            raise
        finally:
            self._busy.discard(connection)
            if kept and not connection.answered and not connection.transport.is_closing():
                self._idle.append(connection)
            else:
                connection.transport.abort()

    def _kept_one(self) -> _Connection | None:
        """The connection that was used last, of those that the daemon has not closed meanwhile."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    def shut(self) -> None:
        """The peer is known to be gone: what waits for it breaks now, and nothing connects to it any more. Never
        raises, at whatever moment and however often it is called."""
        if self.is_shut:
            return
        self.is_shut = True
        self._forget_idle()
        for connection in self._busy:
            connection.transport.abort()
        for limit in self._connecting:
            if not limit.expired():  # else it ends by itself, and may not be told to
                limit.reschedule(0.0)

    async def aclose(self) -> None:
        """Close the kept connections."""
        self._forget_idle()
        await asyncio.sleep(0)  # lets the transports finish closing

    def _forget_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.transport.abort()

    async def _connect(self) -> _Connection:
        if self.is_shut:
            raise Broken("no connection: the daemon is known to be gone")
        limit = asyncio.timeout(self._connect_wait_s)
        try:
            async with limit:
                self._connecting.add(limit)
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(_Connection, self._host, self._port)
                return connection
        except OSError as error:  # TimeoutError is one
            raise Broken(f"no connection: {error!r}") from error
        finally:
            self._connecting.discard(limit)


async def _send(connection: _Connection, head: str, body: bytes | AsyncIterator[bytes], wait_s: float) -> bool:
    """Send a request. False when the answer came before all of the body was sent: the rest is not."""
    write = connection.transport.write
    if isinstance(body, bytes):
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        write(f"{head}{length}\r\n".encode("ascii") + body)
        await connection.written(wait_s)
        return True
    write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode("ascii"))
    async for piece in body:
        write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await connection.written(wait_s)
        if connection.answered:
            return False
    write(b"0\r\n\r\n")
    await connection.written(wait_s)
    return True


def _parse_head(raw: bytes) -> tuple[int, int | None]:
    """(status, body length or None for chunked). Raises ValueError."""
    first, *lines = raw.split(b"\r\n")
    if not first.startswith(b"HTTP/1.1 "):
        raise ValueError("not HTTP/1.1")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if headers.get(b"transfer-encoding") == b"chunked":
        return int(first[9:12]), None
    length = int(headers.get(b"content-length", b"0"))
    if length < 0:
        raise ValueError("a negative length")
    return int(first[9:12]), length


def _broke_off(error: Exception) -> Broken:
    return Broken(f"the answer's body broke off: {error!r}")
