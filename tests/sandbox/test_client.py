"""The client against the real daemon: what a caller sees."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.client import ExecdClient
from sandbox.errors import CommandRefused, FileRefused, SandboxLost
from sandbox.spec import Chunk, ExecResult
from sandbox.wire import Broken, Wire
from tests.execd.conftest import TOKEN, Running, daemon, on_each_python, running

__all__ = ["on_each_python", "running"]  # fixtures

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(running: Running) -> AsyncIterator[ExecdClient]:
    async with running.client() as ready:
        yield ready


async def test_a_new_daemon_has_run_nothing(tmp_path: Path) -> None:
    """The count of execs proves that a sandbox was never used, and counts from then on."""
    with daemon(tmp_path) as fresh, _explained(fresh.port) as client:
        assert 0 == (await client.wait_ready(60)).execs
        await client.run("true", timeout_s=30)
        assert 1 == (await client.health()).execs
        await client.aclose()


async def test_every_python_starts_and_answers(on_each_python: Running, tmp_path: Path) -> None:
    """Commands, files, trees and facts work on each Python found."""
    async with on_each_python.client() as client:
        assert b"hi\n" == (await client.run("echo hi", timeout_s=30)).output
        await client.write(str(tmp_path / "a/b"), b"bytes\0\xff")
        assert b"bytes\0\xff" == await client.read(str(tmp_path / "a/b"))
        await client.upload(tmp_path / "a", str(tmp_path / "copy"))
        await client.download(str(tmp_path / "copy"), tmp_path / "back")
        assert b"bytes\0\xff" == (tmp_path / "back/b").read_bytes()
        facts = await client.facts()
        assert os.getuid() == facts.user_id
        assert len(os.sched_getaffinity(0)) == facts.visible_cpus
        assert 0 == (await client.health()).raw["failures"]


async def test_streaming_gives_chunks_as_they_come(client: ExecdClient) -> None:
    """The first output arrives before the command ends; the last item is the result with all of it."""
    items: list[Chunk | ExecResult] = []
    begun = time.monotonic()
    first_at = None
    async for item in client.stream("echo one; sleep 1.5; echo two", timeout_s=30, session="stream"):
        first_at = first_at or time.monotonic() - begun
        items.append(item)
    assert first_at is not None
    assert first_at < 1.4
    assert Chunk(0, b"one\n") == items[0]
    assert isinstance(items[-1], ExecResult)
    assert b"one\ntwo\n" == items[-1].output


async def test_a_stream_sees_all_of_a_long_output(client: ExecdClient) -> None:
    """Chunks carry their offsets; a consumer that keeps up can join them into the whole output."""
    offset = 0
    async for item in client.stream("seq 300000", timeout_s=60, max_output_bytes=8 << 20, session="long"):
        if isinstance(item, Chunk):
            assert offset == item.offset
            offset += len(item.data)
        else:
            assert offset == item.output_bytes == 1_988_895


async def test_a_cancelled_run_kills_its_command(client: ExecdClient) -> None:
    """Cancelled twice in a row, the run still takes its processes along."""
    marker = f"sleep 12345.{random.randrange(10**6)}"
    task = asyncio.create_task(client.run(f"{marker}; {marker}", timeout_s=300, session="cancelled"))
    await _until(client, f"pgrep -fx '{marker}'", exit_code=0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _until(client, f"pgrep -fx '{marker}'", exit_code=1)


async def test_fifty_sessions_run_at_once(client: ExecdClient) -> None:
    """Sessions do not wait for each other and do not mix their output."""
    begun = time.monotonic()
    results = await asyncio.gather(
        *(client.run(f"x={i}; sleep 1; echo $x", timeout_s=60, session=f"many {i}") for i in range(50))
    )
    assert [b"%d\n" % i for i in range(50)] == [result.output for result in results]
    assert time.monotonic() - begun < 25
    await asyncio.gather(*(client.reset(session=f"many {i}") for i in range(50)))


async def test_commands_of_one_session_wait_for_each_other(client: ExecdClient) -> None:
    """Runs at once in one session are run one after the other: each sees what those before it left."""
    results = await asyncio.gather(
        *(client.run(f"x=${{x}}{i}; echo $x", timeout_s=30, session="order") for i in range(5))
    )
    outputs = sorted((result.output.strip() for result in results), key=len)
    assert [1, 2, 3, 4, 5] == [len(output) for output in outputs]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(outputs))


async def test_a_reset_forgets_everything(client: ExecdClient) -> None:
    """After a reset the session has the base environment, and what ran in it is dead."""
    await client.run("export A=1; cd /usr; sleep 777 & echo $! ", timeout_s=30, session="reset")
    pid = (await client.run("echo $!", timeout_s=30, session="reset")).output.strip()
    await client.reset(session="reset")
    result = await client.run(b"echo [$A] $PWD; kill -0 " + pid, timeout_s=30, session="reset")
    assert b"[] " in result.output
    assert b"/usr" not in result.output
    assert 1 == result.exit_code


async def test_what_a_reset_killed_is_gone_when_it_answers(client: ExecdClient) -> None:
    """Nobody sees it again, however long it takes to die (here: to give its memory back), from any session."""
    hold = "import time; kept = bytearray(b'x') * (128 << 20); print(1, flush=True); time.sleep(777)"
    for _ in range(3):
        started = await client.run(
            f'for _ in 1 2; do python3 -c "{hold}" & pids="$pids $!"; done > held; until [ $(wc -l < held) = 2 ]; do'
            " sleep 0.05; done; echo $pids; rm held",
            timeout_s=60,
            session="heavy",
        )
        assert 0 == started.exit_code, started.output
        await client.reset(session="heavy")
        for pid in started.output.split():
            assert 1 == (await client.run(b"kill -0 " + pid, timeout_s=30, session="watch")).exit_code


async def test_a_session_that_was_reset_takes_no_place(tmp_path: Path) -> None:
    """More sessions than there may be at once can be had one after the other, whether their shells live or ended."""
    with daemon(tmp_path) as fresh:
        async with fresh.client() as client:
            for number in range(270):
                await client.run("exit 3" if number % 2 else "true", timeout_s=60, session=f"{number}")
                await client.reset(session=f"{number}")
            await client.run("true", timeout_s=60)
            assert 5 > len((await client.health()).raw["sessions"])  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
async def test_what_is_written_belongs_to_the_user_of_the_commands(tmp_path: Path) -> None:
    """With `user` set, written, created and uploaded files, and the parents made for them, are that user's."""
    tmp_path.chmod(0o777)
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/f").write_bytes(b"x")
    with daemon(tmp_path / "daemon", user="65534:65534") as started:
        async with started.client() as client:
            await client.write(str(tmp_path / "a/b/c"), b"x")
            await client.edit.create(str(tmp_path / "e"), "x")
            await client.upload(tmp_path / "tree", str(tmp_path / "copy"))
            assert b"65534\n" == (await client.run("id -u", timeout_s=30)).output
    names = ["a", "a/b", "a/b/c", "e", "copy", "copy/sub", "copy/sub/f"]
    assert {(65534, 65534)} == {((status := (tmp_path / name).stat()).st_uid, status.st_gid) for name in names}


