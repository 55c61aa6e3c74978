"""execd beside SWE-ReX's local runtime and beside the bare limit, in one run: commands, output, sessions, start."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sandbox.client import ExecdClient
from tests.bench import swerex
from tests.bench.measure import Measurement, measurement, timed, timed_async
from tests.execd.conftest import daemon

TRUE, BIN_TRUE, TEN_MB, HUNDRED, SESSIONS = (
    "`true`",
    "`/bin/true`",
    "10 MB of output",
    "100 short commands",
    "64 sessions at once",
)
COMMANDS = {
    TRUE: ("true", 1, 30),
    TEN_MB: ("head -c 10000000 /dev/zero | tr '\\0' x", 1, 1),
    SESSIONS: ("echo on", 64, 1),
}
AIMS = {TRUE: "under 2 ms", BIN_TRUE: "at most 1.5x, under 2 ms", TEN_MB: "under 100 ms"}
TURNS = 10
ECHO = """
import socket
with socket.socket(fileno=0) as listener:
    while True:
        with listener.accept()[0] as sock:
            while data := sock.recv(4096):
                sock.sendall(data)
"""


async def measure(folder: Path) -> list[Measurement]:
    """Ours, theirs where it can be had, and fork, exec and one round trip.

    The limit and the commands that it stands beside are measured by turns, so that other load on the machine meets all.
    """
    forks: list[float] = []
    trips: list[float] = []
    ours: dict[str, list[float]] = {TRUE: [], BIN_TRUE: []}
    with daemon(folder / "execd") as started, _echo_server() as port:
        async with started.client() as client:
            await client.run("true", timeout_s=30)
            for _ in range(TURNS):
                forks += bare_fork_and_exec()
                trips += await loopback_round_trip(port)
                ours[TRUE] += await timed_async(lambda: client.run("true", timeout_s=30), 30)
                ours[BIN_TRUE] += await timed_async(lambda: client.run("/bin/true", timeout_s=30), 30)
            ours[TEN_MB] = await timed_async(lambda: _ten_megabytes(client), 7)
            ours[HUNDRED] = await timed_async(lambda: _hundred(client), 5)
            ours[SESSIONS] = await timed_async(lambda: _sessions(client), 3)
        status = Path(f"/proc/{started.process.pid}/status").read_text()
    resident = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    limit = statistics.median(forks) + statistics.median(trips)
    rows = [
        measurement("bare fork and exec of /bin/true, in a loop of bash", forks, aim="(a limit)"),
        measurement("one loopback round trip: asyncio streams, an echo in another process", trips, aim="(a limit)"),
    ]
    theirs = _theirs(folder)
    for name, taken in ours.items():
        other = theirs.get(name)
        beside, beside_ms = ("SWE-ReX", statistics.median(other)) if other else ("fork, exec and round trip", limit)
        rows.append(measurement(f"execd: {name}", taken, beside=beside, beside_ms=beside_ms, aim=AIMS.get(name, "")))
    rows.append(measurement("execd: start to first answer", starts(folder), aim="under 50 ms on a quiet machine"))
    rows.append(Measurement("execd: resident MB after all this", resident, resident, 1, "", None, "under 20"))
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
    """Milliseconds that bash needs to run /bin/true, by its own loop of 100."""
    loop = "for ((i = 0; i < 100; i++)); do /bin/true; done"
    return [each / 100 for each in timed(lambda: subprocess.run(["bash", "-c", loop], check=True), 1)]


async def loopback_round_trip(port: int) -> list[float]:
    """Milliseconds for a request's bytes there and back, to a process that does nothing else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def there_and_back() -> None:
        writer.write(b"x" * 300)
        await reader.readexactly(300)

    try:
        return await timed_async(there_and_back, 30)
    finally:
        writer.close()
        await writer.wait_closed()


@contextlib.contextmanager
def _echo_server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen([sys.executable, "-c", ECHO], stdin=listener.fileno())
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()
            process.wait()


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
