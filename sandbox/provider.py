"""The law of providers: two protocols, and the one way to open a provider.

    async with open_provider(LocalConfig()) as provider:
        async with provider.sandbox(SandboxSpec(image="host")) as box:
            result = await box.run("echo hello", timeout_s=10)

Every implementation passes the conformance suite in `sandbox.testing`. This module covers no placement, pooling or
retry: those are a provider's own business, or a layer above it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from sandbox.edit import Edits
from sandbox.job import Job
from sandbox.manifest import Manifest
from sandbox.spec import Chunk, ExecResult, Facts, Identity, PhaseTimes, SandboxSpec

DEFAULT_MAX_OUTPUT_BYTES = 1 << 20


@runtime_checkable
class Sandbox(Protocol):
    """A running environment with execd inside. Infrastructure trouble raises `SandboxError`; a failing command never
    does. Every method can be cancelled at any await; a cancelled `run` kills its command."""

    @property
    def spec(self) -> SandboxSpec: ...

    @property
    def identity(self) -> Identity: ...

    @property
    def phases(self) -> PhaseTimes: ...

    @property
    def unenforced(self) -> tuple[str, ...]:
        """Names of the spec's limits that this provider could not enforce here (such as `memory_mib`)."""
        ...

    @property
    def neighbour(self) -> tuple[str, int] | None:
        """Where the daemon of another live sandbox of the provider's listens, which must be out of this one's reach
        unless egress is open. None: there is no other."""
        ...

    @property
    def trouble(self) -> str | None:
        """What the provider saw happen around this sandbox while it lived, without ending it, of a kind that may fail
        commands inside: the disk that it shares was full. A sentence that ends with what to do. None: nothing."""
        ...

    async def run(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> ExecResult:
        """Run `command` in the named persistent bash session and wait for its end.

        Directory, variables, functions, options and background processes stay for the next call in the session.
        `stdin` is the command's whole standard input. Output beyond `max_output_bytes` loses its middle.
        """
        ...

    def stream(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> AsyncIterator[Chunk | ExecResult]:
        """As `run`, giving the output in pieces as it comes; the last item is the `ExecResult`."""
        ...

    async def start(
        self,
        command: str | bytes,
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> Job:
        """Start a job: a command in a shell of its own that nobody needs to wait for. `timeout_s` None: until it ends.

        It begins with the directory and the exported variables of `session`; its id lives as long as the sandbox.
        """
        ...

    def job(self, job_id: str) -> Job:
        """The job that was started under this id, by whichever caller. Nothing is asked yet."""
        ...

    async def jobs(self) -> tuple[Job, ...]:
        """Every job of the sandbox, in the order of their starts."""
        ...

    async def reset(self, *, session: str = "main") -> None:
        """Kill everything that the session runs and wait until it is gone. The next command gets a new shell with the
        base environment."""
        ...

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """The bytes of a regular file, from `offset`, at most `limit`. Raises `FileRefused` when there is none."""
        ...

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Replace or create a file, atomically and verified on disk; parents are made. `mode` None keeps the old
        mode, or 0o644 for a new file."""
        ...

    async def upload(self, local: Path, remote: str) -> None:
        """Copy a file or a tree in. `remote` is the path that the copy gets."""
        ...

    async def download(self, remote: str, local: Path) -> None:
        """Copy a file or a tree out. Members that would leave `local` are refused; devices and sockets are skipped."""
        ...

    async def facts(self, *, canary: tuple[str, int] | None = None) -> Facts:
        """What the daemon reads about the place. With `canary` it also tries to connect to that host and port."""
        ...

    @property
    def edit(self) -> Edits:
        """Edits of text files, as agents make them."""
        ...

    async def baseline(self, root: str) -> Manifest:
        """What the directory `root` holds now, every file hashed, by the daemon's own walk; links are not followed.

        `sandbox.manifest.check` compares two of them. Taken once before a sandbox is used, it also loads all code that
        later ones run. Raises `FileRefused` where `root` is no directory.
        """
        ...

    def contents(self, root: str, files: Sequence[tuple[bytes, int]]) -> AsyncIterator[tuple[int, bytes | None]]:
        """The bytes of files under `root`, listed as path and size: `(place in the list, piece)` in order; an empty
        piece ends a file, None says that it cannot be read to its size. No link is followed."""
        ...


class Provider(Protocol):
    """Makes sandboxes and owns them until they are gone."""

    @property
    def name(self) -> str: ...

    def sandbox(self, spec: SandboxSpec, *, acquire_timeout_s: float = 120.0) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox of the caller's own for the length of the `with`; leaving it gives the sandbox back, and the
        provider deletes it whatever happens to the caller.

        Raises `AcquireTimeout`, `CreateError`, `ImageError` or `ProviderUnavailable`.
        """
        ...
