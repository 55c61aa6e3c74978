"""Sessions of a sandbox: what runs beside what, and what a reset leaves."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from pathlib import Path

import pytest

from sandbox.client import ExecdClient
from tests.execd.conftest import daemon, running
from tests.sandbox.callers import client, until

__all__ = ["client", "running"]  # fixtures

pytestmark = pytest.mark.anyio


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


async def test_a_reset_reaches_what_ended_shells_left(client: ExecdClient) -> None:
    """Background processes of shells that ended die too, in whatever session of the system, and their children."""
    marker = f"34567.{random.randrange(10**6)}"
    await client.run(f"setsid sleep {marker} & exit 3", timeout_s=30, session="left")
    await client.run(f"(setsid sh -c 'sleep {marker} & wait' &); sleep 0.2; kill -9 $$", timeout_s=30, session="left")
    await client.run(f"setsid sleep {marker}1 & exit 3", timeout_s=30, session="another")
    await until(client, f"test $(pgrep -fx 'sleep {marker}' | wc -l) = 2", exit_code=0)
    await client.reset(session="left")
    assert 1 == (await client.run(f"pgrep -fx 'sleep {marker}'", timeout_s=30, session="watch")).exit_code
    assert 0 == (await client.run(f"pgrep -fx 'sleep {marker}1'", timeout_s=30, session="watch")).exit_code
    await client.reset(session="another")
    assert 1 == (await client.run(f"pgrep -fx 'sleep {marker}1'", timeout_s=30, session="watch")).exit_code
