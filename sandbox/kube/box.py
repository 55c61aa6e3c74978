"""The sandbox that a caller holds: who it is, how it came to be, and the daemon's client under its own name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio

from sandbox.client import ExecdClient
from sandbox.errors import SandboxLost
from sandbox.provider import DEFAULT_MAX_OUTPUT_BYTES
from sandbox.spec import Chunk, ExecResult, Facts, Identity, PhaseTimes, SandboxSpec


@dataclass(frozen=True)
class KubeSandbox:
    """A `Sandbox` in a pod."""

    spec: SandboxSpec
    identity: Identity
    phases: PhaseTimes
    unenforced: tuple[str, ...]
    client: ExecdClient
    """The daemon's own, for what the protocol does not name. It is closed when the sandbox was released."""
    node: str
    """Where it runs."""
    address: tuple[str, int]
    """Of its execd."""
    released: anyio.Event

    async def run(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> ExecResult:
        return await self._client.run(
            command, timeout_s=timeout_s, stdin=stdin, max_output_bytes=max_output_bytes, session=session
        )

    def stream(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> AsyncIterator[Chunk | ExecResult]:
        return self._client.stream(
            command, timeout_s=timeout_s, stdin=stdin, max_output_bytes=max_output_bytes, session=session
        )

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await self._client.read(path, offset=offset, limit=limit)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        await self._client.write(path, data, mode=mode)

    async def upload(self, local: Path, remote: str) -> None:
        await self._client.upload(local, remote)

    async def download(self, remote: str, local: Path) -> None:
        await self._client.download(remote, local)

    async def facts(self, *, canary: tuple[str, int] | None = None) -> Facts:
        return await self._client.facts(canary=canary)

    @property
    def _client(self) -> ExecdClient:
        if self.released.is_set():
            raise SandboxLost("the sandbox was released; use it inside its `async with`", cause="released")
        return self.client
