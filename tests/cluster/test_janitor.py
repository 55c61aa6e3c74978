"""The janitor as it is shipped: the CronJob of `sandbox/kube/deploy`, with its role, in a pod of the cluster."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.kube.api import Api
from sandbox.kube.lease import CLOCK_MARGIN_S
from tests.cluster.conftest import FAST, KUBE_DIR, a_canary, leases_of, pods_of
from tests.cluster.faults import foreign_pod
from tests.cluster.hands import is_here
from tests.cluster.images import forget, name_by_digest
from tests.cluster.kills import VICTIM_LEASE_S
from tests.cluster.mkimage import add_layer

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = (3, 11)
"""Of the node's image `localhost/py`: what is compiled for another cannot be put on it."""
BASE = ("kubernetes", "anyio", "httpx", "pydantic", "pydantic-settings", "stamina", "structlog")
"""What `sandbox` imports of the project's dependencies, without those that only the local provider and grading need."""


@pytest.fixture(scope="module")
def janitor_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The project's own wheel and what it needs, on the node's Python image; by digest."""
    if not is_here():
        pytest.skip("images can be loaded only into the node of tests/cluster/up")
    if sys.version_info[:2] != PYTHON:
        pytest.skip("the node's Python image needs packages of a Python 3.11, and this is another")
    folder, name = tmp_path_factory.mktemp("janitor"), f"localhost/sandman-janitor-{secrets.token_hex(4)}"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    add_layer(KUBE_DIR / "images" / "py.tar", packages(wheel), f"{name}:1", folder / "image.tar")
    subprocess.run([Path(__file__).with_name("load"), folder / "image.tar"], check=True, capture_output=True)
    reference = name_by_digest(f"{name}:1")
    yield reference
    forget(reference)


def packages(wheel: Path) -> bytes:
    """A layer: the wheel, the distributions that it needs as they are installed here, and a `python`."""
    out = io.BytesIO()
    home = f"usr/local/lib/python{PYTHON[0]}.{PYTHON[1]}/dist-packages"
    with tarfile.open(fileobj=out, mode="w") as layer:
        link = tarfile.TarInfo("usr/local/bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
        layer.addfile(link)
        with zipfile.ZipFile(wheel) as ours:
            for name in ours.namelist():
                _put(layer, f"{home}/{name}", ours.read(name))
        for distribution in needed(BASE):
            for file in distribution.files or ():
                path = Path(str(distribution.locate_file(file)))
                if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
                    _put(layer, f"{home}/{file}", path.read_bytes())
    return out.getvalue()


def _put(layer: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    layer.addfile(member, io.BytesIO(data))


def needed(names: tuple[str, ...]) -> list[importlib.metadata.Distribution]:
    """These distributions and all that they require here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system or an extra; what is missing in truth fails the janitor
        required = found[name].requires or []
        waiting += [re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0] for one in required]
    return list(found.values())


def kubectl(*words: str | Path, stdin: str | None = None) -> str:
    """Its output."""
    kubeconfig = os.environ.get("KUBECONFIG") or str(KUBE_DIR / "pki" / "admin.kubeconfig")
    line = [KUBE_DIR / "bin" / "kubectl", "--kubeconfig", kubeconfig, *words]
    return subprocess.run(line, input=stdin, check=True, capture_output=True, text=True, timeout=60).stdout


