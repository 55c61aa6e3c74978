"""Commands of one daemon: each runs once, whatever happens to its connection, and dies with its caller's interest.

A command carries an id. When its connection breaks, the same request is sent again under the same id and the daemon
answers from its record. A command whose caller gives up is killed: the kill is a task of ours, so that a second
cancellation cannot stop it; `aclose` waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from sandbox.answers import frames, frames_of, object_of, refused
from sandbox.errors import DaemonError, SandboxLost
from sandbox.spec import Chunk, ExecResult
from sandbox.wire import Broken, Wire

_RESUME_DELAYS_S = (0.0, 0.1, 0.5, 1.0, 2.0)
_KILL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """One command as it is asked for, again and again if need be."""

    id: str
    target: str
    body: bytes


class Execs:
    """`lost` makes the error of a daemon that cannot be reached."""

    def __init__(self, wire: Wire, lost: Callable[[str, Exception], Awaitable[SandboxLost]]) -> None:
        self._wire = wire
        self._lost = lost
        self._kills: set[asyncio.Task[None]] = set()
        self.boot_id: str | None = None
        """Of the daemon that is meant: another one refuses."""

    async def run(
        self, command: bytes, stdin: bytes, *, timeout_s: float, max_output_bytes: int, session: str
    ) -> ExecResult:
        """As `Sandbox.run`."""
        asked = self._asked(command, stdin, timeout_s, max_output_bytes, session, streaming=False)
        silent_s = 0.0
        try:
            for delay_s in _RESUME_DELAYS_S:
                if delay_s:
                    await asyncio.sleep(delay_s)
                try:
                    result = await self._whole(asked)
                    return replace(result, silent_s=result.silent_s + silent_s)
                except Broken as error:
                    broken = error
                    silent_s += error.silent_s
                    if self._wire.is_shut:
                        break
            raise await self._lost("the connection broke while a command ran", broken) from broken
        except DaemonError:
            raise
        except BaseException:
            self._kill_later(asked.id)
            raise

    async def stream(
        self, command: bytes, stdin: bytes, *, timeout_s: float, max_output_bytes: int, session: str
    ) -> AsyncGenerator[Chunk | ExecResult, None]:
        """As `Sandbox.stream`."""
        asked = self._asked(command, stdin, timeout_s, max_output_bytes, session, streaming=True)
        output = _Output(max_output_bytes)
        settled = False
        try:
            for delay_s in _RESUME_DELAYS_S:
                await asyncio.sleep(delay_s)
                try:
                    async with contextlib.aclosing(self._pieces(asked, output)) as items:
                        async for item in items:
                            settled = isinstance(item, ExecResult)
                            yield item
                    return
                except Broken as error:
                    broken = error
                    if self._wire.is_shut:
                        break
                except DaemonError:
                    settled = True
                    raise
            raise await self._lost("the connection broke while a command ran", broken) from broken
        finally:
            if not settled:
                self._kill_later(asked.id)

    async def aclose(self) -> None:
        """Wait, for a bounded time, until the commands that were given up are killed."""
        if self._kills:
            await asyncio.wait(self._kills, timeout=_KILL_WAIT_S)

    def _asked(
        self, command: bytes, stdin: bytes, timeout_s: float, max_output_bytes: int, session: str, *, streaming: bool
    ) -> _Asked:
        exec_id = secrets.token_hex(16)
        boot = "" if self.boot_id is None else f"&boot={self.boot_id}"
        target = (
            f"/exec?id={exec_id}&session={quote(session)}&timeout_s={timeout_s!r}&command_bytes={len(command)}"
            f"&max_output_bytes={max_output_bytes}&stream={int(streaming)}{boot}&offset="
        )
        return _Asked(exec_id, target, command + stdin)

    async def _whole(self, asked: _Asked) -> ExecResult:
        """One request for a command's result, with all that is kept of its output."""
        async with self._wire.request("POST", asked.target + "0", asked.body) as answer:
            data = await answer.read()
            silent_s = answer.silent_s
        if answer.status != 200:
            raise refused(data)
        pieces = []
        for kind, payload in frames_of(data):
            if kind == b"o":
                pieces.append(payload[8:])
            elif kind == b"x":
                raise refused(bytes(payload))
            elif kind == b"r":
                return replace(_result(object_of(bytes(payload)), b"".join(pieces)), silent_s=silent_s)
        raise Broken("the answer ended before its result")

    async def _pieces(self, asked: _Asked, output: _Output) -> AsyncGenerator[Chunk | ExecResult, None]:
        """One request for a command's output as it comes, from what has been received on."""
        async with self._wire.request("POST", f"{asked.target}{output.next_offset}", asked.body) as answer:
            if answer.status != 200:
                raise refused(await answer.read())
            result: ExecResult | None = None
            async for kind, payload in frames(answer):
                if kind == b"o":
                    chunk = Chunk(int.from_bytes(payload[:8], "big"), payload[8:])
                    output.add(chunk)
                    yield chunk
                elif kind == b"x":
                    raise refused(payload)
                elif kind == b"r":
                    result = _result(object_of(payload), output.kept())
        if result is None:
            raise Broken("the answer ended before its result")
        yield result

    def _kill_later(self, exec_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self._kill(exec_id))
        self._kills.add(task)
        task.add_done_callback(self._kills.discard)

    async def _kill(self, exec_id: str) -> None:
        """Best effort: a daemon that is gone has no command left, and execd itself ends what nobody follows."""
        with contextlib.suppress(Broken, TimeoutError):
            async with asyncio.timeout(_KILL_WAIT_S), self._wire.request("POST", f"/cancel?id={exec_id}") as answer:
                await answer.read()


class _Output:
    """Joins the chunks of a stream into what its result shows: all of them, or head and tail."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.next_offset = 0

    def add(self, chunk: Chunk) -> None:
        data = chunk.data
        self.next_offset = chunk.offset + len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self._tail_limit:
            del self._tail[: len(self._tail) - self._tail_limit]

    def kept(self) -> bytes:
        return bytes(self._head + self._tail)


def _result(raw: dict[str, Any], output: bytes) -> ExecResult:
    return ExecResult(
        exit_code=int(raw["exit_code"]),
        output=output,
        truncated=bool(raw["truncated"]),
        timed_out=bool(raw["timed_out"]),
        shell_restarted=bool(raw["shell_restarted"]),
        duration_s=float(raw["duration_s"]),
        output_bytes=int(raw["output_bytes"]),
    )
