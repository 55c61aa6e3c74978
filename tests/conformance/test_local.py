"""The local provider passes the conformance suite."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sandbox import LocalConfig, SandboxSpec, open_provider
from sandbox.testing import CHECKS, LIFECYCLE_CHECKS, Check, LifecycleCheck, LifecycleSubject, Subject
from sandbox.torture import CASES, run_case
from tests.bench.torture import ours
from tests.execd.conftest import PYTHONS
from tests.sandbox.local.leftovers import leftovers

HOST = SandboxSpec(image="host")


@pytest.fixture
def canary() -> Iterator[tuple[str, int]]:
    """A listener on the host's loopback."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()


@pytest.fixture
async def subject(tmp_path: Path, canary: tuple[str, int]) -> AsyncIterator[Subject]:
    async with open_provider(LocalConfig(state_dir=tmp_path)) as provider:
        yield Subject(provider, HOST, canary)


@pytest.fixture
def lifecycle(tmp_path: Path) -> LifecycleSubject:
    config = LocalConfig(state_dir=tmp_path)
    return LifecycleSubject(lambda: open_provider(config), HOST, lambda: leftovers(tmp_path))


def name(check: Callable[..., object]) -> str:
    return check.__name__


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=name)
async def test_a_provider_does_what_the_law_says(check: Check, subject: Subject) -> None:
    """The claim is the check's own docstring."""
    await check(subject)


@pytest.mark.anyio
@pytest.mark.parametrize("part", ["isolated", pytest.param("whole", marks=pytest.mark.slow)])
async def test_the_shell_does_not_lie_in_a_sandbox(part: str, subject: Subject) -> None:
    """The torture cases that need a sandbox of their own pass in one; so does, slowly, the whole suite."""
    cases = [case for case in CASES if (case.needs_isolation if part == "isolated" else not case.slow)]
    for case in cases:
        async with subject.provider.sandbox(subject.spec) as box:
            await run_case(box, case)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("version", sorted(PYTHONS))
async def test_the_shell_does_not_lie_on_any_python(version: str) -> None:
    """On every Python found here, as the sandbox's own, every torture case but the largest passes, and they are 60."""
    cases = [case for case in CASES if not case.slow]
    answers = await ours(cases, Path(PYTHONS[version]))
    assert {} == {name: answer for name, answer in answers.items() if answer != "right"}
    assert len(answers) >= 60


@pytest.mark.anyio
async def test_execd_runs_on_the_python_that_was_chosen(tmp_path: Path) -> None:
    """`host_python` names the Python of the image `host`."""
    version, python = next(iter(PYTHONS.items()))
    config = LocalConfig(state_dir=tmp_path, host_python=Path(python))
    async with open_provider(config) as provider, provider.sandbox(HOST) as box:
        running = (await box.facts()).python_version
    assert running is not None
    assert running.startswith(f"{version}.")


@pytest.mark.anyio
@pytest.mark.parametrize("check", LIFECYCLE_CHECKS, ids=name)
async def test_a_provider_owns_its_sandboxes_to_their_end(check: LifecycleCheck, lifecycle: LifecycleSubject) -> None:
    """The claim is the check's own docstring."""
    await check(lifecycle)
