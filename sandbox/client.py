"""The async client of execd: typed results and errors over one keep-alive HTTP connection pool."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import quote

from sandbox.answers import frames, object_of, refused
from sandbox.edit import Edits
from sandbox.errors import DaemonError, SandboxLost
from sandbox.execs import Execs
from sandbox.job import Job
from sandbox.manifest import ContentParser, Manifest, ManifestParser
from sandbox.outlast import in_thread
from sandbox.provider import DEFAULT_MAX_OUTPUT_BYTES
from sandbox.spec import Chunk, ExecResult, Facts
from sandbox.tree import pack, unpack
from sandbox.wire import Broken, Wire

_TREE_WAIT_S = 600.0


@dataclass(frozen=True)
class Health:
    """What a ready daemon says about itself."""

    boot_id: str
    execs: int
    """Commands that were started since the daemon's start."""
    python_version: str
    uptime_s: float
    raw: Mapping[str, object]


class ExecdClient:
    """Talks to one daemon. `explain` gives the outside cause of a lost sandbox, or None when it is not known."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        *,
        explain: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        self._explain = explain
        self._wire = Wire(host, port, token)
        self._execs = Execs(self._wire, self._lost)

    async def wait_ready(self, timeout_s: float) -> Health:
        """Wait until the daemon answers. Raises `SandboxLost` when it has not within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        delay_s = 0.002
        while True:
            left_s = deadline - time.monotonic()
            try:
                async with asyncio.timeout(max(left_s, 0.001)):
                    return await self._health()
            except (Broken, TimeoutError) as error:
                if self._wire.is_shut or time.monotonic() + delay_s >= deadline:
                    raise await self._lost(f"execd did not answer within {timeout_s:g} s", error) from error
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, 0.1)

    async def health(self) -> Health:
        """What the daemon says about itself now."""
        try:
            return await self._health()
        except Broken as error:
            raise await self._lost("execd did not answer a health request", error) from error

    async def run(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> ExecResult:
        """As `Sandbox.run`."""
        return await self._execs.run(
            _raw(command), stdin, timeout_s=timeout_s, max_output_bytes=max_output_bytes, session=session
        )

    def stream(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> AsyncGenerator[Chunk | ExecResult, None]:
        """As `Sandbox.stream`. A consumer that is slower than the command may find gaps between the chunks' offsets."""
        return self._execs.stream(
            _raw(command), stdin, timeout_s=timeout_s, max_output_bytes=max_output_bytes, session=session
        )

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """As `Sandbox.read`."""
        query = f"path={quote(_raw(path))}&offset={offset}" + ("" if limit is None else f"&limit={limit}")
        return await self.call("GET", "/file?" + query)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """As `Sandbox.write`. A symlink is followed: its target is replaced and the link stays."""
        query = f"path={quote(_raw(path))}" + ("" if mode is None else f"&mode={mode:o}")
        await self.call("PUT", "/file?" + query, data)

    async def upload(self, local: Path, remote: str) -> None:
        """As `Sandbox.upload`. Modes and times travel; a hard link becomes a copy; a directory is merged into."""
        with tempfile.TemporaryFile() as spool:
            await in_thread(pack, local, spool)
            await self.call("PUT", f"/tree?path={quote(_raw(remote))}", spool, wait_s=_TREE_WAIT_S)

    async def download(self, remote: str, local: Path) -> None:
        """As `Sandbox.download`. A member or a symlink that would lead out of `local` is refused."""
        with tempfile.TemporaryFile() as spool:
            await self._fetch_tree(remote, spool)
            await in_thread(unpack, spool, local)

    async def _fetch_tree(self, remote: str, spool: IO[bytes]) -> None:
        target = f"/tree?path={quote(_raw(remote))}"
        for last in (False, True):
            spool.seek(0)
            spool.truncate()
            try:
                async with contextlib.aclosing(self._framed("GET", target)) as pieces:
                    async for piece in pieces:
                        spool.write(piece)
                return
            except Broken as error:
                if last:
                    raise await self._lost("the connection broke during a download", error) from error

    @property
    def edit(self) -> Edits:
        """Edits of text files: view, create, replace, insert, undo."""
        return Edits(self)

    async def start(
        self,
        command: str | bytes,
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> Job:
        """Start a job: a command in a shell of its own that nobody needs to wait for.

        It begins with the directory and the exported variables of `session`. `timeout_s` None: until it ends.
        """
        body = _raw(command)
        job = Job(self, secrets.token_hex(16))
        query = f"id={job.id}&session={quote(session)}&command_bytes={len(body)}&max_output_bytes={max_output_bytes}"
        query += "" if timeout_s is None else f"&timeout_s={timeout_s!r}"
        await self.call("POST", "/job?" + query, body + stdin)
        return job

    def job(self, job_id: str) -> Job:
        """The job that was started under this id, by whichever client. Nothing is asked yet."""
        return Job(self, job_id)

    async def jobs(self) -> tuple[Job, ...]:
        """Every job of the sandbox, in the order of their starts."""
        return tuple(Job(self, str(raw["id"])) for raw in object_of(await self.call("GET", "/jobs"))["jobs"])

    async def facts(self, *, canary: tuple[str, int] | None = None) -> Facts:
        """As `Sandbox.facts`."""
        query = "" if canary is None else f"?canary_host={quote(canary[0])}&canary_port={canary[1]}"
        return facts_of(object_of(await self.call("GET", "/facts" + query)))

    async def baseline(self, root: str) -> Manifest:
        """As `Sandbox.baseline`."""
        for last in (False, True):
            parser = ManifestParser()
            pieces = self._framed("GET", f"/manifest?path={quote(_raw(root))}", wait_s=_TREE_WAIT_S)
            try:
                async with contextlib.aclosing(pieces):
                    async for piece in pieces:
                        parser.feed(piece)
                return MappingProxyType(parser.entries)
            except Broken as error:
                if last:
                    raise await self._lost("a manifest could not be read", error) from error
        raise AssertionError("unreachable")

    async def contents(
        self, root: str, files: Sequence[tuple[bytes, int]]
    ) -> AsyncGenerator[tuple[int, bytes | None], None]:
        """As `Sandbox.contents`. Not repeated: what came of it may be in use already."""
        parser = ContentParser([size for _, size in files])
        body = b"".join(b"%d %s\0" % (size, path) for path, size in files)
        pieces = self._framed("POST", f"/manifest?path={quote(_raw(root))}", body, wait_s=_TREE_WAIT_S)
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    for item in parser.feed(piece):
                        yield item
            if not parser.whole:
                raise Broken("files that were asked for did not come")
        except Broken as error:
            raise await self._lost("files could not be read", error) from error

    async def _framed(
        self, method: str, target: str, body: bytes = b"", *, wait_s: float = 30.0
    ) -> AsyncGenerator[bytes, None]:
        """The output frames of an answer. Raises `Broken` unless its result comes last, and the daemon's own error."""
        whole = False
        async with self._wire.request(method, target, body, wait_s=wait_s) as answer:
            if answer.status != 200:
                raise refused(await answer.read())
            async for kind, payload in frames(answer):
                if kind == b"o":
                    yield payload[8:]
                elif kind == b"x":
                    raise refused(payload)
                whole = kind == b"r"
        if not whole:
            raise Broken("the answer ended before its result")

    async def reset(self, *, session: str = "main") -> None:
        """Kill everything that the session runs and wait until it is gone. The next command gets a new shell with the
        base environment."""
        await self.call("POST", f"/reset?session={quote(session)}")

    def break_off(self) -> None:
        """The daemon is known to be gone: whoever waits for it hears so at once."""
        self._wire.shut()

    async def aclose(self) -> None:
        """Wait, for a bounded time, until cancelled commands are killed, then close the connections."""
        await self._execs.aclose()
        await self._wire.aclose()

    async def _health(self) -> Health:
        async with self._wire.request("GET", "/health") as answer:
            raw = object_of(await answer.read())
        if "boot_id" not in raw:
            raise DaemonError(
                "execd refused the token: give the one that its start document hashes", code="unauthorized"
            )
        self._execs.boot_id = boot_id = str(raw["boot_id"])
        return Health(
            boot_id=boot_id,
            execs=int(raw["execs"]),
            python_version=str(raw["python_version"]),
            uptime_s=float(raw["uptime_s"]),
            raw=raw,
        )

    async def call(
        self, method: str, target: str, content: bytes | IO[bytes] = b"", *, wait_s: float = 30.0, repeat: bool = True
    ) -> bytes:
        """The body that answers one request. `repeat`: send it again, once, when its connection broke, since it is
        idempotent or carries an id."""
        for last in (False, True) if repeat else (True,):
            body = content if isinstance(content, bytes) else _pieces(content)
            try:
                async with self._wire.request(method, target, body, wait_s=wait_s) as answer:
                    data = await answer.read()
                    if answer.status != 200:
                        raise refused(data)
                    return data
            except Broken as error:
                if last:
                    what = f"the connection broke during {method} {target.partition('?')[0]}"
                    raise await self._lost(what, error) from error
        raise AssertionError("unreachable")

    async def _lost(self, what: str, error: Exception) -> SandboxLost:
        cause = None if self._explain is None else await self._explain()
        return SandboxLost(
            f"{what} ({type(error).__name__}); cause: {cause or 'unknown'}; take a new sandbox",
            cause=cause or "unknown",
        )


def facts_of(raw: dict[str, Any]) -> Facts:
    """The typed facts of the daemon's answer."""
    memory = raw.get("memory_limit_bytes")
    interfaces = raw.get("interfaces")
    return Facts(
        visible_cpus=raw.get("visible_cpus"),
        cpu_quota=raw.get("cpu_quota"),
        memory_limit_mib=None if memory is None else memory // (1 << 20),
        user_id=raw.get("user_id"),
        interfaces=None if interfaces is None else tuple(interfaces),
        canary=raw.get("canary"),
        python_version=raw.get("python_version"),
        architecture=raw.get("architecture"),
        kernel=raw.get("kernel"),
        raw=raw,
    )


async def _pieces(spool: IO[bytes]) -> AsyncIterator[bytes]:
    spool.seek(0)
    while data := spool.read(1 << 18):
        yield data


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
