"""The local sandbox that a caller holds: who it is, how it came to be, and the daemon's client under its own name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.client import ExecdClient
from sandbox.provider import DEFAULT_MAX_OUTPUT_BYTES
from sandbox.spec import Chunk, ExecResult, Facts, Identity, PhaseTimes, SandboxSpec


@dataclass(frozen=True)
class LocalSandbox:
    """A `Sandbox` on this machine. `client` is the daemon's own, for what the protocol does not name."""

    spec: SandboxSpec
    identity: Identity
    phases: PhaseTimes
    unenforced: tuple[str, ...]
    client: ExecdClient

    async def run(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> ExecResult:
        return await self.client.run(
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
        return self.client.stream(
            command, timeout_s=timeout_s, stdin=stdin, max_output_bytes=max_output_bytes, session=session
        )

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await self.client.read(path, offset=offset, limit=limit)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        await self.client.write(path, data, mode=mode)

    async def upload(self, local: Path, remote: str) -> None:
        await self.client.upload(local, remote)

    async def download(self, remote: str, local: Path) -> None:
        await self.client.download(remote, local)

    async def facts(self, *, canary: tuple[str, int] | None = None) -> Facts:
        return await self.client.facts(canary=canary)
