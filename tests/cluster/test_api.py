"""The provider against a real API server: what is asked for, owned and left, whether or not a node is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PacingConfig
from sandbox.errors import AcquireTimeout, CreateError, ImageError, ProviderUnavailable
from sandbox.kube.api import Api
from sandbox.kube.janitor import sweep
from tests.cluster.conftest import leases_of, pods_of

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]

NOWHERE = SandboxSpec(image="localhost/nothing@sha256:" + "0" * 64, egress="open")
UNPLACED = {"node_selector": {"sandman-test": "no-such-node"}, "pacing": PacingConfig(creates_per_s=500, burst=100)}


async def _cancelled(work: Coroutine[Any, Any, None], number: int) -> None:
    """Work that is cancelled at one of many moments, once, twice or five times."""
    task = asyncio.create_task(work)
    await asyncio.sleep(number * 0.004)
    for _ in range((1, 2, 5)[number % 3]):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({task})


async def test_an_acquire_that_times_out_says_where_and_leaves_nothing(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig]
) -> None:
    """A pod that no node takes ends in `AcquireTimeout` with the scheduler's reason, and is deleted."""
    async with open_provider(config(**UNPLACED)) as provider:
        with pytest.raises(AcquireTimeout) as late:
            async with provider.sandbox(NOWHERE, acquire_timeout_s=2.0):
                pass
        with anyio.fail_after(10):
            while await pods_of(admin, namespace):
                await anyio.sleep(0.05)

    assert "schedule" in late.value.waited_in
    assert "node" in str(late.value)
    assert [] == await leases_of(admin, namespace)


async def test_cancelled_callers_leave_no_pod(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig]
) -> None:
    """Sixty callers that are cancelled at moments of their create, once, twice and five times: no pod is left."""

    async with open_provider(config(**UNPLACED)) as provider:

        async def caller() -> None:
            async with provider.sandbox(NOWHERE, acquire_timeout_s=30):
                pass

        await asyncio.gather(*(_cancelled(caller(), number) for number in range(60)))

    assert [] == await pods_of(admin, namespace)
    assert [] == await leases_of(admin, namespace)


async def test_a_host_task_that_is_cancelled_five_times_leaves_no_pod(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig]
) -> None:
    """The provider outlasts the cancellations of the task that holds it, and deletes all of its pods."""

    async def host() -> None:
        async with open_provider(config(**UNPLACED)) as provider, asyncio.TaskGroup() as group:

            async def caller() -> None:
                async with provider.sandbox(NOWHERE, acquire_timeout_s=30):
                    pass

            for _ in range(10):
                group.create_task(caller())

    for delay_s in (0.05, 0.3, 1.0):
        task = asyncio.create_task(host())
        await asyncio.sleep(delay_s)
        for _ in range(5):
            task.cancel()
            await asyncio.sleep(0.01)
        await asyncio.wait({task})
        assert task.cancelled()

    assert [] == await pods_of(admin, namespace)
    assert [] == await leases_of(admin, namespace)


async def test_an_open_that_is_cancelled_at_any_moment_leaves_no_lease(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig]
) -> None:
    """Forty moments of the way to an open provider, cancelled once, twice and five times."""

    async def host() -> None:
        async with open_provider(config(**UNPLACED)):
            await asyncio.sleep(0)

    for number in range(40):
        await _cancelled(host(), number)

    assert [] == await leases_of(admin, namespace)


async def test_the_janitor_deletes_what_a_dead_run_left_and_nothing_else(
    admin: Api, namespace: str, kubeconfig: object, config: Callable[..., KubernetesConfig]
) -> None:
    """Pods of an expired or missing lease go; those of a living run and those without our marks stay."""

    def pod(name: str, lease: str | None) -> dict[str, object]:
        marks = {"sandman-grader/sandbox": "true", "sandman-grader/nonce": "n"}
        labels = {**marks, "sandman-grader/lease": lease} if lease else {"app": "foreign"}
        return {
            "metadata": {"name": name, "labels": labels},
            "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "localhost/pause:1"}]},
        }

    def lease(name: str, renewed: str) -> dict[str, object]:
        return {
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "sandman-grader"}},
            "spec": {"leaseDurationSeconds": 5, "renewTime": renewed},
        }

    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    await admin.call("POST", leases, lease("dead", "2020-01-01T00:00:00.000000Z"))
    await admin.call("POST", leases, lease("alive", "2999-01-01T00:00:00.000000Z"))
    for name, of in (("of-dead", "dead"), ("of-none", "never-was"), ("of-alive", "alive"), ("foreign", None)):
        await admin.call("POST", f"/api/v1/namespaces/{namespace}/pods", pod(name, of))
    own = admin.in_namespace(namespace)

    swept = await sweep(own)

    assert ["foreign", "of-alive"] == sorted(await pods_of(admin, namespace))
    assert {"of-dead", "of-none"} == set(swept.deleted)
    assert ["alive"] == await leases_of(admin, namespace)


async def test_egress_cannot_be_denied_without_a_policy(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig]
) -> None:
    """Where a policy is absent the provider refuses a sandbox with egress denied, and says what to apply."""
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/sandman-grader-egress-denied"
    await admin.call("DELETE", path)
    denied = NOWHERE.model_copy(update={"egress": "denied"})

    async with open_provider(config(**UNPLACED)) as provider:
        with pytest.raises(ProviderUnavailable, match=r"egress.*docs/kubernetes\.md"):
            async with provider.sandbox(denied, acquire_timeout_s=20):
                pass


async def test_an_image_without_a_digest_is_refused_before_anything_is_sent(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig]
) -> None:
    """`ImageError`, and no pod."""
    async with open_provider(config(**UNPLACED)) as provider:
        with pytest.raises(ImageError):
            async with provider.sandbox(NOWHERE.model_copy(update={"image": "python:3"})):
                pass
        assert [] == await pods_of(admin, namespace)


async def test_a_quota_and_a_missing_namespace_are_told(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig]
) -> None:
    """A used-up quota is `QuotaExceeded` with the server's words; a namespace that is not there stops the open."""
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await admin.call("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    with anyio.fail_after(20):
        path = f"/api/v1/namespaces/{namespace}/resourcequotas/none"
        while not (await admin.call("GET", path)).get("status", {}).get("hard"):
            await anyio.sleep(0.1)

    async with open_provider(config(**UNPLACED)) as provider:
        with pytest.raises(CreateError, match="quota"):
            async with provider.sandbox(NOWHERE, acquire_timeout_s=20):
                pass
    with pytest.raises(ProviderUnavailable, match="namespace"):
        async with open_provider(config(namespace="no-such-namespace")):
            pass
