"""A node that goes silent, and a node that is emptied. Both are done to the whole node: nobody else may use it
meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import anyio
import pytest

from sandbox import KubernetesConfig, SandboxSpec
from sandbox.errors import Evicted, NodeLost
from sandbox.kube.api import Api
from sandbox.kube.box import KubeSandbox
from tests.cluster.conftest import FAST, KUBE_DIR
from tests.cluster.hands import a_place, is_here, told_while

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.long]

TAINT = {"key": "sandman-test", "effect": "NoExecute"}


@pytest.fixture
def plain(image: str) -> SandboxSpec:
    return SandboxSpec(image=image, egress="open")


@contextmanager
def kubelet_stopped() -> Iterator[None]:
    """It says nothing of its node and does nothing on it; what runs there goes on."""
    process = int((KUBE_DIR / "run" / "kubelet.pid").read_text())
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextmanager
def cut_off(address: str) -> Iterator[None]:
    """Nothing from this machine reaches the address any more, and nobody is told."""
    rules = f"""
        table ip sandman_cut {{
            chain out {{ type filter hook output priority 0; ip daddr {address} drop; }}
        }}"""
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "ip", "sandman_cut"], check=True)


async def node_is(admin: Api, node: str, *, ready: bool) -> None:
    """Until the cluster says so."""
    with anyio.fail_after(120):
        while True:
            conditions = (await admin.call("GET", f"/api/v1/nodes/{node}"))["status"]["conditions"]
            if ready == any(one["type"] == "Ready" and one["status"] == "True" for one in conditions):
                return
            await anyio.sleep(0.5)


async def test_a_node_that_went_silent(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig], plain: SandboxSpec
) -> None:
    """A sandbox that cannot be reached, on a node of which the cluster hears nothing, is `NodeLost`. Another on the
    same node that can be reached goes on, and its results count. When the node is back both go."""
    if not is_here():
        pytest.skip("only the kubelet of tests/cluster/up can be stopped")
    async with a_place(admin, config(pacing=FAST)) as place:
        async with place.provider.sandbox(plain) as box, place.provider.sandbox(plain) as other:
            with kubelet_stopped(), cut_off(box.address[0]):
                lost = await told_while(box, None, "sleep 120")
                await node_is(admin, box.node, ready=False)
                worked = await other.run("echo on", timeout_s=20)
        await node_is(admin, box.node, ready=True)

    assert (NodeLost, "node_lost") == (type(lost), lost.cause)
    assert (box.node, None) == (lost.facts["node"], lost.facts["exit_code"])
    assert "has not heard" in lost.facts["said"]
    assert b"on\n" == worked.output


async def test_a_node_that_is_emptied_by_a_taint(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig], plain: SandboxSpec
) -> None:
    """The node is there and tells how the container ended: `Evicted`, and not `NodeLost`, though the cluster notes the
    same of both."""
    async with (
        a_place(admin, config(pacing=FAST)) as place,
        tainted(admin) as taint,
        place.provider.sandbox(plain) as box,
    ):
        lost = await told_while(box, partial(taint, box), "sleep 120")

    assert (Evicted, "evicted", box.node) == (type(lost), lost.cause, lost.facts["node"])
    assert "TaintManagerEviction" in lost.facts["said"]


@asynccontextmanager
async def tainted(admin: Api) -> AsyncIterator[Callable[[KubeSandbox], Awaitable[None]]]:
    """A deed that taints a sandbox's node; taken back in the end."""
    done: list[tuple[str, list[object]]] = []

    async def taint(box: KubeSandbox) -> None:
        path = f"/api/v1/nodes/{box.node}"
        before = (await admin.call("GET", path))["spec"].get("taints") or []
        done.append((path, before))
        await admin.call("PATCH", path, {"spec": {"taints": [*before, TAINT]}})

    try:
        yield taint
    finally:
        for path, before in done:
            await admin.call("PATCH", path, {"spec": {"taints": before}})