async def test_a_reset_reaches_what_ended_shells_left(client: ExecdClient) -> None:
    """Background processes of shells that ended die too, in whatever session of the system, and their children."""
    marker = f"34567.{random.randrange(10**6)}"
    await client.run(f"setsid sleep {marker} & exit 3", timeout_s=30, session="left")
    await client.run(f"(setsid sh -c 'sleep {marker} & wait' &); sleep 0.2; kill -9 $$", timeout_s=30, session="left")
    await client.run(f"setsid sleep {marker}1 & exit 3", timeout_s=30, session="another")
    await _until(client, f"test $(pgrep -fx 'sleep {marker}' | wc -l) = 2", exit_code=0)
    await client.reset(session="left")
    assert 1 == (await client.run(f"pgrep -fx 'sleep {marker}'", timeout_s=30, session="watch")).exit_code
    assert 0 == (await client.run(f"pgrep -fx 'sleep {marker}1'", timeout_s=30, session="watch")).exit_code
    await client.reset(session="another")
    assert 1 == (await client.run(f"pgrep -fx 'sleep {marker}1'", timeout_s=30, session="watch")).exit_code


async def test_a_broken_connection_is_resumed_and_the_command_runs_once(running: Running, tmp_path: Path) -> None:
    """A proxy cuts every first connection of a command in the middle; the result is whole, the command ran once."""
    cuts = 0
    tasks: set[asyncio.Task[None] | None] = set()

    async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        upstream_r, upstream_w = await asyncio.open_connection("127.0.0.1", running.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, cut: bool) -> None:
            nonlocal cuts
            seen = b""
            while data := await source.read(1 << 16):
                seen += data
                sink.write(data)
                if cut and b"half\n" in seen and cuts < 2:
                    cuts += 1
                    writer.transport.abort()
                    upstream_w.transport.abort()

        ways = [
            asyncio.ensure_future(pump(reader, upstream_w, False)),
            asyncio.ensure_future(pump(upstream_r, writer, True)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        upstream_w.transport.abort()
        writer.transport.abort()
        await asyncio.wait(ways)

    log = tmp_path / "log"
    server = await asyncio.start_server(through, "127.0.0.1", 0)
    client = ExecdClient("127.0.0.1", server.sockets[0].getsockname()[1], TOKEN)
    try:
        command = f"echo ran >> {log}; echo half; sleep 1; echo whole"
        items = [item async for item in client.stream(command, timeout_s=30, session="resume")]
    finally:
        await client.aclose()
        server.close()
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)
        await asyncio.sleep(0)
    assert cuts >= 1
    assert isinstance(items[-1], ExecResult)
    assert b"half\nwhole\n" == items[-1].output
    assert b"half\nwhole\n" == b"".join(item.data for item in items if isinstance(item, Chunk))
    assert "ran\n" == log.read_text()


async def test_a_dead_daemon_is_a_lost_sandbox_with_its_cause(tmp_path: Path) -> None:
    """The error's cause is what the outside says, never a guess."""
    with daemon(tmp_path) as running, _explained(running.port, "out of memory") as client:
        await client.wait_ready(60)
        running.process.kill()
        running.process.wait()
        with pytest.raises(SandboxLost) as caught:
            await client.run("true", timeout_s=30)
        assert "out of memory" == caught.value.cause
        await client.aclose()


async def test_who_waits_for_a_daemon_that_is_known_to_be_gone_hears_so_at_once() -> None:
    """Requests under way, to a peer that keeps the connection and says nothing, and later ones: each is lost within a
    second, and nothing connects any more."""
    connections = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        with _explained(server.sockets[0].getsockname()[1], "its pod is gone") as client:
            asked = client.run("sleep 60", timeout_s=60), client.read("/x")
            waiting = asyncio.gather(*asked, return_exceptions=True)
            while connections < len(asked):
                await asyncio.sleep(0.01)
            began = time.monotonic()
            client.break_off()
            later = client.run("true", timeout_s=60), client.wait_ready(30)
            told = [*await waiting, *await asyncio.gather(*later, return_exceptions=True)]
            assert time.monotonic() - began < 1.0
            await client.aclose()

    assert [SandboxLost] * 4 == [type(one) for one in told]
    assert {"its pod is gone"} == {getattr(one, "cause", None) for one in told}
    assert 2 == connections


async def test_a_kept_connection_that_the_daemon_has_closed_is_not_used_again() -> None:
    """Not even for a request that nothing would send again."""
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    async with server:
        wire = Wire(*server.sockets[0].getsockname(), TOKEN)
        for _ in range(3):
            await _one_request(wire)
            await asyncio.sleep(0.2)
        await wire.aclose()
    assert 3 == connections


@pytest.mark.parametrize("cuts", [1, 2])
async def test_a_manifest_is_asked_for_once_more_where_its_connection_broke(cuts: int) -> None:
    """Reading it again changes nothing; a second break loses the sandbox."""
    connections = 0

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if connections > cuts:
            result = json.dumps({"entries": 0}).encode()
            frame = b"r" + len(result).to_bytes(4, "big") + result
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(frame), frame))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        with _explained(server.sockets[0].getsockname()[1], "the way is cut") as client:
            if cuts == 1:
                assert {} == await client.baseline("/testbed")
            else:
                with pytest.raises(SandboxLost, match="the way is cut"):
                    await client.baseline("/testbed")
            await client.aclose()
    assert 2 == connections


