"""A stand-in for a cluster: an API server in memory, and a kubelet that runs each pod's command as a process here.

For tests that have no cluster. It keeps what the provider relies on: names are unique, a delete heeds the UID, a watch
goes on from its version, an accepted delete of a running pod ends later. Everything else of Kubernetes is absent; the
tests under tests/cluster run against the real thing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from sandbox.bundle import bundle
from sandbox.kube.manifest import BOOT_KEY, MOUNT, ZIPAPP_KEY

Refuse = Callable[[str, str], "tuple[int, str, str] | None"]


class StandIn:
    """Open it with `serve`. Tests look at `pods` and change how it answers."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.pods: dict[str, dict[str, Any]] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.config_maps: set[str] = set()
        self.policies: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self.refuse: Refuse = lambda method, kind: None
        """Asked before a request is carried out; a status, a reason and a message refuse it."""
        self.retry_after_s: int | None = None
        """How long a refusal asks to wait."""
        self.cut_watches_after_s: float | None = None
        """Watches are cut off so long after their beginning. None: they end as they should."""
        self.is_mute = False
        """Watches are held open and tell nothing."""
        self.slow_s: dict[tuple[str, str], float] = {}
        """How long the answer about pods, a lease or events is held back once it was carried out, by verb and kind."""
        self.most_at_once: Counter[str] = Counter()
        """Requests that were under way together, by kind."""
        self._under_way: Counter[str] = Counter()
        self.status_of_new: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda pod: None
        """The status that a new pod gets instead of being run. None: it is run."""
        self.log: list[tuple[int, str, dict[str, Any]]] = []
        self.oldest = 0
        """Watches from before this version get 410."""
        self.forgets_lists = False
        """A second page of a list gets 410."""
        self.url = ""
        self._versions = itertools.count(1)
        self._addresses = itertools.count(2)
        self._changed = asyncio.Event()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- what the API does ---------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if parts == ["version"]:
            return web.json_response({"gitVersion": "stand-in"})
        kind, *names = parts[parts.index("namespaces") + 2 :]
        name = names[0] if names else None
        verb = "WATCH" if request.query.get("watch") else request.method
        self.requests.append((verb, kind))
        refusal = self.refuse(verb, kind)
        if refusal is not None:
            answer = _status(*refusal)
            if self.retry_after_s is not None:
                answer.headers["Retry-After"] = str(self.retry_after_s)
            return answer
        self._under_way[kind] += 1
        self.most_at_once[kind] = max(self.most_at_once[kind], self._under_way[kind])
        try:
            return await self._carry_out(request, verb, kind, name)
        finally:
            self._under_way[kind] -= 1

    async def _carry_out(self, request: web.Request, verb: str, kind: str, name: str | None) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        if kind == "pods":
            answer = await self._pods(request, verb, name, body)
            await asyncio.sleep(self.slow_s.get((verb, kind), 0.0))
            return answer
        if kind == "leases":
            answer = self._leases(verb, name, body)
            await asyncio.sleep(self.slow_s.get((verb, kind), 0.0))
            return answer
        if kind == "configmaps":
            known = body["metadata"]["name"] in self.config_maps
            self.config_maps.add(body["metadata"]["name"])
            return _status(409, "AlreadyExists", "there") if known else web.json_response(body, status=201)
        items = self.policies if kind == "networkpolicies" else self.events
        page = _page([one for one in items if _has_fields(one, request.query)], request.query)
        await asyncio.sleep(self.slow_s.get((verb, kind), 0.0))
        return web.json_response(page)

    async def _pods(
        self, request: web.Request, verb: str, name: str | None, body: dict[str, Any]
    ) -> web.StreamResponse:
        if verb == "WATCH":
            return await self._watch(request)
        if verb == "POST":
            taken = body["metadata"]["name"] in self.pods
            return _status(409, "AlreadyExists", "taken") if taken else web.json_response(self.create(body), status=201)
        if name is None:
            return self._list(request.query)
        pod = self.pods.get(name)
        if pod is None:
            return _status(404, "NotFound", "no such pod")
        if verb == "DELETE":
            if body["preconditions"]["uid"] == pod["metadata"]["uid"]:
                self.end(name)
            else:
                return _status(409, "Conflict", "the UID in the precondition does not match")
        return web.json_response(pod)

    def _list(self, query: Mapping[str, str]) -> web.StreamResponse:
        if "continue" in query and self.forgets_lists:
            return _status(410, "Expired", "the continue token is too old")
        page = _page([one for one in self.pods.values() if _selected(one, query.get("labelSelector", ""))], query)
        return web.json_response({**page, "metadata": {**page["metadata"], "resourceVersion": str(self._now())}})

    def _leases(self, verb: str, name: str | None, body: dict[str, Any]) -> web.StreamResponse:
        if verb == "POST":
            self.leases[body["metadata"]["name"]] = {
                **body,
                "metadata": {**body["metadata"], "uid": "l", "resourceVersion": "1"},
            }
        elif verb == "PATCH":
            if name not in self.leases:
                return _status(404, "NotFound", "no such lease")
            self.leases[name]["spec"].update(body["spec"])
        elif verb == "DELETE":
            self.leases.pop(str(name), None)
        return web.json_response({"items": list(self.leases.values())})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if since < self.oldest:
            await _line(response, "ERROR", {"kind": "Status", "code": 410})
            return response
        cut_s = self.cut_watches_after_s
        lasts_s = float(request.query["timeoutSeconds"]) if cut_s is None else cut_s
        deadline = asyncio.get_running_loop().time() + lasts_s
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            for version, kind, pod in [entry for entry in self.log if entry[0] > since and not self.is_mute]:
                if _selected(pod, request.query.get("labelSelector", "")):
                    await _line(response, kind, pod)
                since = version
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout=min(left_s, 0.5))
        if cut_s is not None and request.transport is not None:
            request.transport.abort()
        return response

    # -- what the cluster does -----------------------------------------------------------------------------------------

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Store a pod and let the kubelet have it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        uid = f"uid-{next(self._versions)}"
        pod = {
            **body,
            "metadata": {**body["metadata"], "uid": uid, "creationTimestamp": now},
            "status": {"phase": "Pending"},
        }
        self.pods[pod["metadata"]["name"]] = pod
        self.tell("ADDED", pod)
        status = self.status_of_new(pod)
        if status is None:
            self._spawn(self._run(pod))
        else:
            pod["status"] = status
            self.tell("MODIFIED", pod)
        return pod

    def end(self, name: str) -> None:
        """A pod is deleted: told as such at once, gone a moment later."""
        pod = self.pods[name]
        if "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = datetime.now(UTC).isoformat()
            self.tell("MODIFIED", pod)
            self._spawn(self._finish(pod))

    def start(self, name: str) -> None:
        """Run a pod that was held back, if it is still there."""
        if name in self.pods:
            self._spawn(self._run(self.pods[name]))

    def vanish(self, name: str) -> None:
        """A pod goes without a trace of why."""
        pod = self.pods.pop(name)
        self._kill(pod["metadata"]["uid"])
        self.tell("DELETED", pod)

    def take_labels(self, name: str) -> None:
        """Somebody takes a pod's labels away: to a watch by label that is its end, with its last state before."""
        pod = self.pods[name]
        self.tell("DELETED", pod)
        pod["metadata"]["labels"] = {}

    def set_status(self, name: str, **changes: Any) -> None:
        pod = self.pods[name]
        pod["status"] = {**pod["status"], **changes}
        self.tell("MODIFIED", pod)

    def kill(self, name: str) -> None:
        """Kill the pod's process, without telling of it."""
        self._kill(self.pods[name]["metadata"]["uid"])

    def tell(self, kind: str, pod: dict[str, Any]) -> None:
        version = next(self._versions)
        pod["metadata"]["resourceVersion"] = str(version)
        self.log.append((version, kind, json.loads(json.dumps(pod))))
        self._changed.set()
        self._changed = asyncio.Event()

    def _now(self) -> int:
        return self.log[-1][0] if self.log else 0

    async def _run(self, pod: dict[str, Any]) -> None:
        """As a kubelet does: start the command, then say that it runs, at an address of its own."""
        address = f"127.77.{os.getpid() % 250}.{next(self._addresses) % 250 + 1}"
        [container] = pod["spec"]["containers"]
        uid = pod["metadata"]["uid"]
        mount = self.scratch / uid
        mount.mkdir()
        (mount / ZIPAPP_KEY).write_bytes(bundle())
        (mount / BOOT_KEY).write_bytes(files("sandbox.kube").joinpath(BOOT_KEY).read_bytes())
        value = container["env"][0]["value"].replace("$$", "$").replace(MOUNT, str(mount)).replace("0.0.0.0", address)
        command = [part.replace(MOUNT, str(mount)) for part in container["command"]]
        env = {"PATH": os.environ["PATH"], "SANDMAN_START": value}
        self._processes[uid] = subprocess.Popen(command, env=env, cwd="/")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.pods.get(pod["metadata"]["name"]) is pod:
            pod["spec"]["nodeName"] = "node1"
            state = {"name": "sandbox", "state": {"running": {"startedAt": now}}}
            self.set_status(pod["metadata"]["name"], phase="Running", podIP=address, containerStatuses=[state])

    async def _finish(self, pod: dict[str, Any]) -> None:
        await asyncio.sleep(0.02)
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._kill(uid)
        if self.pods.get(name) is pod:
            del self.pods[name]
            self.tell("DELETED", pod)

    def _kill(self, uid: str) -> None:
        process = self._processes.pop(uid, None)
        if process is not None:
            process.terminate()
            process.wait(timeout=10)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[StandIn]:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
            for uid in list(self._processes):
                self._kill(uid)

    def kubeconfig(self) -> Path:
        """A kubeconfig that leads here."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "here"}}],
            "current-context": "c",
        }
        file = self.scratch / "kubeconfig"
        file.write_text(yaml.safe_dump(document))
        return file


def _has_fields(event: dict[str, Any], query: Mapping[str, str]) -> bool:
    """As a field selector of events says. An event that names no object is about any."""
    wanted = dict(one.split("=", 1) for one in query.get("fieldSelector", "").split(",") if one)
    about = {f"involvedObject.{key}": value for key, value in event.get("involvedObject", {}).items()}
    return all({**event, **about}.get(key, value) == value for key, value in wanted.items())


def _page(items: list[Any], query: Mapping[str, str]) -> dict[str, Any]:
    """What a `limit` lets through, and where to go on."""
    begin, limit = int(query.get("continue", 0)), int(query.get("limit", len(items)))
    end = begin + limit
    return {"items": items[begin:end], "metadata": {"continue": str(end) if end < len(items) else ""}}


def _selected(pod: dict[str, Any], selector: str) -> bool:
    """As a label selector of `name=value` and `name` does."""
    labels = pod["metadata"].get("labels") or {}
    pairs = [one.partition("=") for one in selector.split(",") if one]
    return all(labels.get(name) == value if equals else name in labels for name, equals, value in pairs)


async def _line(response: web.StreamResponse, kind: str, thing: dict[str, Any]) -> None:
    await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)