async def deployed(admin: Api, namespace: str, image: str, folder: Path) -> None:
    """Apply the shipped kustomization, with another namespace and the janitor's image, as docs/kubernetes.md says.

    Changed for this cluster alone: servers before 1.21 know the CronJob as batch/v1beta1; the node has no kube-proxy,
    so that the API server is named by its endpoint; and it is suspended, so that it runs when the test says.
    """
    shutil.copytree(Path(str(files("sandbox.kube"))) / "deploy", folder)
    name, _, digest = image.partition("@")
    file = folder / "kustomization.yaml"
    settings = yaml.safe_load(file.read_text())
    settings |= {"namespace": namespace, "images": [{"name": "sandman-grader", "newName": name, "digest": digest}]}
    file.write_text(yaml.safe_dump(settings))
    objects = [one for one in yaml.safe_load_all(kubectl("kustomize", folder)) if one["kind"] != "Namespace"]
    (cron,) = [one for one in objects if one["kind"] == "CronJob"]
    assert "batch/v1" == cron["apiVersion"]
    known = (await admin.call("GET", "/apis/batch/v1"))["resources"]
    if "cronjobs" not in {one["name"] for one in known}:
        cron["apiVersion"] = "batch/v1beta1"
    host, port = await a_canary(admin)
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    where = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    container["env"] = [{"name": key, "value": value} for key, value in where.items()]
    cron["spec"]["suspend"] = True
    kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(objects))


@contextmanager
def a_run_to_die(kubeconfig: Path, namespace: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that asks for twenty sandboxes in vain."""
    line = [sys.executable, "-m", "tests.cluster.kills", str(kubeconfig), namespace]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


async def the_word_of(admin: Api, namespace: str, job: str) -> dict[str, Any]:
    """What the job's pod printed, once it is done."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with anyio.fail_after(120):
        while True:
            (pod,) = (await admin.call("GET", f"{pods}?labelSelector=job-name%3D{job}"))["items"] or [None]
            if pod is not None and pod["status"]["phase"] in {"Succeeded", "Failed"}:
                break
            await anyio.sleep(0.2)
    said = kubectl("logs", "-n", namespace, pod["metadata"]["name"])
    assert "Succeeded" == pod["status"]["phase"], said
    return dict(json.loads(said))


async def test_the_shipped_cronjob_deletes_what_a_dead_run_left_and_nothing_else(
    admin: Api, config: Callable[..., KubernetesConfig], image: str, janitor_image: str, tmp_path: Path
) -> None:
    """Pods of a killed run and its lease go. A run that lives keeps its sandbox, which works on; pods of others stay,
    also one that bears a part of our marks."""
    ours = config(pacing=FAST)
    assert ours.namespace is not None and ours.kubeconfig is not None
    namespace = ours.namespace
    await deployed(admin, namespace, janitor_image, tmp_path / "deploy")
    halfway = foreign_pod("halfway")
    halfway["metadata"] = {"name": "halfway", "labels": {"sandman-grader/sandbox": "true", "sandman-grader/lease": "x"}}
    for stranger in (foreign_pod("foreign"), halfway):
        await admin.call("POST", f"/api/v1/namespaces/{namespace}/pods", stranger)

    async with open_provider(ours) as provider, provider.sandbox(SandboxSpec(image=image, egress="open")) as box:
        kept = set(await pods_of(admin, namespace))
        leases = set(await leases_of(admin, namespace))
        with a_run_to_die(ours.kubeconfig, namespace):
            with anyio.fail_after(60):
                while len(orphans := set(await pods_of(admin, namespace)) - kept) < 20:
                    await anyio.sleep(0.1)
            died_of = set(await leases_of(admin, namespace)) - leases
        await anyio.sleep(VICTIM_LEASE_S + CLOCK_MARGIN_S + 1)
        kubectl("create", "job", "-n", namespace, "--from=cronjob/sandman-grader-janitor", "now")
        swept = await the_word_of(admin, namespace, "now")
        with anyio.fail_after(30):
            while orphans & set(await pods_of(admin, namespace)):
                await anyio.sleep(0.1)
        left = {name for name in await pods_of(admin, namespace) if not name.startswith("now-")}
        works = await box.run("echo on", timeout_s=20)

    assert (orphans, died_of) == (set(swept["deleted"]), set(swept["leases"]))
    assert (1, []) == (swept["kept"], swept["failed"])
    assert kept == left == {"foreign", "halfway", box.identity.sandbox_id}
    assert b"on\n" == works.output