async def test_a_daemon_may_be_known_to_be_gone_at_any_moment_of_a_connect() -> None:
    """Also at the moment at which the connect's own time runs out, and as often as the news comes."""
    with _a_full_backlog() as address:
        for steps in range(8):
            wire = Wire(*address, TOKEN, connect_wait_s=0.0)
            asked = asyncio.get_running_loop().create_task(_one_request(wire))
            for _ in range(steps):
                await asyncio.sleep(0)
            for _ in range(4):
                wire.shut()
                await asyncio.sleep(0)
            with pytest.raises(Broken):
                await asked
            await wire.aclose()


async def _one_request(wire: Wire) -> None:
    async with wire.request("GET", "/health") as answer:
        await answer.read()


@contextlib.contextmanager
def _a_full_backlog() -> Iterator[tuple[str, int]]:
    """Where nobody accepts a connection, nor refuses it."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()


async def test_nothing_there_is_said_within_the_deadline() -> None:
    """wait_ready gives up at its deadline, not later."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ExecdClient("127.0.0.1", silent.getsockname()[1], TOKEN)
        begun = time.monotonic()
        with pytest.raises(SandboxLost) as caught:
            await client.wait_ready(0.5)
        assert time.monotonic() - begun < 5
        assert "unknown" == caught.value.cause
        await client.aclose()


