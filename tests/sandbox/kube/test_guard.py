"""What counts as a guard, who hears that there is none, and what counts as a dead run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
import yaml

from sandbox.config import KubernetesConfig, PacingConfig, open_provider
from sandbox.errors import AcquireTimeout, CreateError, ImageError, ProviderUnavailable
from sandbox.kube import guard
from sandbox.kube.api import Api
from sandbox.kube.box import KubeSandbox
from sandbox.kube.guard import Guard, Proof, denies_egress, guards_ingress
from sandbox.kube.janitor import Marked, ownerless
from sandbox.kube.lease import Lease, parse_lease
from sandbox.kube.manifest import EGRESS_LABEL, SANDBOX_LABEL, WORKER_LABEL
from sandbox.provider import Provider
from sandbox.spec import SandboxSpec
from tests.sandbox.kube.pods import waiting
from tests.sandbox.kube.standin import StandIn

CANARY = ("10.0.0.1", 443)


def shipped(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(files("sandbox.kube").joinpath("deploy", file).read_text()))


def test_the_shipped_policies_are_the_ones_that_the_guard_looks_for() -> None:
    """One guards ingress to every sandbox, one denies egress to those that asked for it, and neither does both."""
    policies = shipped("network-policies.yaml")

    assert [True, False] == [guards_ingress(policy) for policy in policies]
    assert [False, True] == [denies_egress(policy) for policy in policies]


def test_the_shipped_ingress_policy_lets_workers_in_at_execds_port_and_nobody_else() -> None:
    """Its only peer is the worker label in the same namespace, its only port the config's default."""
    [rule] = shipped("network-policies.yaml")[0]["spec"]["ingress"]

    assert [{"podSelector": {"matchLabels": {WORKER_LABEL: "true"}}}] == rule["from"]
    assert [{"protocol": "TCP", "port": KubernetesConfig().port}] == rule["ports"]


def test_the_shipped_role_holds_no_more_than_the_provider_uses() -> None:
    """Nothing outside the namespace, no exec, no secrets, no wildcard."""
    kinds = {thing["kind"]: thing for thing in shipped("access.yaml")}
    rules = kinds["Role"]["rules"]

    assert {"ServiceAccount", "Role", "RoleBinding"} == kinds.keys()
    assert {"pods", "events", "configmaps", "leases", "networkpolicies"} == {
        name for rule in rules for name in rule["resources"]
    }
    assert "*" not in {verb for rule in rules for verb in rule["verbs"]}


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"app": "other"}},
        {"matchLabels": {SANDBOX_LABEL: "true", EGRESS_LABEL: "open"}},
        {"matchExpressions": [{"key": "x", "operator": "Exists"}]},
    ],
)
def test_a_policy_that_selects_other_pods_is_no_guard(selector: dict[str, Any]) -> None:
    """Only what surely selects the denied sandboxes counts."""
    policy = {"spec": {"podSelector": selector, "policyTypes": ["Egress"]}}

    assert not denies_egress(policy)


def test_a_policy_for_all_pods_of_the_namespace_counts() -> None:
    """An empty selector takes every pod; a policy without the type says nothing."""
    assert denies_egress({"spec": {"podSelector": {}, "policyTypes": ["Egress"]}})
    assert not denies_egress({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}})


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        (Proof(CANARY, True, False, False), None),
        (Proof(CANARY, False, False, False), "nothing is proved"),
        (Proof(CANARY, True, True, False), "with egress denied reaches 10.0.0.1:443"),
        (Proof(CANARY, True, False, True), "reaches another's execd"),
    ],
)
def test_a_guard_holds_only_if_all_three_looks_say_so(proof: Proof, words: str | None) -> None:
    """A canary that nobody reaches proves nothing; a leak and an entry are told apart."""
    complaint = proof.complaint()

    assert (words is None) == (complaint is None)
    assert words is None or words in str(complaint)


@pytest.mark.anyio
@pytest.mark.parametrize("server", ["https://127.0.0.1:6443", "https://localhost:6443", "https://[::1]:6443"])
async def test_a_loopback_server_is_no_canary(server: str) -> None:
    """A pod's loopback is its own: without `canary` such a cluster is refused, with the setting that mends it."""
    api, config = cast("Api", SimpleNamespace(server=server)), KubernetesConfig()

    with pytest.raises(ProviderUnavailable, match="set `canary`"):
        await Guard(api, config, no_sandbox).canary()

    given = config.model_copy(update={"canary": CANARY})
    assert CANARY == await Guard(api, given, no_sandbox).canary()


