"""The async client of execd: typed results and errors over one keep-alive HTTP connection pool.

A command carries an id. When its connection breaks, the same request is sent again under the same id and the daemon
answers from its record: the command runs once. A cancelled `run` kills its command: the kill is a task of the
client's own, so a second cancellation cannot stop it; `aclose` waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import quote

from sandbox.edit import Edits
from sandbox.errors import CommandRefused, DaemonError, FileRefused, SandboxLost
from sandbox.job import Job, split_frames
from sandbox.manifest import ContentParser, Entry, Manifest, take_entries
from sandbox.provider import DEFAULT_MAX_OUTPUT_BYTES
from sandbox.spec import Chunk, ExecResult, Facts
from sandbox.tree import pack, unpack
from sandbox.wire import Answer, Broken, Wire

_FILE_CODES = frozenset(
    {"not_found", "not_a_file", "is_directory", "denied", "no_space", "not_verified", "os_error", "unsafe_member"}
    | {"not_text", "exists", "no_match", "many_matches", "changed", "nothing_to_undo"}
)
_COMMAND_CODES = frozenset({"bad_argument", "id_reused", "too_many", "no_shell", "cannot_fork", "too_large"})
_RESUME_DELAYS_S = (0.0, 0.1, 0.5, 1.0, 2.0)
_TREE_WAIT_S = 600.0
_KILL_WAIT_S = 5.0


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
        self._boot_id: str | None = None
        self._kills: set[asyncio.Task[None]] = set()
        self._wire = Wire(host, port, token)

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
                if time.monotonic() + delay_s >= deadline:
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
        result = None
        frames = self._exec(command, timeout_s, stdin, max_output_bytes, session, streaming=False)
        async with contextlib.aclosing(frames):
            async for item in frames:
                if isinstance(item, ExecResult):
                    result = item
        assert result is not None
        return result

    async def stream(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        session: str = "main",
    ) -> AsyncGenerator[Chunk | ExecResult, None]:
        """As `Sandbox.stream`. A consumer that is slower than the command may find gaps between the chunks' offsets."""
        frames = self._exec(command, timeout_s, stdin, max_output_bytes, session, streaming=True)
        async with contextlib.aclosing(frames):
            async for item in frames:
                yield item

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
            await asyncio.to_thread(pack, local, spool)
            await self.call("PUT", f"/tree?path={quote(_raw(remote))}", spool, wait_s=_TREE_WAIT_S)

    async def download(self, remote: str, local: Path) -> None:
        """As `Sandbox.download`. A member or a symlink that would lead out of `local` is refused."""
        with tempfile.TemporaryFile() as spool:
            await self._fetch_tree(remote, spool)
            await asyncio.to_thread(unpack, spool, local)

    async def _fetch_tree(self, remote: str, spool: IO[bytes]) -> None:
        for attempt in (1, 2):
            spool.seek(0)
            spool.truncate()
            whole = False
            try:
                async with self._wire.request("GET", f"/tree?path={quote(_raw(remote))}") as answer:
                    if answer.status != 200:
                        raise _refused(await answer.read())
                    async for kind, payload in _frames(answer):
                        if kind == b"o":
                            spool.write(payload[8:])
                        elif kind == b"x":
                            raise _refused(payload)
                        elif kind == b"r":
                            whole = True
                if whole:
                    return
                raise Broken("the answer ended before its result")
            except Broken as error:
                if attempt == 2:
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
        return tuple(Job(self, str(raw["id"])) for raw in _object(await self.call("GET", "/jobs"))["jobs"])

    async def facts(self, *, canary: tuple[str, int] | None = None) -> Facts:
        """As `Sandbox.facts`."""
        query = "" if canary is None else f"?canary_host={quote(canary[0])}&canary_port={canary[1]}"
        return facts_of(_object(await self.call("GET", "/facts" + query)))

    async def baseline(self, root: str) -> Manifest:
        """As `Sandbox.baseline`."""
        entries: dict[bytes, Entry] = {}
        buffer = bytearray()
        async with contextlib.aclosing(self._framed("GET", f"/manifest?path={quote(_raw(root))}")) as pieces:
            async for piece in pieces:
                buffer += piece
                entries.update(take_entries(buffer))
        return MappingProxyType(entries)

    async def contents(
        self, root: str, files: Sequence[tuple[bytes, int]]
    ) -> AsyncGenerator[tuple[int, bytes | None], None]:
        """As `Sandbox.contents`."""
        parser = ContentParser(len(files))
        body = b"".join(b"%d %s\0" % (size, path) for path, size in files)
        pieces = self._framed("POST", f"/manifest?path={quote(_raw(root))}", body)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                for item in parser.feed(piece):
                    yield item
        if not parser.whole:
            raise await self._lost("files that were asked for did not come", Broken("the answer is short"))

    async def _framed(self, method: str, target: str, body: bytes = b"") -> AsyncGenerator[bytes, None]:
        """The output frames of an answer. Not repeated: what came of it may be in use already."""
        try:
            async with self._wire.request(method, target, body, wait_s=_TREE_WAIT_S) as answer:
                if answer.status != 200:
                    raise _refused(await answer.read())
                whole = False
                async for kind, payload in _frames(answer):
                    if kind == b"o":
                        yield payload[8:]
                    elif kind == b"x":
                        raise _refused(payload)
                    whole = kind == b"r"
                if not whole:
                    raise Broken("the answer ended before its result")
        except Broken as error:
            raise await self._lost(f"the connection broke during {target.partition('?')[0]}", error) from error

    async def reset(self, *, session: str = "main") -> None:
        """Kill everything that the session runs. Its next command gets a new shell with the base environment."""
        await self.call("POST", f"/reset?session={quote(session)}")

    async def aclose(self) -> None:
        """Wait, for a bounded time, until cancelled commands are killed, then close the connections."""
        if self._kills:
            await asyncio.wait(self._kills, timeout=_KILL_WAIT_S)
        await self._wire.aclose()

    async def _health(self) -> Health:
        async with self._wire.request("GET", "/health") as answer:
            raw = _object(await answer.read())
        if "boot_id" not in raw:
            raise DaemonError(
                "execd refused the token: give the one that its start document hashes", code="unauthorized"
            )
        self._boot_id = str(raw["boot_id"])
        return Health(
            boot_id=self._boot_id,
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
                        raise _refused(data)
                    return data
            except Broken as error:
                if last:
                    what = f"the connection broke during {method} {target.partition('?')[0]}"
                    raise await self._lost(what, error) from error
        raise AssertionError("unreachable")

    async def _exec(
        self,
        command: str | bytes,
        timeout_s: float,
        stdin: bytes,
        max_output_bytes: int,
        session: str,
        *,
        streaming: bool,
    ) -> AsyncGenerator[Chunk | ExecResult, None]:
        body = _raw(command)
        exec_id = secrets.token_hex(16)
        query = (
            f"id={exec_id}&session={quote(session)}&timeout_s={timeout_s!r}&command_bytes={len(body)}"
            f"&max_output_bytes={max_output_bytes}&stream={int(streaming)}"
        )
        if self._boot_id is not None:
            query += f"&boot={self._boot_id}"
        output = _Output(max_output_bytes)
        settled = False
        try:
            for attempt, delay_s in enumerate(_RESUME_DELAYS_S, 1):
                await asyncio.sleep(delay_s)
                try:
                    items = self._attempt(f"/exec?{query}&offset={output.next_offset}", body + stdin, output)
                    async with contextlib.aclosing(items):
                        async for item in items:
                            settled = settled or isinstance(item, ExecResult)
                            if streaming or settled:
                                yield item
                    return
                except Broken as error:
                    if attempt == len(_RESUME_DELAYS_S):
                        raise await self._lost("the connection broke while a command ran", error) from error
                except DaemonError:
                    settled = True
                    raise
        finally:
            if not settled:
                self._kill_later(exec_id)

    async def _attempt(self, target: str, body: bytes, output: _Output) -> AsyncGenerator[Chunk | ExecResult, None]:
        """One request for an exec: its first, or one that resumes it from what has been received."""
        result: ExecResult | None = None
        async with self._wire.request("POST", target, body) as answer:
            if answer.status != 200:
                raise _refused(await answer.read())
            async for kind, payload in _frames(answer):
                if kind == b"o":
                    chunk = Chunk(int.from_bytes(payload[:8], "big"), payload[8:])
                    output.add(chunk)
                    yield chunk
                elif kind == b"x":
                    raise _refused(payload)
                elif kind == b"r":
                    result = output.result(_object(payload))
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


class _Output:
    """Joins an exec's chunks into what the result shows: all of them, or head and tail."""

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

    def result(self, raw: dict[str, Any]) -> ExecResult:
        return ExecResult(
            exit_code=int(raw["exit_code"]),
            output=bytes(self._head + self._tail),
            truncated=bool(raw["truncated"]),
            timed_out=bool(raw["timed_out"]),
            shell_restarted=bool(raw["shell_restarted"]),
            duration_s=float(raw["duration_s"]),
            output_bytes=int(raw["output_bytes"]),
        )


async def _pieces(spool: IO[bytes]) -> AsyncIterator[bytes]:
    spool.seek(0)
    while data := spool.read(1 << 18):
        yield data


async def _frames(answer: Answer) -> AsyncIterator[tuple[bytes, bytes]]:
    buffer = bytearray()
    async for data in answer.pieces():
        buffer += data
        for whole in split_frames(buffer):
            yield whole


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; a daemon that sends anything else is not ours."""
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise DaemonError("execd's answer is not its own; is another server there?", code="unknown")
    return value


def _refused(body: bytes) -> DaemonError | Broken:
    """The typed error of the daemon's answer. Its class is chosen by our own table of codes. A daemon that is ending
    is as good as gone: why is for others to say."""
    try:
        raw = json.loads(body)
        code, message = str(raw["error"]), str(raw["message"])
    except (ValueError, KeyError, TypeError):
        return DaemonError("execd answered with an error that is not its own; is another server there?", code="unknown")
    if code == "shutting_down":
        return Broken("the sandbox is ending")
    kind = FileRefused if code in _FILE_CODES else CommandRefused if code in _COMMAND_CODES else DaemonError
    return kind(message, code=code)
