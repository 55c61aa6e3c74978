"""What a caller is told where the cluster does not tell us what becomes of a pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PhaseBudgets
from sandbox.errors import CreateError, ProviderUnavailable, Unschedulable
from sandbox.kube import birth
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio

SPEC = SandboxSpec(image="name@sha256:" + "1" * 64, egress="open")


class LosesReplies(StandIn):
    """Stores pods, and breaks the connection before it says so."""

    async def _carry_out(self, request: web.Request, verb: str, kind: str, name: str | None) -> web.StreamResponse:
        answer = await super()._carry_out(request, verb, kind, name)
        if (verb, kind) == ("POST", "pods") and request.transport is not None:
            await asyncio.sleep(0.3)
            request.transport.abort()
        return answer


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with StandIn(tmp_path).serve() as stand_in:
        yield stand_in


@pytest.fixture
def config(cluster: StandIn) -> KubernetesConfig:
    budgets = PhaseBudgets(schedule_s=0.5, daemon_s=20)
    return KubernetesConfig(kubeconfig=cluster.kubeconfig(), guard="unguarded", budgets=budgets)


UNREADABLE = [
    ((403, "Forbidden", "cannot get pods"), ProviderUnavailable, "does not let us read pods: cannot get pods; .*role"),
    ((503, "ServiceUnavailable", "etcd is down"), CreateError, "cannot be read: .* 503 .*etcd is down"),
]


@pytest.mark.parametrize(("answer", "kind", "words"), UNREADABLE)
async def test_a_cluster_that_cannot_be_read_is_not_told_as_a_scheduler_that_finds_no_node(
    cluster: StandIn, config: KubernetesConfig, answer: tuple[int, str, str], kind: type[Exception], words: str
) -> None:
    """But in the server's words, with what to see to."""
    cluster.refuse = lambda verb, what: answer if what == "pods" and verb in {"GET", "WATCH"} else None

    async with open_provider(config) as provider:
        with pytest.raises(kind, match=words) as told:
            async with provider.sandbox(SPEC):
                pass
        cluster.refuse = lambda verb, what: None
    assert not isinstance(told.value, Unschedulable)


async def test_a_server_that_never_answers_is_waited_for_in_bounds(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one look at the pod has a time of its own."""
    monkeypatch.setattr(birth, "LOOK_S", 0.3)
    cluster.is_mute = True
    cluster.slow_s["GET", "pods"] = 3.0

    async with open_provider(config) as provider:
        with anyio.fail_after(2), pytest.raises(CreateError, match=r"cannot be read: .*none within 0\.3 s"):
            async with provider.sandbox(SPEC):
                pass
        cluster.is_mute = False
        cluster.slow_s.clear()


async def test_a_pod_that_runs_while_the_watch_is_mute_is_no_scheduling_failure(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """It is looked at before anybody is blamed."""
    cluster.is_mute = True

    async with open_provider(config) as provider, provider.sandbox(SPEC) as box:
        assert 0 == (await box.run("true", timeout_s=10)).exit_code
        cluster.is_mute = False


async def test_a_pod_that_no_scheduler_takes_up_is_looked_at_once(cluster: StandIn, config: KubernetesConfig) -> None:
    """And told as what it is."""
    cluster.status_of_new = lambda pod: {"phase": "Pending"}

    async with open_provider(config) as provider:
        await asyncio.sleep(0.2)
        before = cluster.requests.count(("GET", "pods"))
        with pytest.raises(Unschedulable, match="see to the scheduler"):
            async with provider.sandbox(SPEC):
                pass
        assert before + 1 == cluster.requests.count(("GET", "pods"))


async def test_a_pod_that_came_and_went_before_its_create_was_answered_is_told_as_ended(tmp_path: Path) -> None:
    """Though the answer is lost: it is neither waited for nor made again."""
    async with LosesReplies(tmp_path).serve() as cluster:
        config = KubernetesConfig(kubeconfig=cluster.kubeconfig(), guard="unguarded")

        def hold_back(pod: dict[str, Any]) -> dict[str, Any]:
            cluster.is_mute = True
            asyncio.get_running_loop().call_later(0.1, vanish, pod["metadata"]["name"])
            return {"phase": "Pending"}

        def vanish(name: str) -> None:
            cluster.is_mute = False  # both news come in one piece
            cluster.vanish(name)

        cluster.status_of_new = hold_back
        async with open_provider(config) as provider:
            with pytest.raises(CreateError, match=r"ended before it was ready \(deleted\)"):
                async with provider.sandbox(SPEC, acquire_timeout_s=5):
                    pass
        assert 1 == cluster.requests.count(("POST", "pods"))