async def test_a_refused_command_is_an_error_and_no_result(client: ExecdClient) -> None:
    """A command that was not started never looks like one that failed."""
    with pytest.raises(CommandRefused) as caught:
        await client.run("a\0b", timeout_s=30)
    assert "bad_argument" == caught.value.code


async def test_lifetime_and_sigterm_end_the_daemon_and_its_children(tmp_path: Path) -> None:
    """At the end of its lifetime the daemon goes, and takes what it started along."""
    marker = f"sleep 23456.{random.randrange(10**6)}"
    with daemon(tmp_path, lifetime_s=4) as running:
        async with running.client() as client:
            await client.run(f"(setsid {marker} &) ; trap '' TERM", timeout_s=30)
        assert 0 == await asyncio.to_thread(running.process.wait, 30)
    assert not _alive(marker)


async def test_read_takes_a_range(client: ExecdClient, tmp_path: Path) -> None:
    """Offset and limit cut the file as asked; beyond its end there is nothing."""
    path = str(tmp_path / "f")
    await client.write(path, bytes(range(256)))
    assert bytes(range(10, 15)) == await client.read(path, offset=10, limit=5)
    assert b"" == await client.read(path, offset=1000)
    assert b"" == await client.read(path, limit=0)


@pytest.mark.parametrize(
    ("path", "code"), [("/no/such", "not_found"), ("/usr", "is_directory"), ("/dev/null", "not_a_file")]
)
async def test_what_is_no_file_is_refused_by_name(client: ExecdClient, path: str, code: str) -> None:
    """Reading what is not a regular file says why; a device is never opened for reading forever."""
    with pytest.raises(FileRefused) as caught:
        await client.read(path)
    assert code == caught.value.code


