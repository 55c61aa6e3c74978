"""The watch of a run's pods before a stand-in for a cluster that cuts it off, or asks it to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from sandbox import KubernetesConfig
from sandbox.kube import watch as module
from sandbox.kube.api import open_api
from sandbox.kube.snapshot import Pod
from sandbox.kube.watch import Watch
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio


class Heard:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.lists = 0
        self.pods: list[str] = []

    def on_list(self, pods: Sequence[Pod], asked_at: float) -> None:
        self.lists += 1

    def on_pod(self, pod: Pod) -> None:
        self.pods.append(pod.name)

    def on_gone(self, pod: Pod) -> None:
        raise AssertionError(f"nothing deletes {pod}")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with StandIn(tmp_path).serve() as stand_in:
        stand_in.status_of_new = lambda pod: pod["status"]
        yield stand_in


@pytest.fixture
async def heard(cluster: StandIn) -> AsyncIterator[Heard]:
    """What a watch tells."""
    listener = Heard()
    async with open_api(KubernetesConfig(kubeconfig=cluster.kubeconfig())) as api:
        following = asyncio.create_task(Watch(api, "run=1", listener).follow())
        yield listener
        following.cancel()
        await asyncio.wait({following})


async def test_a_watch_that_is_cut_goes_on_from_what_it_heard(cluster: StandIn, heard: Heard) -> None:
    """At once, though each is cut: nothing is told twice, and nothing is listed again."""
    cluster.cut_watches_after_s = 0.2
    with anyio.fail_after(5):
        while not heard.lists:
            await anyio.sleep(0.01)
    for number in range(20):
        cluster.create({"metadata": {"name": f"sb-{number}", "labels": {"run": "1"}}, "spec": {}})
        await anyio.sleep(0.1)
    with anyio.fail_after(5):
        while len(heard.pods) < 2 * 20:  # stored, and given a status
            await anyio.sleep(0.01)

    assert 2 * 20 == len(heard.pods)
    assert 1 == heard.lists
    assert cluster.requests.count(("WATCH", "pods")) > 5


async def test_a_watch_waits_as_long_as_the_server_asks_but_not_for_a_day(
    cluster: StandIn, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands before the server may ask for any time; the run's pods need looking after."""
    monkeypatch.setattr(module, "LONGEST_RETRY_AFTER_S", 0.5)
    refused_at: list[float] = []

    def refuse(verb: str, kind: str) -> tuple[int, str, str] | None:
        refused_at.append(anyio.current_time())
        return (503, "ServiceUnavailable", "maintenance") if len(refused_at) == 1 else None

    cluster.refuse, cluster.retry_after_s = refuse, 86400
    with anyio.fail_after(5):
        while not heard.lists:
            await anyio.sleep(0.01)

    first, second, *_ = refused_at
    assert 0.5 <= second - first
