"""What other hands do to pods of ours, by the administrator's: delete, evict, replace, kill; and what is left then."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.errors import SandboxError, SandboxLost
from sandbox.kube.api import Api, ApiFailure
from sandbox.kube.box import KubeSandbox
from sandbox.kube.manifest import NONCE_LABEL
from sandbox.kube.provider import KubernetesProvider
from tests.cluster.conftest import KUBE_DIR, leases_of
from tests.cluster.faults import foreign_pod
from tests.cluster.images import CONTAINERD

JSON = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A provider in a namespace where somebody else has a pod too."""

    admin: Api
    provider: KubernetesProvider
    namespace: str
    foreign: Mapping[str, str]
    """UID by name."""

    def path(self, name: str | None = None) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods" + ("" if name is None else f"/{name}")

    async def pod(self, box: KubeSandbox) -> JSON:
        return await self.admin.call("GET", self.path(box.identity.sandbox_id))

    async def uids(self, *, ours: bool | None = None) -> dict[str, str]:
        """Of the namespace's pods, by name: all, those with a nonce, or those without."""
        items = (await self.admin.call("GET", self.path())).get("items") or []
        marked = {item["metadata"]["name"]: NONCE_LABEL in item["metadata"].get("labels", {}) for item in items}
        uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}
        return {name: uid for name, uid in uids.items() if ours in {None, marked[name]}}

    async def gone(self, name: str) -> None:
        """Until no pod has that name."""
        with anyio.fail_after(30):
            while name in await self.uids():
                await anyio.sleep(0.02)

    # -- deeds ---------------------------------------------------------------------------------------------------------

    async def delete(self, name: str) -> None:
        await self.admin.call("DELETE", self.path(name))

    async def evict(self, name: str) -> None:
        """As `kubectl drain` does it."""
        for version in ("v1", "v1beta1"):  # servers before 1.22 know the older one only
            body = {"apiVersion": f"policy/{version}", "kind": "Eviction", "metadata": {"name": name}}
            try:
                await self.admin.call("POST", f"{self.path(name)}/eviction", body)
                return
            except ApiFailure:
                if version == "v1beta1":
                    raise

    async def replace(self, box: KubeSandbox) -> str:
        """As `kubectl replace --force` does it. The UID of the new one."""
        old = await self.pod(box)
        name = box.identity.sandbox_id
        await self.delete(name)
        await self.gone(name)
        kept = {key: old["metadata"][key] for key in ("name", "labels", "annotations")}
        new = {"metadata": kept, "spec": {**old["spec"], "nodeName": None}}
        return str((await self.admin.call("POST", self.path(), new))["metadata"]["uid"])

    async def kill_first_process(self, box: KubeSandbox) -> None:
        """Kill PID 1 of the pod's container, which nobody can from inside: by a pod that sees the node's processes."""
        uid = (await self.pod(box))["metadata"]["uid"]
        killer = f"killer-{secrets.token_hex(4)}"
        container = {
            "name": "killer",
            "image": box.spec.image,
            "command": ["python3", "-c", _KILL, uid],
            "securityContext": {"privileged": True},
        }
        spec = {"hostPID": True, "nodeName": box.node, "restartPolicy": "Never", "containers": [container]}
        await self.admin.call("POST", self.path(), {"metadata": {"name": killer}, "spec": spec})
        with anyio.fail_after(30):
            while (phase := (await self.admin.call("GET", self.path(killer)))["status"]["phase"]) != "Succeeded":
                assert phase != "Failed", "the process was not found"
                await anyio.sleep(0.05)
        await self.delete(killer)


_KILL = """
import os, sys
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        group = open(f"/proc/{name}/cgroup").read()
        inside = next(line for line in open(f"/proc/{name}/status") if line.startswith("NSpid:")).split()[-1]
        command = open(f"/proc/{name}/cmdline", "rb").read()
    except OSError:
        continue
    if sys.argv[1] in group.replace("_", "-") and inside == "1" and b"execd" in command:
        os.kill(int(name), 9)
        sys.exit(0)
sys.exit("no such process")
"""


@asynccontextmanager
async def a_place(admin: Api, config: KubernetesConfig) -> AsyncIterator[Place]:
    """Open it. Asserts, when it is closed, that nothing of ours is left there, and that of what others had nothing was
    deleted."""
    async with open_provider(config) as provider:
        assert isinstance(provider, KubernetesProvider)
        place = Place(admin, provider, str(config.namespace), {})
        await admin.call("POST", place.path(), foreign_pod("foreign"))
        place = Place(admin, provider, place.namespace, await place.uids(ours=False))
        yield place
    assert ({}, ()) == (await place.uids(ours=True), provider.pending)
    assert place.foreign.items() <= (await place.uids(ours=False)).items()
    assert [] == await leases_of(admin, place.namespace)


async def told_while(box: KubeSandbox, deed: Callable[[], Awaitable[object]] | None, command: str) -> SandboxLost:
    """What a caller hears whose command runs while something happens to its sandbox. There must be no result."""
    heard: list[SandboxLost] = []

    async def call() -> None:
        try:
            result = await box.run(command, timeout_s=150)
        except SandboxLost as error:
            heard.append(error)
        else:
            raise AssertionError(f"a command of a lost sandbox got a result: {result}")

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.sleep(0.3)  # the command has begun
        if deed is not None:
            await deed()
    return heard[0]


async def refusal(place: Place, **spec: Any) -> SandboxError:
    """What a caller hears that asks for such a sandbox. There must be none."""
    try:
        async with place.provider.sandbox(SandboxSpec(egress="open", **spec)):
            raise AssertionError(f"there is a sandbox: {spec}")
    except SandboxError as error:
        return error


# -- what is done on the node's own machine ----------------------------------------------------------------------------


def is_here() -> bool:
    """Whether the node is the one of `up`, on this machine, and this user may do anything to it."""
    ours = not os.environ.get("KUBECONFIG") or str(KUBE_DIR) in os.environ["KUBECONFIG"]
    return ours and CONTAINERD.exists() and os.geteuid() == 0
