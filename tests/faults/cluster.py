"""The test cluster as its administrator sees it, with a client that shares nothing with the provider's; and the toy
task's image on its node."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import signal
import ssl
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.conftest import KUBE_DIR
from tests.cluster.images import ctr, name_by_digest
from tests.cluster.mkimage import add_layer

JSON = dict[str, Any]
RUN_DIR = KUBE_DIR / "run"


class Admin:
    """Calls to the API server. Raises `urllib.error.URLError`, of which `HTTPError` is one."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        document = yaml.safe_load(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self._server, self._token = cluster["server"], user["token"]
        self._tls = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())

    def call(self, method: str, path: str, body: JSON | None = None, *, timeout_s: float = 15) -> JSON:
        request = urllib.request.Request(
            self._server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, context=self._tls, timeout=timeout_s) as answer:
            return dict(json.load(answer))

    def pods(self, namespace: str) -> list[JSON]:
        return list(self.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"])

    def delete_pod(self, namespace: str, name: str) -> None:
        """At once, as somebody who cleans up would."""
        with contextlib.suppress(urllib.error.HTTPError):
            self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    @contextlib.contextmanager
    def namespace(self) -> Iterator[str]:
        """One of the test's own."""
        name = f"sandman-test-{secrets.token_hex(5)}"
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            deadline = time.monotonic() + 30
            while True:  # pods are admitted only once it has its service account
                try:
                    self.call("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default")
                    break
                except urllib.error.HTTPError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            yield name
        finally:
            self.call("DELETE", f"/api/v1/namespaces/{name}")

    @contextlib.contextmanager
    def without_node(self) -> Iterator[None]:
        """The cluster knows no node, for the length of the `with`."""
        (node,) = self.call("GET", "/api/v1/nodes")["items"]
        path = f"/api/v1/nodes/{node['metadata']['name']}"
        self.call("DELETE", path)
        kept = {name: node["metadata"][name] for name in ("name", "labels", "annotations")}
        try:
            yield
        finally:
            again = {"metadata": kept, "spec": {}, "status": node["status"]}
            self.call("POST", "/api/v1/nodes", again)

    def answers(self) -> bool:
        try:
            self.call("GET", "/readyz/ping", timeout_s=3)
        except ValueError:  # it says `ok`, which is no JSON
            return True
        except OSError:
            return False
        return True


# -- the programs of tests/cluster/up ----------------------------------------------------------------------------------


def pid_of(name: str) -> int:
    """Of a program that `up` started."""
    return int((RUN_DIR / f"{name}.pid").read_text())


@contextlib.contextmanager
def standing_still(name: str) -> Iterator[None]:
    """The program neither answers nor ends, for the length of the `with`."""
    pid = pid_of(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def killed(name: str) -> Iterator[None]:
    """The program is killed, and started again as it was at the end of the `with`."""
    pid = pid_of(name)
    command = [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]
    os.kill(pid, signal.SIGKILL)
    try:
        yield
    finally:
        with (KUBE_DIR / "log" / f"{name}.log").open("ab") as log:
            again = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        (RUN_DIR / f"{name}.pid").write_text(f"{again.pid}\n")
        again.returncode = 0  # it outlives us, and is none of our business any more


# -- network -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cut_off(addresses: list[str]) -> Iterator[None]:
    """Nothing gets from this host to these pods or back, for the length of the `with`; by a table of our own."""
    table = f"sandman_faults_{secrets.token_hex(4)}"
    pods = ", ".join(addresses)
    rules = f"""
        table ip {table} {{
            chain to {{ type filter hook output priority -10; ip daddr {{ {pods} }} drop; }}
            chain from {{ type filter hook input priority -10; ip saddr {{ {pods} }} drop; }}
        }}"""
    subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "ip", table], check=True)


# -- images ------------------------------------------------------------------------------------------------------------


def load_toy(repo: Path, folder: Path) -> str:
    """Put the repository on top of the node's Python image, at /testbed; the new image's reference."""
    name = f"localhost/sandman-faults-{secrets.token_hex(4)}:1"
    archive = folder / "toy.tar"
    add_layer(KUBE_DIR / "images" / "py.tar", _layer(repo), name, archive)
    ctr("import", str(archive))
    archive.unlink()
    return name_by_digest(name)


def _layer(repo: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(repo, "testbed", filter=_by_root)
    return out.getvalue()


def _by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
