"""Pacing before a real API server: what arrives there, what its refusals do, and what who waits in vain is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PacingConfig
from sandbox.errors import AcquireTimeout
from sandbox.kube.api import Api, CreateAnswer
from tests.cluster.conftest import pods_of
from tests.cluster.faults import FaultyServer, Plan, proxied_kubeconfig
from tests.sandbox.test_pacing import fullest_excess

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]

NOWHERE = SandboxSpec(image="localhost/nothing@sha256:" + "0" * 64, egress="open")
UNPLACED = {"sandman-test": "no-such-node"}


async def test_of_4096_acquires_no_more_arrive_than_the_bucket_lets_through(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig]
) -> None:
    """Of 4,096 acquires at once no more reach the server than the bucket allows, by our clock and by the server's own;
    the tail is told why it waited."""
    per_s, burst = 20, 10
    pacing = PacingConfig(creates_per_s=per_s, burst=burst, max_in_flight=5000, max_live=5000)
    told: list[AcquireTimeout] = []
    sent: list[float] = []
    underway_s: list[float] = []
    stamps: list[float] = []
    watch = admin.in_namespace(namespace).watch_pods("", "0", timeout_s=60)

    async def observe() -> None:
        async with aclosing(watch) as events:
            async for event in events:
                if event.kind == "added" and event.pod is not None and event.pod.created_at is not None:
                    stamps.append(event.pod.created_at)

    observing = asyncio.create_task(observe())
    async with open_provider(config(pacing=pacing, node_selector=UNPLACED)) as provider:
        create = provider._api.create_pod

        async def counted(manifest: bytes) -> CreateAnswer:
            sent.append(began := time.monotonic())
            answer = await create(manifest)
            underway_s.append(time.monotonic() - began)
            return answer

        provider._api.create_pod = counted

        async def caller() -> None:
            try:
                async with provider.sandbox(NOWHERE, acquire_timeout_s=12.0):
                    pass
            except AcquireTimeout as late:
                told.append(late)

        async with asyncio.TaskGroup() as group:
            for _ in range(4096):
                group.create_task(caller())
    observing.cancel()
    await asyncio.wait({observing})

    queued = [late for late in told if "rate" in late.waited_in]
    assert 4096 == len(told)
    assert 0.95 * (4096 - len(sent)) <= len(queued)  # the others had their turn, and no time left to use it
    assert fullest_excess(sent, per_s=per_s, burst=burst) < 1
    assert burst < len(stamps) <= len(sent)
    # The server's stamps are whole seconds, and a request that was long under way may arrive with a later one.
    assert fullest_excess(sorted(stamps), per_s=per_s, burst=burst) <= per_s * (1 + max(underway_s)) + 1
    assert "creates_per_s" in str(queued[-1])
    assert [] == await pods_of(admin, namespace)


async def test_a_storm_of_429_loses_no_create(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig], tmp_path: Path
) -> None:
    """While the server answers every create with 429 and asks for a pause, the run slows down; afterwards each of 200
    acquires has its pod, once."""
    direct = config(pacing=PacingConfig(creates_per_s=100, burst=50, max_in_flight=500), node_selector=UNPLACED)
    assert direct.kubeconfig is not None
    async with FaultyServer(admin, Plan("storm", share=0.0)).serve() as proxy:
        proxy.storm = True
        through = proxied_kubeconfig(direct.kubeconfig, proxy.url, tmp_path / "kubeconfig")
        async with open_provider(direct.model_copy(update={"kubeconfig": through})) as provider:

            async def caller() -> None:
                async with provider.sandbox(NOWHERE, acquire_timeout_s=300):
                    pass

            callers = [asyncio.create_task(caller()) for _ in range(200)]
            with anyio.fail_after(60):
                while proxy.refused < 50:
                    await anyio.sleep(0.1)
            await anyio.sleep(4)
            refused, stored_in_the_storm = proxy.refused, await pods_of(admin, namespace)
            proxy.storm = False
            with anyio.fail_after(90):
                while len(names := await pods_of(admin, namespace)) < 200:
                    await anyio.sleep(0.2)
            await anyio.sleep(1)
            assert sorted(names) == sorted(await pods_of(admin, namespace))
            for task in callers:
                task.cancel()
            await asyncio.wait(callers)

    assert [] == stored_in_the_storm
    assert refused <= 150  # the burst, then half the pace, a quarter, ...: not 200 callers again and again
    assert [] == await pods_of(admin, namespace)


async def test_no_more_requests_than_allowed_are_under_way(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig]
) -> None:
    """Forty sandboxes are asked for and given up at once, with three requests for pods allowed: there are three under
    way, and never more, of creates and of deletes."""
    pacing = PacingConfig(creates_per_s=10_000, burst=40, max_requests=3)
    most: dict[str, int] = {"create": 0, "delete": 0}
    under_way = 0
    async with open_provider(config(pacing=pacing, node_selector=UNPLACED)) as provider:
        create, delete = provider._api.create_pod, provider._api.delete_pod

        async def counted(what: str, request: Awaitable[Any]) -> Any:
            nonlocal under_way
            under_way += 1
            most[what] = max(most[what], under_way)
            try:
                await anyio.sleep(0.02)
                return await request
            finally:
                under_way -= 1

        provider._api.create_pod = lambda manifest: counted("create", create(manifest))
        provider._api.delete_pod = lambda name, uid, grace_s: counted("delete", delete(name, uid, grace_s=grace_s))

        async def caller() -> None:
            async with provider.sandbox(NOWHERE, acquire_timeout_s=300):
                pass

        callers = [asyncio.create_task(caller()) for _ in range(40)]
        with anyio.fail_after(60):
            while len(await pods_of(admin, namespace)) < 40:
                await anyio.sleep(0.1)
        for task in callers:
            task.cancel()
        await asyncio.wait(callers)

    assert {"create": 3, "delete": 3} == most
    assert [] == await pods_of(admin, namespace)
