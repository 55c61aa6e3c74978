"""The provider before a stand-in for a cluster, whose pods run the real execd: creates, and what keeps them."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import anyio
import pytest

from sandbox import KubernetesConfig, open_provider
from sandbox.config import PacingConfig, PhaseBudgets
from sandbox.errors import (
    AcquireTimeout,
    CreateError,
    ImageError,
    ProviderUnavailable,
    QuotaExceeded,
    Unschedulable,
)
from tests.sandbox.kube.pods import container
from tests.sandbox.kube.provided import SPEC, cluster, config
from tests.sandbox.kube.standin import StandIn

__all__ = ["cluster", "config"]  # fixtures

pytestmark = pytest.mark.anyio


async def test_a_pod_becomes_a_sandbox_and_goes_with_the_with(cluster: StandIn, config: KubernetesConfig) -> None:
    """Commands run, the identity proves never used, and after the provider no pod and no lease is there."""
    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC) as box:
            said = await box.run("echo hello", timeout_s=20)
            assert 1 == len(cluster.pods)
            assert 1 == len(cluster.leases)
        assert box.identity.never_used

    assert b"hello\n" == said.output
    assert ({}, {}) == (cluster.pods, cluster.leases)


async def test_one_watch_serves_all_pods_of_a_run(cluster: StandIn, config: KubernetesConfig) -> None:
    """Ten sandboxes need one list, at most two watches, and no look at a pod of its own."""
    async with open_provider(config) as provider:

        async def one() -> None:
            async with provider.sandbox(SPEC) as box:
                await box.run("true", timeout_s=20)

        await asyncio.gather(*(one() for _ in range(10)))

    gets = [entry for entry in cluster.requests if entry == ("GET", "pods")]
    watches = [entry for entry in cluster.requests if entry == ("WATCH", "pods")]
    assert len(gets) <= 2  # the run's list, and the janitor's
    assert len(watches) <= 2


async def test_a_watch_that_is_mute_is_looked_beside(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten pods of which the watch tells nothing come to be by a few lists, and by none while nobody waits."""
    monkeypatch.setattr("sandbox.kube.watch.SILENT_S", 0.3)
    monkeypatch.setattr("sandbox.kube.provider.LOOK_S", 0.1)
    patient = config.model_copy(update={"budgets": PhaseBudgets(daemon_s=20)})
    cluster.is_mute = True

    async with open_provider(patient) as provider:

        async def one() -> None:
            async with provider.sandbox(SPEC, acquire_timeout_s=30):
                arrived.append(1)
                await leave.wait()

        arrived: list[int] = []
        leave = asyncio.Event()
        callers = [asyncio.create_task(one()) for _ in range(10)]
        with anyio.fail_after(30):
            while len(arrived) < 10:
                await anyio.sleep(0.01)
        before = cluster.requests.count(("GET", "pods"))
        await anyio.sleep(1)
        after = cluster.requests.count(("GET", "pods"))
        cluster.is_mute = False
        leave.set()
        await asyncio.gather(*callers)

    assert before == after
    assert {} == cluster.pods