async def test_write_keeps_mode_and_link_and_leaves_no_trace(client: ExecdClient, tmp_path: Path) -> None:
    """The old mode stays, a symlink stays and its target changes, no temporary file remains."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o751)
    link.symlink_to("target")
    await client.write(str(link), b"new")
    assert b"new" == target.read_bytes()
    assert 0o751 == target.stat().st_mode & 0o7777
    assert link.is_symlink()
    await client.write(str(target), b"newer", mode=0o600)
    assert 0o600 == target.stat().st_mode & 0o7777
    assert {"target", "link"} == {path.name for path in tmp_path.iterdir()}


async def test_a_tree_comes_back_as_it_went(client: ExecdClient, tmp_path: Path) -> None:
    """Modes, links, empty directories and names that are no UTF-8 survive both ways."""
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "run.sh").write_bytes(b"#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    (source / os.fsdecode(b"caf\xe9 \n")).write_bytes(b"x")
    (source / "large").write_bytes(random.Random(1).randbytes(3_000_000))
    await client.upload(source, str(tmp_path / "inside"))
    await client.download(str(tmp_path / "inside"), tmp_path / "back")
    assert _manifest(source) == _manifest(tmp_path / "inside") == _manifest(tmp_path / "back")


async def test_a_run_after_an_upload_is_answered_at_once(client: ExecdClient, tmp_path: Path) -> None:
    """However full the way to the unpacking child was at the end: the same connection takes the next request."""
    (tmp_path / "tree").mkdir()
    for number in range(50):
        (tmp_path / f"tree/{number}").write_bytes(bytes(20_000))
    for _ in range(5):
        await client.upload(tmp_path / "tree", str(tmp_path / "there"))
        begun = time.monotonic()
        assert 0 == (await client.run("true", timeout_s=60)).exit_code
        assert time.monotonic() - begun < 15


async def test_a_tree_that_would_leave_its_place_is_refused(client: ExecdClient, tmp_path: Path) -> None:
    """A sandbox cannot plant a link to the host's files: the download is refused and the link is gone."""
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/link").symlink_to("/etc")
    with pytest.raises(FileRefused) as caught:
        await client.download(str(tmp_path / "evil"), tmp_path / "here")
    assert "unsafe_member" == caught.value.code
    assert not (tmp_path / "here/link").is_symlink()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=5000), name=st.binary(min_size=1, max_size=20))
async def test_any_bytes_written_are_read_back(client: ExecdClient, tmp_path: Path, data: bytes, name: bytes) -> None:
    """For any content and any file name."""
    safe = name.replace(b"/", b"-").replace(b"\0", b"-")
    path = os.fsdecode(os.fsencode(tmp_path) + b"/_" + safe)
    await client.write(path, data)
    assert data == await client.read(path)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=3000))
async def test_any_bytes_pass_through_a_command(client: ExecdClient, data: bytes) -> None:
    """stdin arrives and output returns byte for byte."""
    result = await client.run("cat", timeout_s=30, stdin=data, session="bytes")
    assert (0, data) == (result.exit_code, result.output)


def _explained(port: int, cause: str | None = None) -> _Explained:
    return _Explained(port, cause)


class _Explained:
    """A client with an outside cause, as a provider gives one."""

    def __init__(self, port: int, cause: str | None) -> None:
        async def explain() -> str | None:
            return cause

        self._client = ExecdClient("127.0.0.1", port, TOKEN, explain=explain)

    def __enter__(self) -> ExecdClient:
        return self._client

    def __exit__(self, *_: object) -> None:
        """The tests close it themselves."""


async def _until(client: ExecdClient, command: str, *, exit_code: int) -> None:
    """Wait, boundedly, until a command in another session ends with this code."""
    for _ in range(100):
        if (await client.run(command, timeout_s=30, session="watch")).exit_code == exit_code:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{command!r} never ended with {exit_code}")


def _alive(command: str) -> bool:
    wanted = command.replace(" ", "\0").encode() + b"\0"
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False


def _manifest(root: Path) -> dict[bytes, tuple[int, bytes]]:
    manifest = {}
    for path in root.rglob("*"):
        status = path.lstat()
        content = os.fsencode(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        manifest[os.fsencode(path.relative_to(root))] = (status.st_mode, content)
    return manifest
