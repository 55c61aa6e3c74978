"""The janitor before a stand-in for a cluster: it deletes what dead runs left, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandbox import KubernetesConfig
from sandbox.kube import janitor
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


async def test_a_run_that_renews_its_lease_while_others_pods_are_deleted_keeps_its_pods(
    cluster: StandIn, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep may take minutes, and a run whose lease had expired may live on."""
    monkeypatch.setattr(janitor, "LEASES_HOLD_S", 0.0)
    leave(cluster, "dead-1", "dead-2", lease="dead")
    leave(cluster, "late-1", "late-2", lease="late")
    hold(cluster, "dead", renewed_at=LONG_AGO)
    hold(cluster, "late", renewed_at=LONG_AGO)

    def refuse(verb: str, kind: str) -> None:
        if cluster.requests.count(("DELETE", "pods")) == 2:
            hold(cluster, "late", renewed_at=datetime.now(UTC).isoformat())

    cluster.refuse = refuse
    swept = await sweep(api)

    assert ("dead-1", "dead-2") == swept.deleted
    assert (2, ("dead",)) == (swept.kept, swept.leases)
    assert {"late-1", "late-2"} <= set(cluster.pods)


async def test_where_leases_can_be_read_no_more_the_sweep_leaves_the_rest(
    cluster: StandIn, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says what it did."""
    monkeypatch.setattr(janitor, "LEASES_HOLD_S", 0.0)
    leave(cluster, "sb-1", "sb-2", "sb-3")

    def refuse(verb: str, kind: str) -> tuple[int, str, str] | None:
        is_late = ("DELETE", "pods") in cluster.requests
        return (503, "ServiceUnavailable", "busy") if kind == "leases" and is_late else None

    cluster.refuse = refuse
    swept = await sweep(api)

    assert (("sb-1",), ("sb-2", "sb-3")) == (swept.deleted, swept.failed)


@pytest.mark.parametrize("forgets", [False, True], ids=["in pages", "in one piece"])
async def test_pods_are_found_though_the_server_forgets_a_list_between_its_pages(
    cluster: StandIn, api: Api, forgets: bool
) -> None:
    """A page that is asked for too late begins the list again, without pages."""
    cluster.forgets_lists = forgets
    leave(cluster, *(f"sb-{number}" for number in range(501)))

    assert 501 == len((await sweep(api)).deleted)


async def test_a_sweep_of_many_pods_looks_at_the_leases_now_and_then(cluster: StandIn, api: Api) -> None:
    """Not once for each."""
    leave(cluster, *(f"sb-{number}" for number in range(50)))

    swept = await sweep(api)

    assert 50 == len(swept.deleted)
    assert cluster.requests.count(("GET", "leases")) < 10