async def test_who_only_queues_is_no_reason_to_list_the_run(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the one sandbox that may live is in use, who waits for the next needs no news of a pod."""
    monkeypatch.setattr("sandbox.kube.watch.SILENT_S", 0.1)
    monkeypatch.setattr("sandbox.kube.provider.LOOK_S", 0.1)
    alone = config.model_copy(update={"pacing": PacingConfig(max_live=1)})

    async def caller() -> None:
        async with provider.sandbox(SPEC, acquire_timeout_s=60):
            pass

    async with open_provider(alone) as provider:
        async with provider.sandbox(SPEC):
            queued = asyncio.create_task(caller())
            await anyio.sleep(0.2)
            before = cluster.requests.count(("GET", "pods"))
            await anyio.sleep(1)
            after = cluster.requests.count(("GET", "pods"))
        await queued

    assert before == after


async def test_a_429_and_a_failing_webhook_lose_no_create(cluster: StandIn, config: KubernetesConfig) -> None:
    """Refusals are waited out and the create is sent again: the caller sees only its sandbox."""
    answers = iter([(429, "TooManyRequests", "later"), (500, "InternalError", "failed calling webhook"), None])
    cluster.refuse = lambda verb, kind: next(answers, None) if (verb, kind) == ("POST", "pods") else None

    async with open_provider(config) as provider, provider.sandbox(SPEC) as box:
        assert 0 == (await box.run("true", timeout_s=20)).exit_code


async def test_a_create_whose_read_back_fails_is_not_sent_again_unseen(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """While nobody can say whether the pod is there, it is looked for; then the create is sent once more."""
    lost = iter([(500, "InternalError", "no")])
    unread = iter([(503, "ServiceUnavailable", "no")] * 3)
    asked: list[str] = []

    def refuse(verb: str, kind: str) -> tuple[int, str, str] | None:
        if kind != "pods" or verb not in {"POST", "GET"} or (verb == "GET" and not asked):
            return None
        asked.append(verb)
        return next(lost, None) if verb == "POST" else next(unread, None)

    cluster.refuse = refuse
    async with open_provider(config) as provider, provider.sandbox(SPEC):
        pass

    assert ["POST", *["GET"] * 4, "POST"] == asked


REJECTIONS = [
    ((403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q'), QuotaExceeded, "raise the quota"),
    ((403, "Forbidden", "cannot create resource pods"), ProviderUnavailable, "role"),
    ((422, "Invalid", "spec.x is invalid"), CreateError, "spec.x is invalid"),
]


@pytest.mark.parametrize(("answer", "kind", "words"), REJECTIONS)
async def test_what_the_server_rejects_is_told_at_once(
    cluster: StandIn, config: KubernetesConfig, answer: tuple[int, str, str], kind: type[Exception], words: str
) -> None:
    """Quota, missing permission and an invalid pod are different errors, each with the remedy."""
    cluster.refuse = lambda verb, what: answer if (verb, what) == ("POST", "pods") else None

    async with open_provider(config) as provider:
        with pytest.raises(kind, match=words):
            async with provider.sandbox(SPEC):
                pass


async def test_a_spec_that_makes_no_pod_keeps_no_slot(cluster: StandIn, config: KubernetesConfig) -> None:
    """Where one sandbox may live at once, a failure before any request leaves the way free for the next."""
    alone = config.model_copy(update={"pacing": PacingConfig(creates_per_s=500, max_live=1)})
    async with open_provider(alone) as provider:
        with pytest.raises(CreateError, match="in phase queue"):
            async with provider.sandbox(SPEC.model_copy(update={"lifetime_s": math.inf})):
                pass
        async with provider.sandbox(SPEC, acquire_timeout_s=20) as box:
            assert 0 == (await box.run("true", timeout_s=20)).exit_code


def pending(**waiting: Any) -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {"phase": "Pending", "conditions": [scheduled], "containerStatuses": [container(waiting=waiting)]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3: no cpu"}],
}


STUCK = [
    (UNSCHEDULABLE, Unschedulable, "0/3: no cpu"),
    (pending(reason="ErrImagePull", message="name@sha256:1: not found"), ImageError, "not found"),
    (pending(reason="RunContainerError", message='exec: "bash": not in $PATH'), CreateError, "bash"),
    ({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough"}, CreateError, "rejected_by_node"),
]


@pytest.mark.parametrize(("status", "kind", "words"), STUCK)
async def test_a_pod_that_does_not_start_is_a_typed_error_and_is_deleted(
    cluster: StandIn, config: KubernetesConfig, status: dict[str, Any], kind: type[Exception], words: str
) -> None:
    """Each reason is an error of its own, with the cluster's words; the pod goes."""
    cluster.status_of_new = lambda pod: status

    async with open_provider(config) as provider:
        with pytest.raises(kind, match=words):
            async with provider.sandbox(SPEC):
                pass
        with anyio.fail_after(5):
            while cluster.pods:
                await anyio.sleep(0.01)


async def test_a_callers_deadline_says_where_it_waited(cluster: StandIn, config: KubernetesConfig) -> None:
    """`AcquireTimeout` names the phase and the scheduler's reason."""
    cluster.status_of_new = lambda pod: UNSCHEDULABLE

    async with open_provider(config) as provider:
        with pytest.raises(AcquireTimeout, match=r"schedule.*no cpu") as late:
            async with provider.sandbox(SPEC, acquire_timeout_s=0.9):
                pass
    assert late.value.waited_in["schedule"] > 0.1


async def test_a_watch_that_is_too_old_begins_again_from_a_list(cluster: StandIn, config: KubernetesConfig) -> None:
    """410 means list: a sandbox is made all the same."""
    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC):
            pass
        cluster.oldest = 10**9
        refused = itertools.repeat((410, "Expired", "too old"), 2)
        cluster.refuse = lambda verb, kind: next(refused, None) if verb == "WATCH" else None
        cluster.oldest = 0
        async with provider.sandbox(SPEC) as box:
            assert 0 == (await box.run("true", timeout_s=20)).exit_code


async def test_an_unguarded_provider_makes_no_sandbox_with_egress_denied(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """What nobody proves nobody promises."""
    async with open_provider(config) as provider:
        with pytest.raises(ProviderUnavailable, match="unguarded"):
            async with provider.sandbox(SPEC.model_copy(update={"egress": "denied"})):
                pass
