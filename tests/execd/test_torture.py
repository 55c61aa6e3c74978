"""The torture suite against the real daemon, on every Python found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandbox.torture import CASES, Case, run_case, run_parallel_sessions
from tests.execd.conftest import PYTHONS, Running, daemon

HARMLESS = [case for case in CASES if not case.needs_isolation and not case.slow]
LARGE = [case for case in CASES if case.slow]
RESIDENT_LIMIT_KIB = 60_000


@pytest.mark.anyio
@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: case.name)
async def test_the_shell_does_not_lie(case: Case, running: Running) -> None:
    """Each case's results are what bash itself would say, whatever the command does to its shell."""
    async with running.client() as client:
        await run_case(client, case)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
async def test_large_things_stay_bounded(case: Case, tmp_path: Path) -> None:
    """A gigabyte of output and many files: right, and in bounded memory."""
    with daemon(tmp_path) as started:
        async with started.client() as client:
            await run_case(client, case)
        status = Path(f"/proc/{started.process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < RESIDENT_LIMIT_KIB


@pytest.mark.slow
@pytest.mark.anyio
async def test_fifty_sessions_at_once(running: Running) -> None:
    """Fifty sessions keep their states and outputs apart."""
    async with running.client() as client:
        await run_parallel_sessions(client)
        await asyncio.gather(*(client.reset(session=f"parallel {number}") for number in range(50)))


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_whole_suite_on_each_python(on_each_python: Running) -> None:
    """On every Python from 3.6 on all cases pass, four at a time."""
    limit = asyncio.Semaphore(4)
    failures: list[str] = []

    async def one(case: Case) -> None:
        async with limit:
            try:
                await run_case(client, case)
            except AssertionError as error:
                failures.append(str(error))

    async with on_each_python.client() as client:
        await asyncio.gather(*(one(case) for case in HARMLESS))
        assert (await client.health()).raw["failures"] == 0
    assert failures == []
    assert len(HARMLESS) >= 60


def test_the_oldest_python_is_here() -> None:
    """The suite reaches the oldest Python that execd promises."""
    if "3.6" not in PYTHONS:
        pytest.skip(f"no Python 3.6 on this machine (looked in pyenv and /usr/bin; found {', '.join(PYTHONS)})")
    assert "3.6" in PYTHONS


def test_there_are_sixty_cases() -> None:
    """The suite has at least sixty cases, each under its own name."""
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
