"""What counts as a guard, and what as a dead run: the pure parts, and the manifests that we ship."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
import yaml

from sandbox.config import KubernetesConfig
from sandbox.kube.guard import Proof, denies_egress, guards_ingress
from sandbox.kube.janitor import Marked, ownerless
from sandbox.kube.lease import Lease, parse_lease
from sandbox.kube.manifest import EGRESS_LABEL, SANDBOX_LABEL, WORKER_LABEL

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
