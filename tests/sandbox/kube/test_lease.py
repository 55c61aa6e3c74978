"""A run's lease before a stand-in for a cluster: renewed in time, whatever single requests come to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from sandbox import KubernetesConfig
from sandbox.kube.api import open_api
from sandbox.kube.lease import RunLease
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio

DURATION_S = 3.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with StandIn(tmp_path).serve() as stand_in:
        yield stand_in


@contextlib.asynccontextmanager
async def renewed(cluster: StandIn) -> AsyncIterator[None]:
    """A lease that is kept up."""
    async with open_api(KubernetesConfig(kubeconfig=cluster.kubeconfig())) as api:
        lease = RunLease(api, "run-1", duration_s=DURATION_S)
        await lease.begin()
        renewing = asyncio.create_task(lease.renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})


async def test_renewals_that_hang_are_given_up_while_the_lease_holds(cluster: StandIn) -> None:
    """After one without an answer the next come soon, with less patience each: three in the time of a lease."""
    cluster.slow_s["PATCH", "leases"] = 60.0

    async with renewed(cluster):
        await anyio.sleep(1.4 * DURATION_S)
        renewals = cluster.requests.count(("PATCH", "leases"))

    assert 3 <= renewals


async def test_after_a_renewal_that_succeeds_the_next_has_time(cluster: StandIn) -> None:
    """A failed one is repeated at once, and a third of the lease's time after the repeat comes the next."""
    asked_at: list[float] = []

    def refuse(verb: str, kind: str) -> tuple[int, str, str] | None:
        if (verb, kind) != ("PATCH", "leases"):
            return None
        asked_at.append(time.monotonic())
        return (500, "InternalError", "no") if len(asked_at) == 1 else None

    cluster.refuse = refuse
    async with renewed(cluster):
        with anyio.fail_after(2 * DURATION_S):
            while len(asked_at) < 3:
                await anyio.sleep(0.01)

    failed, repeated, following = asked_at
    assert repeated - failed < 0.7
    assert 0.9 < following - repeated < 2.0
