"""A real cluster for tests marked `cluster`: `$KUBECONFIG`, or the one that `tests/cluster/up` brought up."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import ssl
import urllib.request
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PacingConfig
from sandbox.errors import SandboxError
from sandbox.kube.api import Api, ApiFailure, open_api
from sandbox.testing import Subject

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandman-grader" / "kube"
FAST = PacingConfig(creates_per_s=50, burst=25)
KUBE_DIR = Path(os.environ.get("KUBE_DIR") or CACHE)


@contextmanager
def cluster_held(*, exclusively: bool = False) -> Iterator[None]:
    """Among the tests that run at the same time: the cluster of `up` is not stopped in part by another one meanwhile;
    `exclusively`: no other one uses it."""
    if not (KUBE_DIR / "run").is_dir():
        yield
        return
    with (KUBE_DIR / "run" / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH)
        yield


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Each test of this folder has the cluster whole."""
    with cluster_held():
        yield


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """Of a cluster that this user may do anything in."""
    given = os.environ.get("KUBECONFIG")
    file = Path(given) if given else KUBE_DIR / "pki" / "admin.kubeconfig"
    if not file.is_file():
        pytest.skip("no cluster: run tests/cluster/up as root, or set KUBECONFIG")
    return file


@pytest.fixture(scope="module")
async def admin(kubeconfig: Path) -> AsyncIterator[Api]:
    """The API server, as its administrator."""
    try:
        async with open_api(KubernetesConfig(kubeconfig=kubeconfig)) as api:
            await api.call("GET", "/version", timeout_s=5)
            yield api
    except (ApiFailure, SandboxError) as failure:
        pytest.skip(f"no cluster answers: {failure}; run tests/cluster/up as root, or set KUBECONFIG")


@pytest.fixture
async def namespace(admin: Api) -> AsyncIterator[str]:
    """A namespace of the test's own, with the objects that docs/kubernetes.md asks for."""
    async with a_namespace(admin) as name:
        yield name


@asynccontextmanager
async def a_namespace(admin: Api, *, policies: bool = True) -> AsyncIterator[str]:
    name = f"sandman-test-{secrets.token_hex(5)}"
    await admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        await _default_account(admin, name)
        if policies:
            for policy in deployed("network-policies.yaml"):
                path = f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies"
                await admin.call("POST", path, policy)
        yield name
    finally:
        await admin.call("DELETE", f"/api/v1/namespaces/{name}")


def deployed(file: str) -> list[dict[str, Any]]:
    """The objects of one of the manifests that we ship."""
    text = files("sandbox.kube").joinpath("deploy", file).read_text()
    return [dict(one) for one in yaml.safe_load_all(text)]


async def _default_account(admin: Api, namespace: str) -> None:
    """Pods are admitted only once the namespace has its service account."""
    with anyio.fail_after(30):
        while True:
            try:
                await admin.call("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
                return
            except ApiFailure:
                await anyio.sleep(0.05)


@pytest.fixture(scope="module")
async def image(admin: Api) -> str:
    """An image that the nodes have, by digest: `$SANDMAN_TEST_IMAGE`, or the one of `tests/cluster/up`."""
    nodes = (await admin.call("GET", "/api/v1/nodes"))["items"]
    ready = [
        node["metadata"]["name"]
        for node in nodes
        for condition in node["status"].get("conditions") or []
        if condition["type"] == "Ready" and condition["status"] == "True" and "fake" not in node["metadata"]["name"]
    ]
    if not ready:
        pytest.skip("the cluster has no Ready node: run tests/cluster/up without --api")
    noted = KUBE_DIR / "run" / "py.ref"
    given = os.environ.get("SANDMAN_TEST_IMAGE") or (noted.read_text().strip() if noted.is_file() else "")
    if not given:
        pytest.skip("no image is named: set SANDMAN_TEST_IMAGE to an image with bash, Python and git, by digest")
    return given


@pytest.fixture
def config(kubeconfig: Path, namespace: str) -> Callable[..., KubernetesConfig]:
    """Makes the provider's config for this test's namespace."""

    def make(**changes: Any) -> KubernetesConfig:
        return KubernetesConfig(**{"kubeconfig": kubeconfig, "namespace": namespace, **changes})

    return make


@pytest.fixture(scope="module")
def spec(image: str) -> SandboxSpec:
    return SandboxSpec(image=image, egress="denied")


@pytest.fixture(scope="module")
async def shared(admin: Api) -> AsyncIterator[str]:
    """A namespace for all tests of a module."""
    async with a_namespace(admin) as namespace:
        yield namespace


@pytest.fixture(scope="module")
async def subject(admin: Api, kubeconfig: Path, shared: str, spec: SandboxSpec) -> AsyncIterator[Subject]:
    canary = await a_canary(admin)
    config = KubernetesConfig(kubeconfig=kubeconfig, namespace=shared, canary=canary, pacing=FAST)
    async with open_provider(config) as provider:
        yield Subject(provider, spec, canary)


async def pods_of(admin: Api, namespace: str) -> list[str]:
    """Names of the pods in a namespace. A server that is too busy to answer is asked again."""
    for pause_s in (1, 5, 15, 0):
        try:
            answer = await admin.call("GET", f"/api/v1/namespaces/{namespace}/pods")
            return [item["metadata"]["name"] for item in answer.get("items") or []]
        except ApiFailure as failure:
            if failure.status != 0 or not pause_s:
                raise
            await anyio.sleep(pause_s)
    raise AssertionError("unreachable")


def left_in(kubeconfig: Path, namespace: str) -> list[str]:
    """A line for each pod and each lease in a namespace, by a client that shares nothing with the provider's."""
    document = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    tls = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())
    lines = []
    for kind, path in (("sandbox", "/api/v1"), ("lease", "/apis/coordination.k8s.io/v1")):
        plural = "pods" if kind == "sandbox" else "leases"
        request = urllib.request.Request(
            f"{cluster['server']}{path}/namespaces/{namespace}/{plural}",
            headers={"Authorization": f"Bearer {user['token']}"},
        )
        with urllib.request.urlopen(request, context=tls, timeout=10) as answer:
            lines += [f"{kind} {item['metadata']['name']}" for item in json.load(answer)["items"]]
    return lines


async def leases_of(admin: Api, namespace: str) -> list[str]:
    """Names of the leases in a namespace."""
    answer = await admin.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    return [item["metadata"]["name"] for item in answer.get("items") or []]


async def a_canary(admin: Api) -> tuple[str, int]:
    """The API server as pods reach it: at its endpoint, not at the loopback address that we may use."""
    endpoints = await admin.call("GET", "/api/v1/namespaces/default/endpoints/kubernetes")
    return str(endpoints["subsets"][0]["addresses"][0]["ip"]), int(endpoints["subsets"][0]["ports"][0]["port"])
