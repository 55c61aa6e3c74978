"""Pods that are late: what keeps them is asked of the cluster, and what comes meanwhile is heard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PhaseBudgets
from sandbox.errors import CreateError, ImageError
from sandbox.kube import birth, pulls
from tests.sandbox.kube.pods import container
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio

SPEC = SandboxSpec(image="name@sha256:" + "1" * 64, egress="open")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with StandIn(tmp_path).serve() as stand_in:
        yield stand_in


def config(cluster: StandIn, *, start_s: float, pull_s: float = 30.0) -> KubernetesConfig:
    budgets = PhaseBudgets(schedule_s=30, start_s=start_s, pull_s=pull_s, daemon_s=30)
    return KubernetesConfig(kubeconfig=cluster.kubeconfig(), guard="unguarded", budgets=budgets)


def hold_back(cluster: StandIn, *, until_s: float | None, reason: str = "ContainerCreating", message: str = "") -> None:
    """New pods get a node at once, and run after a while, or never."""

    def status(pod: dict[str, Any]) -> dict[str, Any]:
        pod["spec"]["nodeName"] = "node1"
        if until_s is not None:
            asyncio.get_running_loop().call_later(until_s, cluster.start, pod["metadata"]["name"])
        return {"phase": "Pending", "containerStatuses": [container(waiting={"reason": reason, "message": message})]}

    cluster.status_of_new = status


def refuse_events(verb: str, kind: str) -> tuple[int, str, str] | None:
    return (503, "ServiceUnavailable", "busy") if kind == "events" else None


async def until(happened: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not happened():
            await anyio.sleep(0.01)


async def test_a_late_pod_of_which_nothing_can_be_read_may_be_pulling(cluster: StandIn) -> None:
    """It is no failed create: the budget of a pull is allowed."""
    cluster.refuse = refuse_events
    hold_back(cluster, until_s=1.5)

    async with open_provider(config(cluster, start_s=0.3)) as provider, provider.sandbox(SPEC) as box:
        assert 0 == (await box.run("true", timeout_s=10)).exit_code
        assert (box.phases.start_s or 0.0) > 1.0


async def test_a_pod_of_which_nothing_can_be_read_is_given_up_in_the_end(cluster: StandIn) -> None:
    """After both budgets."""
    cluster.refuse = refuse_events
    hold_back(cluster, until_s=None)

    async with open_provider(config(cluster, start_s=0.5, pull_s=1.0)) as provider:
        began = time.monotonic()
        with anyio.fail_after(20), pytest.raises(CreateError, match="did not run"):
            async with provider.sandbox(SPEC):
                pass
        assert 1.5 <= time.monotonic() - began


async def test_an_image_in_trouble_has_the_budget_of_a_pull(cluster: StandIn) -> None:
    """A registry that asks to wait is waited for, beyond what a start may take."""
    hold_back(cluster, until_s=1.5, reason="ErrImagePull", message="429 Too Many Requests")

    async with open_provider(config(cluster, start_s=0.3)) as provider, provider.sandbox(SPEC) as box:
        assert 0 == (await box.run("true", timeout_s=10)).exit_code
        assert (box.phases.pull_s or 0.0) > 1.0


async def test_an_image_that_is_not_had_in_time_is_told_with_the_budget_that_it_had(cluster: StandIn) -> None:
    """And in the registry's words."""
    hold_back(cluster, until_s=None, reason="ErrImagePull", message="429 Too Many Requests")

    async with open_provider(config(cluster, start_s=0.3, pull_s=1.0)) as provider:
        began = time.monotonic()
        with pytest.raises(ImageError, match=r"was not on its node in 1 s: ErrImagePull: 429"):
            async with provider.sandbox(SPEC):
                pass
        assert 1.0 <= time.monotonic() - began


async def test_what_a_back_off_hides_is_asked_again_when_it_has_changed(
    cluster: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry's second answer is heard though the first gave hope, and a pod that changes often costs no more."""
    monkeypatch.setattr(birth, "EXPLAIN_AGAIN_S", 1.0)
    cluster.events = [{"reason": "Failed", "message": "Failed to pull image: 429 Too Many Requests"}]
    hold_back(cluster, until_s=None, reason="ImagePullBackOff", message="Back-off pulling image")

    async def fail_otherwise() -> None:
        await until(lambda: ("GET", "events") in cluster.requests)
        [name] = cluster.pods
        for number in range(20):
            await anyio.sleep(0.01)
            cluster.set_status(name, message=f"try {number}")
        cluster.events.append({"reason": "Failed", "message": "Failed to pull image: manifest unknown"})

    async with open_provider(config(cluster, start_s=30)) as provider, asyncio.TaskGroup() as group:
        group.create_task(fail_otherwise())
        with anyio.fail_after(8), pytest.raises(ImageError, match="manifest unknown"):
            async with provider.sandbox(SPEC):
                pass
    assert 2 == cluster.requests.count(("GET", "events"))


async def test_an_image_in_trouble_that_stays_as_it_is_is_asked_about_once(
    cluster: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is waited for."""
    monkeypatch.setattr(birth, "EXPLAIN_AGAIN_S", 0.1)
    cluster.events = [{"reason": "Failed", "message": "Failed to pull image: 429 Too Many Requests"}]
    hold_back(cluster, until_s=None, reason="ImagePullBackOff", message="Back-off pulling image")

    async with open_provider(config(cluster, start_s=30, pull_s=1.0)) as provider:
        with pytest.raises(ImageError, match="429"):
            async with provider.sandbox(SPEC):
                pass
    assert 1 == cluster.requests.count(("GET", "events"))


@pytest.mark.parametrize(
    ("reason", "start_s"), [("ImagePullBackOff", 60.0), ("ContainerCreating", 0.4)], ids=["in trouble", "late"]
)
async def test_a_pod_that_runs_while_it_is_asked_about_is_ready(cluster: StandIn, reason: str, start_s: float) -> None:
    """Neither given up for what it was before, nor left until its budget is over."""
    cluster.slow_s["GET", "events"] = 1.5
    hold_back(cluster, until_s=0.8, reason=reason)

    async with open_provider(config(cluster, start_s=start_s)) as provider:
        with anyio.fail_after(8):
            async with provider.sandbox(SPEC) as box:
                assert 0 == (await box.run("true", timeout_s=10)).exit_code


async def test_the_pull_of_a_sandbox_is_told(cluster: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart from the start, of which it is a part."""
    monkeypatch.setattr(pulls, "WORTH_ASKING_S", 0.0)
    cluster.events = [{"reason": "Pulled", "message": 'Successfully pulled image "x" in 200ms'}]
    hold_back(cluster, until_s=0.5)

    async with open_provider(config(cluster, start_s=30)) as provider, provider.sandbox(SPEC) as box:
        assert 0.2 == box.phases.pull_s
        assert 0.2 < (box.phases.start_s or 0.0) < 20
