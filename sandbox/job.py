"""Jobs of a sandbox: commands that go on in the background under an id that lives as long as the sandbox."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from sandbox.errors import CommandRefused
from sandbox.spec import Chunk, ExecResult

_ASK_S = 20.0


class Calls(Protocol):
    """What a job needs of the client."""

    async def call(
        self, method: str, target: str, content: bytes = b"", *, wait_s: float = 30.0, repeat: bool = True
    ) -> bytes: ...


@dataclass(frozen=True)
class Job:
    """One job. It holds no state: another client's `job(id)` is as good."""

    _client: Calls = field(repr=False)
    id: str

    async def poll(self) -> ExecResult | None:
        """How it ended, with what is kept of its output; None while it runs."""
        return await self.wait(timeout_s=0)

    async def wait(self, *, timeout_s: float) -> ExecResult | None:
        """As `poll`, once it has ended or `timeout_s` has passed. The job goes on whatever happens to the waiter."""
        deadline = time.monotonic() + timeout_s
        while True:
            wait_s = max(0.0, min(deadline - time.monotonic(), _ASK_S))
            _, state = await self._ask(0, 0, wait_s, until_end=True)
            if not state["running"]:
                return await self._result(state)
            if time.monotonic() >= deadline:
                return None

    async def read(self, offset: int = 0, *, limit: int = 1 << 20, wait_s: float = 0.0) -> Chunk:
        """What it has written from `offset` on, at most `limit` bytes (up to 4 MiB).

        Waits up to `wait_s` seconds (up to 20) for something to be there. The chunk's own offset is later than asked
        where the middle of a long output was dropped; its data is empty where there is nothing yet, or any more.
        """
        chunk, _ = await self._ask(offset, limit, min(wait_s, _ASK_S), until_end=False)
        return chunk

    async def signal(self, number: int) -> int:
        """Send a signal to all its processes. How many there were."""
        target = f"/job/signal?id={quote(self.id)}&signal={number}"
        return int(json.loads(await self._client.call("POST", target, repeat=False))["signalled"])

    async def _result(self, state: dict[str, Any]) -> ExecResult:
        if "error" in state:
            raise CommandRefused(str(state["message"]), code=str(state["error"]))
        output, offset = bytearray(), 0
        while (chunk := await self.read(offset, limit=4 << 20)).data:
            output += chunk.data
            offset = chunk.offset + len(chunk.data)
        return ExecResult(
            exit_code=int(state["exit_code"]),
            output=bytes(output),
            truncated=len(output) < int(state["output_bytes"]),
            timed_out=bool(state["timed_out"]),
            shell_restarted=False,
            duration_s=float(state["duration_s"]),
            output_bytes=int(state["output_bytes"]),
        )

    async def _ask(self, offset: int, limit: int, wait_s: float, *, until_end: bool) -> tuple[Chunk, dict[str, Any]]:
        target = f"/job?id={quote(self.id)}&offset={offset}&limit={limit}&wait_s={wait_s!r}&until_end={int(until_end)}"
        frames = dict(split_frames(bytearray(await self._client.call("GET", target, wait_s=wait_s + 30))))
        output = frames.get(b"o", bytes(8))
        return Chunk(int.from_bytes(output[:8], "big"), output[8:]), json.loads(frames[b"r"])


def split_frames(buffer: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take the whole frames (kind, payload) off the front of a buffer."""
    while len(buffer) >= 5:
        end = 5 + int.from_bytes(buffer[1:5], "big")
        if len(buffer) < end:
            return
        yield bytes(buffer[:1]), bytes(buffer[5:end])
        del buffer[:end]
