"""The provider on a real node: the conformance suite, the guard from inside, endings, and what an acquire costs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PacingConfig
from sandbox.errors import DeletedByAnother, SandboxLost
from sandbox.kube.api import Api
from sandbox.testing import CHECKS, Check, Subject
from tests.cluster.conftest import a_canary, pods_of

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.slow]

FAST = PacingConfig(creates_per_s=50, burst=25)


def name(check: Callable[..., object]) -> str:
    return check.__name__


@pytest.fixture
async def subject(admin: Api, config: Callable[..., KubernetesConfig], spec: SandboxSpec) -> AsyncIterator[Subject]:
    canary = await a_canary(admin)
    async with open_provider(config(canary=canary, pacing=FAST)) as provider:
        yield Subject(provider, spec, canary)


@pytest.mark.parametrize("check", CHECKS, ids=name)
async def test_a_provider_does_what_the_law_says(check: Check, subject: Subject) -> None:
    """The claim is the check's own docstring."""
    await check(subject)


async def test_from_a_denied_sandbox_nothing_is_reached(subject: Subject, admin: Api) -> None:
    """Neither the API server, nor another pod, nor the node, nor DNS; and the grader goes on working."""
    provider, spec = subject.provider, subject.spec
    assert subject.canary is not None
    async with provider.sandbox(spec) as denied, provider.sandbox(spec) as other:
        for target in (subject.canary, other.address, (subject.canary[0], 10250)):
            assert "unreachable" == (await denied.facts(canary=target)).canary, target
        ask = "python3 -c 'import socket; socket.setdefaulttimeout(3); socket.gethostbyname(\"example.com\")'"
        assert 0 != (await denied.run(ask, timeout_s=30)).exit_code
        assert b"on\n" == (await denied.run("echo on", timeout_s=10)).output


async def test_another_pod_cannot_call_execd(subject: Subject) -> None:
    """A sandbox with open egress does not reach a sandbox's execd, whatever token it has."""
    spec = subject.spec.model_copy(update={"egress": "open"})
    async with subject.provider.sandbox(spec) as caller, subject.provider.sandbox(spec) as called:
        assert "unreachable" == (await caller.facts(canary=called.address)).canary


async def test_a_pod_that_another_deletes_is_told(subject: Subject, admin: Api, namespace: str) -> None:
    """A command whose pod is deleted under it raises `DeletedByAnother`; it gets no result."""
    async with subject.provider.sandbox(subject.spec) as box:

        async def delete() -> None:
            await anyio.sleep(0.5)
            await admin.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{box.identity.sandbox_id}")

        with pytest.raises(SandboxLost) as lost:
            async with anyio.create_task_group() as group:
                group.start_soon(delete)
                try:
                    await box.run("sleep 60", timeout_s=60)
                except SandboxLost as error:
                    told = error
            raise told

    assert DeletedByAnother is type(lost.value)


async def test_after_the_provider_no_pod_is_left(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig], spec: SandboxSpec
) -> None:
    """Ten sandboxes, given back or not, are gone when the provider is closed."""
    open_spec = spec.model_copy(update={"egress": "open"})
    async with open_provider(config(pacing=FAST)) as provider, anyio.create_task_group() as group:

        async def one() -> None:
            async with provider.sandbox(open_spec) as box:
                await box.run("true", timeout_s=20)

        for _ in range(10):
            group.start_soon(one)

    assert [] == await pods_of(admin, namespace)
