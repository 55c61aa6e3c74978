"""Nodes that are not there, for measuring the provider at a size that no test machine runs.

    python -m tests.cluster.fakenodes --nodes 375

Makes Node objects, then plays every kubelet: a pod that the scheduler bound becomes Running and Ready at a loopback
address of its own, where `fakepods.py` answers, a pod that is to go is gone. Everything else is real: API server,
scheduler, controllers. The cluster is to be one of `tests/cluster/up --api`, where nobody misses the heartbeats.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.cluster.fakepods import MERGE, PORT, answering, running

NODE_PREFIX = "fake-"
PODS_PER_NODE = 250
WORKERS = 16


def cluster_session(kubeconfig: Path, connections: int) -> aiohttp.ClientSession:
    """A client of the cluster's API server with nothing of ours in between."""
    document = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    certificate = cluster["certificate-authority-data"]
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=b64decode(certificate).decode())
    return aiohttp.ClientSession(
        cluster["server"],
        headers={"Authorization": f"Bearer {user['token']}", "Accept": "application/json"},
        connector=aiohttp.TCPConnector(limit=connections, ssl=context),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=1 << 22,
    )


async def make_nodes(session: aiohttp.ClientSession, count: int) -> None:
    """`count` Ready nodes, whose names begin with NODE_PREFIX."""
    room = {"cpu": "64", "memory": "256Gi", "pods": str(PODS_PER_NODE), "ephemeral-storage": "1Ti"}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Fake",
        "message": "plays a node",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
    for number in range(count):
        name = f"{NODE_PREFIX}{number}"
        node = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
        await _done(session.post("/api/v1/nodes", json=node), allow={409})
        await _done(session.patch(f"/api/v1/nodes/{name}/status", json=status, headers=MERGE))
        # Admission taints a new node until a controller finds it ready; none is here to do so.
        await _done(session.patch(f"/api/v1/nodes/{name}", json={"spec": {"taints": None}}, headers=MERGE))


async def _done(request: Any, allow: Iterable[int] = ()) -> None:
    async with request as answer:
        body = await answer.read()
        if answer.status >= 400 and answer.status not in allow:
            raise RuntimeError(f"{answer.method} {answer.url}: {answer.status} {body[:300]!r}")


class Kubelets:
    """Of all fake nodes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._todo: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._seen: set[tuple[str, bool]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            async with self._session.get("/api/v1/pods", params={"resourceVersion": "0"}) as answer:
                listed = json.loads(await answer.read())
            for pod in listed["items"]:
                self._look(pod)
            query = {
                "watch": "true",
                "resourceVersion": listed["metadata"]["resourceVersion"],
                "timeoutSeconds": "3600",
            }
            async with self._session.get("/api/v1/pods", params=query) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    if event["type"] == "DELETED":
                        uid = event["object"]["metadata"]["uid"]
                        self._seen -= {(uid, True), (uid, False)}
                    else:
                        self._look(event["object"])

    def _look(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        going = "deletionTimestamp" in metadata
        mine = pod["spec"].get("nodeName", "").startswith(NODE_PREFIX)
        if not mine or (metadata["uid"], going) in self._seen or (not going and pod["status"]["phase"] != "Pending"):
            return
        self._seen.add((metadata["uid"], going))
        self._todo.put_nowait(("end" if going else "run", f"{metadata['namespace']}/pods/{metadata['name']}"))

    async def _work(self) -> None:
        while True:
            what, where = await self._todo.get()
            path = f"/api/v1/namespaces/{where}"
            if what == "end":
                await _done(self._session.delete(path, json={"gracePeriodSeconds": 0}), allow={404, 409})
            else:
                status = {"status": running()}
                await _done(self._session.patch(f"{path}/status", json=status, headers=MERGE), allow={404, 409})


async def main(nodes: int) -> None:
    """Until killed. Says `ready` when the nodes are there."""
    kubeconfig = Path(os.environ["KUBECONFIG"])
    async with answering(PORT), cluster_session(kubeconfig, WORKERS + 2) as session:
        await make_nodes(session, nodes)
        print("ready", flush=True)
        await Kubelets(session).run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Nodes that are not there.")
    parser.add_argument("--nodes", type=int, default=375)
    asyncio.run(main(parser.parse_args().nodes))
