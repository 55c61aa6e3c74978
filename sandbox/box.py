"""The sandbox that a caller holds: who it is, how it came to be, and the daemon's client under its own name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.client import ExecdClient
from sandbox.edit import Edits
from sandbox.errors import SandboxLost
from sandbox.job import Job
from sandbox.manifest import Manifest
from sandbox.provider import DEFAULT_MAX_OUTPUT_BYTES
from sandbox.spec import Chunk, ExecResult, Facts, Identity, PhaseTimes, SandboxSpec


@dataclass(frozen=True)
class DaemonSandbox:
    """A `Sandbox` whose execd is reached by an `ExecdClient`, whichever provider made it."""

    spec: SandboxSpec
    identity: Identity
    phases: PhaseTimes
    unenforced: tuple[str, ...]
    client: ExecdClient
    """The daemon's own, for what the protocol does not name. It is closed when the sandbox has ended."""
    ended_because: Callable[[], str | None]
    """The cause of its end; None while it runs."""
    find_neighbour: Callable[[], tuple[str, int] | None]
    find_trouble: Callable[[], str | None] = field(default=lambda: None, kw_only=True)

    @property
    def neighbour(self) -> tuple[str, int] | None:
        return self.find_neighbour()

    @property
    def trouble(self) -> str | None:
        return self.find_trouble()

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

    async def start(
        self,
        command: str | bytes,
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> Job:
        return await self._client.start(
            command, timeout_s=timeout_s, stdin=stdin, max_output_bytes=max_output_bytes, session=session
        )

    def job(self, job_id: str) -> Job:
        return self._client.job(job_id)

    async def jobs(self) -> tuple[Job, ...]:
        return await self._client.jobs()

    async def reset(self, *, session: str = "main") -> None:
        await self._client.reset(session=session)

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
    def edit(self) -> Edits:
        return self._client.edit

    async def baseline(self, root: str) -> Manifest:
        return await self._client.baseline(root)

    def contents(self, root: str, files: Sequence[tuple[bytes, int]]) -> AsyncIterator[tuple[int, bytes | None]]:
        return self._client.contents(root, files)

    @property
    def _client(self) -> ExecdClient:
        """The client, for a sandbox that has not ended. Raises `SandboxLost` for one that has."""
        cause = self.ended_because()
        if cause is not None:
            message = f"sandbox {self.identity.sandbox_id} has ended ({cause}): take a new sandbox"
            raise SandboxLost(message, cause=cause)
        return self.client
