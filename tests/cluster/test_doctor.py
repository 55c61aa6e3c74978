"""The doctor, and the shipped role: with it everything works, and each permission that is taken away is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PhaseBudgets
from sandbox.finding import Asked
from sandbox.kube.api import Api
from sandbox.kube.doctor import PERMISSIONS, examine
from sandbox.kube.sweep import sweep_once
from tests.cluster.conftest import a_canary, a_namespace, deployed, pods_of

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]


async def with_the_role(
    admin: Api, namespace: str, kubeconfig: Path, into: Path, without: tuple[str, str] | None
) -> Path:
    """A kubeconfig of a service account that has the shipped role, less one verb on one resource."""
    for thing in deployed("access.yaml"):
        plural = {"ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings"}[thing["kind"]]
        group = "/api/v1" if plural == "serviceaccounts" else "/apis/rbac.authorization.k8s.io/v1"
        if plural == "roles" and without is not None:
            for rule in thing["rules"]:
                if without[0] in rule["resources"]:
                    rule["verbs"] = [verb for verb in rule["verbs"] if verb != without[1]]
            thing["rules"] = [rule for rule in thing["rules"] if rule["verbs"]]
        if plural == "rolebindings":
            thing["subjects"][0]["namespace"] = namespace
        await admin.call("POST", f"{group}/namespaces/{namespace}/{plural}", thing)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/sandman-grader/token"
    token = (await admin.call("POST", path, request))["status"]["token"]
    document = yaml.safe_load(kubeconfig.read_text())
    document["users"] = [{"name": document["contexts"][0]["context"]["user"], "user": {"token": token}}]
    into.write_text(yaml.safe_dump(document))
    return into


async def test_with_the_shipped_role_all_is_well(
    admin: Api, namespace: str, kubeconfig: Path, image: str, tmp_path: Path
) -> None:
    """As the service account: the doctor finds nothing in the way, tries a sandbox and proves the guard, the janitor
    sweeps, a sandbox with egress denied runs, and nothing is left."""
    limited = await with_the_role(admin, namespace, kubeconfig, tmp_path / "limited", None)
    config = KubernetesConfig(kubeconfig=limited, namespace=namespace, canary=await a_canary(admin))

    findings = await examine(config, image=image)
    swept = await sweep_once(config)
    async with open_provider(config) as provider, provider.sandbox(SandboxSpec(image=image)) as box:
        ran = await box.run("echo on", timeout_s=20)

    levels = {one.check: one.level for one in findings}
    assert "note" == levels.pop("capacity")  # nodes are not the role's to see
    assert {"ok"} == set(levels.values()), findings
    assert {"round trip", "guard", "image", "permissions", "clock"} <= levels.keys()
    assert () == swept.failed
    assert b"on\n" == ran.output
    assert [] == await pods_of(admin, namespace)


@pytest.mark.parametrize("taken", [(what, verb) for _, what, verbs, _ in PERMISSIONS for verb in verbs], ids=" ".join)
async def test_a_missing_permission_is_named(
    admin: Api, namespace: str, kubeconfig: Path, tmp_path: Path, taken: tuple[str, str]
) -> None:
    """Without one verb on one resource the doctor names exactly that, and the rule that gives it."""
    limited = await with_the_role(admin, namespace, kubeconfig, tmp_path / "limited", taken)

    findings = await examine(KubernetesConfig(kubeconfig=limited, namespace=namespace), image=f"x@sha256:{'0' * 64}")
    (named,) = [one for one in findings if one.check == "permissions"]

    assert "error" == named.level
    assert f"may not {taken[1]} {taken[0]}" in named.said
    assert f"resources: [{taken[0]}], verbs: [{taken[1]}]}}" in named.said
    assert "not tried: mend the above first" == findings[-1].said


async def test_the_round_trip_and_the_guard_are_tried_out(
    admin: Api, config: Callable[..., KubernetesConfig], image: str
) -> None:
    """With an image the doctor makes sandboxes, proves the guard, tells each phase, and counts what is free."""
    findings = await examine(config(canary=await a_canary(admin)), image=image)
    by_check = {one.check: one for one in findings}

    assert {"ok"} == {one.level for one in findings}, findings
    assert {"queue_s", "schedule_s", "start_s", "daemon_s", "command_s", "total_s"} <= by_check[
        "round trip"
    ].facts.keys()
    free = by_check["capacity"].facts["room"]
    assert isinstance(free, int)
    assert free >= 1


async def test_more_than_the_nodes_have_is_told_beforehand(config: Callable[..., KubernetesConfig]) -> None:
    """A campaign that asks for more sandboxes than fit is warned; one whose sandboxes fit nowhere is in error."""
    many = await examine(config(), asked=Asked(sandboxes=100_000))
    large = await examine(config(), asked=Asked(memory_mib=1 << 30))

    assert ["warning"] == [one.level for one in many if one.check == "capacity"]
    assert ["error"] == [one.level for one in large if one.check == "capacity"]


async def test_the_quota_counts_and_not_the_cpus_that_a_sandbox_sees(config: Callable[..., KubernetesConfig]) -> None:
    """Where sandboxes see many CPUs and have the time of a tenth, room is counted by the tenth, as their pods ask."""
    seen = await examine(config(), asked=Asked(cpus=1000))
    paid = await examine(config(), asked=Asked(cpus=1000, cpu_quota=0.1))

    assert ["error", "ok"] == [one.level for one in (*seen, *paid) if one.check == "capacity"]


async def test_without_policies_or_namespace_the_doctor_says_what_to_apply(
    admin: Api, kubeconfig: Path, image: str
) -> None:
    """A namespace without the policies, and one that is not there, are told apart."""
    async with a_namespace(admin, policies=False) as bare:
        unguarded = await examine(KubernetesConfig(kubeconfig=kubeconfig, namespace=bare), image=image)
    absent = await examine(KubernetesConfig(kubeconfig=kubeconfig, namespace="sandman-not-there"))

    assert ["network-policies.yaml"] == [
        one.said.rpartition("/")[2] for one in unguarded if one.check == "policies" and one.level == "error"
    ]
    assert any(one.check == "namespace" and one.level == "error" and "is not there" in one.said for one in absent)


async def test_what_the_doctor_tries_it_tells_as_it_is(
    admin: Api, config: Callable[..., KubernetesConfig], image: str
) -> None:
    """A reference without a digest, an image that no registry has, and a canary that nothing can reach."""
    canary = await a_canary(admin)
    tagged = await examine(config(canary=canary), image="localhost/py:1")
    hasty = config(canary=canary, budgets=PhaseBudgets(pull_s=10))
    missing = await examine(hasty, image=f"localhost:1/py@sha256:{'0' * 64}")
    blind = await examine(config(canary=("192.0.2.1", 9)), image=image)

    assert [("image", "error")] == [(one.check, one.level) for one in tagged if one.level != "ok"]
    assert [("round trip", "error")] == [(one.check, one.level) for one in missing if one.level != "ok"]
    assert [("guard", "error")] == [(one.check, one.level) for one in blind if one.level != "ok"]
    assert "set `canary`" in blind[-1].said
