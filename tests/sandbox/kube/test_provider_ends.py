"""The provider before a stand-in for a cluster: how its pods end, and its deletes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets

import anyio
import pytest

from sandbox import KubernetesConfig, execs, open_provider
from sandbox.errors import (
    CreateError,
    DeletedByAnother,
    NodeLost,
    OutOfMemory,
    Replaced,
    SandboxLost,
)
from sandbox.kube import ownership
from tests.sandbox.kube.pods import container
from tests.sandbox.kube.provided import SPEC, cluster, config, lost
from tests.sandbox.kube.standin import StandIn

__all__ = ["cluster", "config"]  # fixtures

pytestmark = pytest.mark.anyio


async def test_the_end_of_a_pod_in_use_is_told_by_its_cause(cluster: StandIn, config: KubernetesConfig) -> None:
    """Out of memory, a lost node, deleted by another and replaced: each its own error for the command that ran."""

    def oom(name: str) -> None:
        state = {"exitCode": 137, "reason": "OOMKilled"}
        cluster.set_status(name, phase="Failed", containerStatuses=[container(terminated=state)])
        cluster.kill(name)

    def node_lost(name: str) -> None:
        cluster.set_status(name, phase="Unknown", reason="NodeLost")
        cluster.kill(name)

    def replaced(name: str) -> None:
        body = {**cluster.pods[name], "spec": {**cluster.pods[name]["spec"]}}
        cluster.vanish(name)
        cluster.status_of_new = lambda pod: {"phase": "Pending"}
        cluster.create(body)
        cluster.status_of_new = lambda pod: None

    cases = [(oom, OutOfMemory), (node_lost, NodeLost), (cluster.vanish, DeletedByAnother), (replaced, Replaced)]
    async with open_provider(config) as provider:
        for happens, kind in cases:
            async with provider.sandbox(SPEC) as box:
                name = box.identity.sandbox_id
                with pytest.raises(kind) as told:
                    async with asyncio.TaskGroup() as group:
                        running = group.create_task(lost(box.run("sleep 600", timeout_s=600)))
                        await anyio.sleep(0.2)
                        happens(name)
                    raise running.result()
                assert name in str(told.value)


@pytest.mark.parametrize("closing", [False, True], ids=["the sandbox is left", "the provider closes"])
async def test_a_command_that_is_left_running_hears_that_its_sandbox_was_released(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    """As a command does that is asked for afterwards; nobody else is said to have deleted it."""
    monkeypatch.setattr(execs, "_RESUME_DELAYS_S", (0.0, 0.1))
    async with contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(open_provider(config))
        async with contextlib.AsyncExitStack() as caller:
            box = await caller.enter_async_context(provider.sandbox(SPEC))
            running = asyncio.create_task(lost(box.run("sleep 600", timeout_s=600)))
            await anyio.sleep(0.2)
            if closing:
                await stack.aclose()
        with anyio.fail_after(20):
            told = await running

    assert SandboxLost is type(told)
    assert "released" == told.cause


async def test_a_pod_whose_labels_are_taken_away_is_used_and_deleted(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watch says that it is no more, and tells nothing of its end: both are looked up."""
    monkeypatch.setattr(ownership, "FIRST_LOOK_S", 0.2)
    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC) as box:
            cluster.take_labels(box.identity.sandbox_id)
            await anyio.sleep(0.2)
            assert 0 == (await box.run("true", timeout_s=20)).exit_code
        assert hasattr(provider, "pending")
        with anyio.fail_after(5):
            while provider.pending:
                await anyio.sleep(0.01)

    assert ({}, {}) == (cluster.pods, cluster.leases)


async def test_a_delete_that_fails_is_tried_again_and_listed(cluster: StandIn, config: KubernetesConfig) -> None:
    """While the server refuses, the pod is in `pending`; afterwards it goes."""
    failing = itertools.repeat((500, "InternalError", "no"), 3)
    cluster.refuse = lambda verb, kind: next(failing, None) if (verb, kind) == ("DELETE", "pods") else None

    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC) as box:
            pass
        assert hasattr(provider, "pending")
        await anyio.sleep(0.05)
        assert (box.identity.sandbox_id,) == provider.pending
        with anyio.fail_after(10):
            while cluster.pods:
                await anyio.sleep(0.01)

    assert 4 == cluster.requests.count(("DELETE", "pods"))


async def test_a_delete_that_is_throttled_waits_as_the_server_asks(cluster: StandIn, config: KubernetesConfig) -> None:
    """And is sent again then."""
    asked_at: list[float] = []

    def refuse(verb: str, kind: str) -> tuple[int, str, str] | None:
        if (verb, kind) != ("DELETE", "pods"):
            return None
        asked_at.append(anyio.current_time())
        return (429, "TooManyRequests", "later") if len(asked_at) == 1 else None

    cluster.refuse, cluster.retry_after_s = refuse, 1
    async with open_provider(config) as provider, provider.sandbox(SPEC):
        pass

    first, second = asked_at
    assert 1 <= second - first
    assert {} == cluster.pods


NO_PROOFS = [(409, "Conflict", "admission webhook denied the request"), (404, "", "404 page not found")]


@pytest.mark.parametrize("answer", NO_PROOFS, ids=["a webhook's conflict", "a proxy's 404"])
async def test_a_delete_is_over_when_the_server_says_so_of_the_pod(
    cluster: StandIn, config: KubernetesConfig, answer: tuple[int, str, str]
) -> None:
    """Whatever else refuses it: the pod stays in `pending` and is deleted once that is over, and the lease last."""
    answers = itertools.repeat(answer, 2)
    cluster.refuse = lambda verb, kind: next(answers, None) if (verb, kind) == ("DELETE", "pods") else None

    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC) as box:
            pass
        assert hasattr(provider, "pending")
        await anyio.sleep(0.05)
        assert (box.identity.sandbox_id,) == provider.pending

    assert ({}, {}) == (cluster.pods, cluster.leases)


async def test_a_pod_of_our_name_that_is_not_ours_is_left_alone(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger under the name that we chose: the create fails, the stranger stays."""
    monkeypatch.setattr(secrets, "token_hex", lambda size=16: "ab" * size)
    cluster.status_of_new = lambda pod: {"phase": "Pending"}
    cluster.create({"metadata": {"name": "sandman-grader-" + "ab" * 8, "labels": {}}, "spec": {}})

    async with open_provider(config) as provider:
        with pytest.raises(CreateError, match="not ours"):
            async with provider.sandbox(SPEC):
                pass

    assert ["sandman-grader-" + "ab" * 8] == list(cluster.pods)
