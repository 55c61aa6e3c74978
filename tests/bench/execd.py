"""execd beside SWE-ReX's local runtime and beside the bare limit, in one run: commands, output, sessions, start."""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.client import ExecdClient
from tests.bench import swerex
from tests.bench.measure import Measurement, measurement, timed, timed_async
from tests.execd.conftest import daemon

TRUE, TEN_MB, HUNDRED, SESSIONS = "`true`", "10 MB of output", "100 short commands", "64 sessions at once"
COMMANDS = {
    TRUE: ("true", 1, 30),
    TEN_MB: ("head -c 10000000 /dev/zero | tr '\\0' x", 1, 1),
    SESSIONS: ("echo on", 64, 1),
}


async def measure(folder: Path) -> list[Measurement]:
    """Ours, theirs where it can be had, and fork, exec and one round trip."""
    limit = statistics.median(bare_fork_and_exec()) + statistics.median(loopback_round_trip())
    rows = [
        Measurement(
            "bare fork and exec of /bin/true, and one loopback round trip", limit, limit, 1, "", None, "(a limit)"
        )
    ]
    with daemon(folder / "execd") as started:
        async with started.client() as client:
            await client.run("true", timeout_s=30)
            ours = {
                TRUE: await timed_async(lambda: client.run("true", timeout_s=30), 300),
                "`/bin/true`": await timed_async(lambda: client.run("/bin/true", timeout_s=30), 300),
                TEN_MB: await timed_async(lambda: _ten_megabytes(client), 7),
                HUNDRED: await timed_async(lambda: _hundred(client), 5),
                SESSIONS: await timed_async(lambda: _sessions(client), 3),
            }
        status = Path(f"/proc/{started.process.pid}/status").read_text()
    resident = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    theirs = _theirs(folder)
    aims = {"`/bin/true`": "at most 1.5x the limit, under 2 ms", TEN_MB: "under 100 ms"}
    for name, taken in ours.items():
        other = theirs.get(name)
        beside, beside_ms = ("SWE-ReX", statistics.median(other)) if other else ("the limit", limit)
        if name == "`/bin/true`":
            beside, beside_ms = "the limit", limit
        rows.append(measurement(f"execd: {name}", taken, beside=beside, beside_ms=beside_ms, aim=aims.get(name, "")))
    rows.append(measurement("execd: start to first answer", starts(folder), aim="under 50 ms on a quiet machine"))
    print(f"execd's resident memory after this: {resident:.1f} MiB (aim: under 20)")
    return rows


def _theirs(folder: Path) -> dict[str, list[float]]:
    python = swerex.install(folder / "swerex")
    if python is None:
        return {}
    times: dict[str, list[float]] = swerex.ask(python, {"times": COMMANDS})["times"]
    if TRUE in times:
        times[HUNDRED] = [statistics.mean(times[TRUE]) * 100]
    return times


async def _ten_megabytes(client: ExecdClient) -> None:
    result = await client.run(COMMANDS[TEN_MB][0], timeout_s=60, max_output_bytes=1 << 24)
    assert len(result.output) == 10_000_000


async def _hundred(client: ExecdClient) -> None:
    for _ in range(100):
        await client.run("true", timeout_s=30)


async def _sessions(client: ExecdClient) -> None:
    await asyncio.gather(*(client.run("echo on", timeout_s=60, session=f"{number}") for number in range(64)))


def bare_fork_and_exec() -> list[float]:
    """Milliseconds that bash needs to run /bin/true, by its own loop of 300."""
    loop = "for ((i = 0; i < 300; i++)); do /bin/true; done"
    return [each / 300 for each in timed(lambda: subprocess.run(["bash", "-c", loop], check=True), 3)]


def loopback_round_trip() -> list[float]:
    """Milliseconds for a few bytes there and back over a connection, the peer in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_echo, args=(listener,))
        thread.start()
        with socket.create_connection(listener.getsockname()) as sock:
            exchange: Callable[[], object] = lambda: (sock.sendall(b"x" * 200), sock.recv(4096))  # noqa: E731
            taken = timed(exchange, 300)
        thread.join()
    return taken


def _echo(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    with sock:
        while data := sock.recv(4096):
            sock.sendall(data)


def starts(folder: Path) -> list[float]:
    """Milliseconds from the start of the daemon's process to its first answer, with byte code as a provider has it."""
    taken = []
    for number in range(9):
        with daemon(folder / f"start{number}") as started:
            with socket.create_connection(("127.0.0.1", started.port), 30) as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\n\r\n")
                assert sock.recv(4096)
            taken.append((time.perf_counter() - started.started_at) * 1000)
    return taken
