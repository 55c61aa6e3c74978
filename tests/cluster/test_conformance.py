"""The provider on a real node: the conformance suite, the guard from inside, endings, and what an acquire costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.errors import DeletedByAnother, SandboxLost
from sandbox.kube.api import Api
from sandbox.testing import CHECKS, LIFECYCLE_CHECKS, Check, LifecycleCheck, LifecycleSubject, Subject
from sandbox.torture import CASES, Case, run_case
from tests.cluster.conftest import FAST, left_in, pods_of

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.slow]


def name(check: Callable[..., object]) -> str:
    return check.__name__


@pytest.mark.parametrize("check", CHECKS, ids=name)
async def test_a_provider_does_what_the_law_says(check: Check, subject: Subject) -> None:
    """The claim is the check's own docstring."""
    await check(subject)


@pytest.mark.parametrize("check", LIFECYCLE_CHECKS, ids=name)
async def test_a_provider_owns_its_sandboxes_to_their_end(
    check: LifecycleCheck, kubeconfig: Path, namespace: str, spec: SandboxSpec
) -> None:
    """The claim is the check's own docstring."""
    config = KubernetesConfig(kubeconfig=kubeconfig, namespace=namespace, pacing=FAST)
    open_spec = spec.model_copy(update={"egress": "open"})  # the guard's own sandboxes are no matter here
    await check(LifecycleSubject(lambda: open_provider(config), open_spec, partial(left_in, kubeconfig, namespace)))


@pytest.mark.parametrize("part", ["alone", "together"])
async def test_the_shell_does_not_lie_in_a_pod(part: str, subject: Subject) -> None:
    """The torture suite passes on a real pod: each case that may signal everything in a pod of its own, the others in
    sessions of one."""
    if part == "together":
        async with subject.provider.sandbox(subject.spec) as box:
            for case in CASES:
                if not case.needs_isolation and not case.slow:
                    await run_case(box, case)
        return

    async def alone(case: Case) -> None:
        async with subject.provider.sandbox(subject.spec) as box:
            await run_case(box, case)

    async with anyio.create_task_group() as group:
        for case in CASES:
            if case.needs_isolation:
                group.start_soon(alone, case)


async def test_a_pod_that_another_deletes_is_told(subject: Subject, admin: Api, shared: str) -> None:
    """A command whose pod is deleted under it raises `DeletedByAnother`; it gets no result."""
    async with subject.provider.sandbox(subject.spec) as box:

        async def delete() -> None:
            await anyio.sleep(0.5)
            await admin.call("DELETE", f"/api/v1/namespaces/{shared}/pods/{box.identity.sandbox_id}")

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
