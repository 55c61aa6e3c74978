"""The doctor, and the shipped role: with it everything works, and each permission that is taken away is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.kube.api import Api
from sandbox.kube.doctor import PERMISSIONS, examine
from tests.cluster.conftest import a_canary, deployed, pods_of

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
    """The doctor finds nothing, a sandbox runs and is deleted, all as the service account."""
    limited = await with_the_role(admin, namespace, kubeconfig, tmp_path / "limited", None)
    config = KubernetesConfig(kubeconfig=limited, namespace=namespace)

    findings = await examine(config)
    async with open_provider(config) as provider, provider.sandbox(SandboxSpec(image=image, egress="open")) as box:
        ran = await box.run("echo on", timeout_s=20)

    assert {"ok"} == {one.level for one in findings}
    assert b"on\n" == ran.output
    assert [] == await pods_of(admin, namespace)


@pytest.mark.parametrize("taken", [(what, verb) for _, what, verbs, _ in PERMISSIONS for verb in verbs], ids=" ".join)
async def test_a_missing_permission_is_named(
    admin: Api, namespace: str, kubeconfig: Path, tmp_path: Path, taken: tuple[str, str]
) -> None:
    """Without one verb on one resource the doctor names exactly that."""
    limited = await with_the_role(admin, namespace, kubeconfig, tmp_path / "limited", taken)

    findings = await examine(KubernetesConfig(kubeconfig=limited, namespace=namespace))
    named = [one.said for one in findings if one.check == "permissions"]

    assert 1 == len(named)
    assert f"may not {taken[1]} {taken[0]}" in named[0]


async def test_the_round_trip_and_the_guard_are_tried_out(
    admin: Api, config: Callable[..., KubernetesConfig], image: str
) -> None:
    """With an image the doctor makes sandboxes, proves the guard and says how long the first command took."""
    findings = await examine(config(canary=await a_canary(admin)), image=image)

    assert {"server", "permissions", "policies", "leftovers", "round trip", "guard"} == {one.check for one in findings}
    assert {"ok"} == {one.level for one in findings}