@pytest.mark.anyio
async def test_the_canary_is_an_address_and_never_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A denied pod without DNS would prove nothing about addresses, so the worker looks the name up."""

    async def found(self: object, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert "api.example" == host
        return [(0, 0, 0, "", ("2001:db8::1", port, 0, 0)), (0, 0, 0, "", ("203.0.113.7", port))]

    monkeypatch.setattr(type(asyncio.get_running_loop()), "getaddrinfo", found)
    api = cast("Api", SimpleNamespace(server="https://api.example"))

    assert ("203.0.113.7", 443) == await Guard(api, KubernetesConfig(), no_sandbox).canary()


POLICY = {"spec": {"podSelector": {}, "policyTypes": ["Egress", "Ingress"]}}
GOOD = SandboxSpec(image="good@sha256:" + "1" * 64)
BAD = SandboxSpec(image="bad@sha256:" + "2" * 64)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandIn]:
    """It has the policies, and lets every pod reach every other; of the canary nobody hears."""
    monkeypatch.setattr(guard, "LAG_S", 0.0)
    async with StandIn(tmp_path).serve() as stand_in:
        stand_in.policies = [POLICY]
        yield stand_in


@pytest.fixture
def config(cluster: StandIn) -> KubernetesConfig:
    return KubernetesConfig(kubeconfig=cluster.kubeconfig(), canary=("192.0.2.1", 1))


async def denied(provider: Provider, spec: SandboxSpec, timeout_s: float = 30.0) -> Exception:
    """Why there is no sandbox with egress denied."""
    try:
        async with provider.sandbox(spec, acquire_timeout_s=timeout_s):
            return AssertionError("there is one")
    except Exception as error:
        return error


@pytest.mark.anyio
async def test_an_image_that_cannot_be_had_is_told_to_those_who_asked_for_it_alone(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """The others hear what the next proof, with an image of theirs, says about the guard."""

    def status(pod: dict[str, Any]) -> dict[str, Any] | None:
        bad = pod["spec"]["containers"][0]["image"] == BAD.image
        return waiting("ErrImagePull", "manifest unknown")["status"] if bad else None

    cluster.status_of_new = status
    async with open_provider(config) as provider:
        heard = await asyncio.gather(*(denied(provider, spec) for spec in (BAD, BAD, GOOD, GOOD, GOOD)))

    assert [ImageError] * 2 + [ProviderUnavailable] * 3 == [type(error) for error in heard]
    assert 1 + 2 == cluster.requests.count(("POST", "pods"))


@pytest.mark.anyio
async def test_an_accident_of_one_proof_is_told_to_the_caller_whose_it_was_alone(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """A sandbox of the proof that is lost is no answer to who waits for another one; they try again."""
    lost: list[str] = []

    def status(pod: dict[str, Any]) -> dict[str, Any] | None:
        if lost:
            return None
        lost.append(pod["metadata"]["name"])
        return {"phase": "Failed", "reason": "Evicted"}

    cluster.status_of_new = status
    async with open_provider(config) as provider:
        heard = await asyncio.gather(*(denied(provider, GOOD) for _ in range(3)))

    assert [CreateError, ProviderUnavailable, ProviderUnavailable] == [type(error) for error in heard]


@pytest.mark.anyio
async def test_who_waits_for_the_proof_of_another_waits_no_longer_than_it_may(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """Its own time counts, not that of whoever began."""
    cluster.slow_s["GET", "networkpolicies"] = 5.0
    async with open_provider(config) as provider, asyncio.TaskGroup() as group:
        first = group.create_task(denied(provider, GOOD))
        with anyio.fail_after(2):
            assert isinstance(await denied(provider, GOOD, timeout_s=0.3), AcquireTimeout)
        first.cancel()


@pytest.mark.anyio
async def test_a_provider_that_closes_while_the_guard_is_proved_answers_who_waits(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """And who asks later: as an error, not as a cancellation that nobody asked for."""
    cluster.slow_s["GET", "networkpolicies"] = 5.0
    async with open_provider(config) as provider:
        callers = [asyncio.create_task(denied(provider, GOOD)) for _ in range(3)]
        with anyio.fail_after(5):
            while ("GET", "networkpolicies") not in cluster.requests:
                await anyio.sleep(0.01)

    with anyio.fail_after(2):
        heard = [*await asyncio.gather(*callers, return_exceptions=True), await denied(provider, GOOD)]
    assert [CreateError] * 4 == [type(error) for error in heard]
    assert all("closed" in str(error) for error in heard)


@pytest.mark.anyio
async def test_a_guard_that_the_limits_leave_no_room_to_prove_is_refused_at_once(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """The proof needs two sandboxes that live together: nothing is made, and the limit is named."""
    alone = config.model_copy(update={"pacing": PacingConfig(max_live=1)})

    async with open_provider(alone) as provider:
        with anyio.fail_after(2), pytest.raises(ProviderUnavailable, match=r"`pacing\.max_live` is 1: raise it"):
            async with provider.sandbox(GOOD):
                pass
    assert ("POST", "pods") not in cluster.requests


def no_sandbox(_: SandboxSpec) -> AbstractAsyncContextManager[KubeSandbox]:
    raise AssertionError("no sandbox is needed to find the canary")


def lease(name: str, renewed_at: float | None) -> Lease:
    return Lease(name, "u", "1", "host/1", renewed_at, duration_s=60.0)


def test_only_pods_of_dead_runs_are_ownerless() -> None:
    """Expired and missing leases make orphans; a living run's pods stay, also within the clock's margin."""
    leases = {"alive": lease("alive", 1000.0), "late": lease("late", 937.0), "dead": lease("dead", 900.0)}
    pods = [Marked(f"of-{name}", "u", name) for name in ("alive", "late", "dead", "never-was")]

    assert ["of-dead", "of-never-was"] == [pod.name for pod in ownerless(pods, leases, 1001.0)]


def test_a_lease_is_read_from_the_servers_json() -> None:
    """Its renewal is in seconds since the epoch; one that was never renewed counts as expired."""
    raw = {
        "metadata": {"name": "l", "uid": "u", "resourceVersion": "7"},
        "spec": {"renewTime": "1970-01-01T00:01:40.500000Z", "leaseDurationSeconds": 30, "holderIdentity": "h/1"},
    }

    assert Lease("l", "u", "7", "h/1", 100.5, 30.0) == parse_lease(raw)
    assert lease("new", None).expired(0.0)
