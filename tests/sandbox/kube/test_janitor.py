"""The janitor before a stand-in for a cluster: it deletes what dead runs left, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox import KubernetesConfig
from sandbox.kube.api import Api, open_api
from sandbox.kube.janitor import sweep
from sandbox.kube.manifest import LEASE_LABEL, NONCE_LABEL, PREFIX, SANDBOX_LABEL
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with StandIn(tmp_path).serve() as stand_in:
        stand_in.status_of_new = lambda pod: {"phase": "Pending"}
        yield stand_in


@pytest.fixture
async def api(cluster: StandIn) -> AsyncIterator[Api]:
    async with open_api(KubernetesConfig(kubeconfig=cluster.kubeconfig())) as opened:
        await opened.call("GET", "/version")
        yield opened


def leave(cluster: StandIn, *names: str, lease: str = "run-1") -> None:
    """Pods that name this lease."""
    labels = {SANDBOX_LABEL: "true", LEASE_LABEL: lease, NONCE_LABEL: "n1"}
    for name in names:
        cluster.create({"metadata": {"name": name, "labels": labels}, "spec": {}})


def hold(cluster: StandIn, name: str, *, renewed_at: str) -> None:
    """The lease of a run that renewed it then."""
    spec = {"holderIdentity": "h", "leaseDurationSeconds": 60, "renewTime": renewed_at}
    labels = {"app.kubernetes.io/managed-by": PREFIX}
    metadata = {"name": name, "uid": "l", "resourceVersion": "1", "labels": labels}
    cluster.leases[name] = {"metadata": metadata, "spec": spec}


LONG_AGO = "2020-01-01T00:00:00Z"


async def test_a_pod_whose_delete_is_in_conflict_keeps_its_lease(cluster: StandIn, api: Api) -> None:
    """A webhook's conflict leaves the pod and its lease to the next sweep."""
    leave(cluster, "sb")
    hold(cluster, "run-1", renewed_at=LONG_AGO)
    cluster.refuse = lambda verb, kind: (409, "Conflict", "no") if (verb, kind) == ("DELETE", "pods") else None

    swept = await sweep(api)

    assert (("sb",), ()) == (swept.failed, swept.leases)
    assert ["run-1"] == list(cluster.leases)
