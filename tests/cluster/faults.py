"""A reverse proxy in front of a real API server that does to requests what networks, webhooks and servers do.

It speaks plain HTTP on loopback, forwards to the real server, and asks a `Plan` at each request which fault to inject.
It tells of each trial's requests as they pass, so that a trial can be cancelled at exactly such a moment. It also plays
the node of some of the pods, so that there are sandboxes to hold and to give back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from sandbox import SandboxSpec
from sandbox.kube.api import Api
from sandbox.kube.manifest import FACTS_ANNOTATION
from tests.cluster.fakepods import MERGE, running

FAULTS = {
    "create": (
        "request_lost",
        "reply_lost",
        "stored_late",
        "5xx_before",
        "5xx_after",
        "webhook_timeout",
        "429",
        "409_stranger",
        "slow_reply",
    ),
    "delete": ("request_lost", "reply_lost", "5xx_before", "5xx_after", "429", "slow_reply"),
    "read": ("request_lost", "5xx_before", "slow_reply"),
    "watch": ("cut", "half_open", "410", "5xx_before"),
}

REFUSALS = {
    "5xx_before": (503, "ServiceUnavailable", "the server is overloaded"),
    "webhook_timeout": (500, "InternalError", 'failed calling webhook "w": context deadline exceeded'),
    "429": (429, "TooManyRequests", "slow down", {"Retry-After": "0"}),
}

LATEST_STORE_S = 1.5
"""How long after it was sent a create may be stored by the proxy."""

LATEST_RUN_S = 1.0
"""How long after it was stored a pod may come to run."""

NOWHERE = SandboxSpec(image="localhost/nothing@sha256:" + "0" * 64, egress="open")
"""Runs nowhere: the pods that name it are to find no node."""

MOMENTS = (
    "create arrives",
    "create is done",
    "create was answered",
    "pod runs",
    "read arrives",
    "delete arrives",
    "delete is done",
)

OnMoment = Callable[[str, str], None]
"""(trial, one of MOMENTS). Must not wait."""


@dataclass(frozen=True)
class Fault:
    """What happens to one request, and the chance that fills in its details."""

    name: str | None
    random: random.Random


class Plan:
    """Which fault a request meets: with probability `share` one of its kind, else none. And which pods come to run:
    `runs` of them.

    It is settled by the seed, the trial, the kind of request and its number among the trial's own: not by the order in
    which requests of different trials come.
    """

    def __init__(self, seed: str, share: float, *, runs: float = 0.0) -> None:
        self.seed = seed
        self.share = share
        self.runs = runs
        self.asked: Counter[tuple[str, str]] = Counter()
        self.injected: Counter[str] = Counter()

    def runs_after_s(self, trial: str) -> float | None:
        """How long a trial's pod takes to run. None: it never does."""
        chance = random.Random(f"{self.seed}/{trial}/run")
        return chance.uniform(0, LATEST_RUN_S) if chance.random() < self.runs else None

    def choose(self, trial: str, kind: str) -> Fault:
        number = self.asked[trial, kind]
        self.asked[trial, kind] += 1
        chance = random.Random(f"{self.seed}/{trial}/{kind}/{number}")
        if chance.random() >= self.share:
            return Fault(None, chance)
        name = chance.choice(FAULTS[kind])
        self.injected[f"{kind}: {name}"] += 1
        return Fault(name, chance)


class FaultyServer:
    """The proxy. `url` is where it listens."""

    def __init__(self, api: Api, plan: Plan, *, on_moment: OnMoment = lambda trial, moment: None) -> None:
        self.api = api
        self.plan = plan
        self.url = ""
        self.strangers: list[str] = []
        """Pods that were put in the way under names of ours. They are foreign, and must survive."""
        self.storm = False
        """While it is set every create gets 429, and is asked to wait for a second."""
        self.refused = 0
        """Creates that met the storm."""
        self.broken: list[str] = []
        """What the proxy itself could not do."""
        self._trials: dict[str, str] = {}
        """By the pod's name."""
        self._on_moment = on_moment
        self._late: set[asyncio.Task[None]] = set()
        """Creates that are yet to be stored, pods that are yet to run."""
        self._watches: set[asyncio.Task[web.StreamResponse]] = set()
        """That go on, whether or not somebody listens."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.method == "GET" and request.query.get("watch"):
            watch = asyncio.create_task(self._watch(request, self.plan.choose("", "watch")))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)
            return await watch
        kind = {"POST": "create", "DELETE": "delete", "GET": "read"}.get(request.method)
        if "/pods" not in request.path or kind is None:
            return await self._answer(request, body, Fault(None, random.Random(0)), lambda moment: None)
        if kind == "create":
            metadata = json.loads(body)["metadata"]
            labels = json.loads(metadata.get("annotations", {}).get(FACTS_ANNOTATION, "{}"))
            self._trials[metadata["name"]] = labels.get("trial", "")
            trial = self._trials[metadata["name"]]
        else:
            trial = self._trials.get(request.path.rpartition("/")[2], "")

        def passed(moment: str) -> None:
            self._on_moment(trial, f"{kind} {moment}")

        if kind == "create" and self.storm:
            self.refused += 1
            return _status(429, "TooManyRequests", "a storm", {"Retry-After": "1"})
        passed("arrives")
        return await self._answer(request, body, self.plan.choose(trial, kind), passed)

    async def _answer(
        self, request: web.Request, body: bytes, fault: Fault, passed: Callable[[str], None]
    ) -> web.StreamResponse:
        if fault.name in REFUSALS:
            return _status(*REFUSALS[fault.name])
        if fault.name == "stored_late":
            self._in_time(self._store_later(request, body, fault))
        if fault.name in {"request_lost", "stored_late"}:
            return _cut(request)
        if fault.name == "409_stranger":
            await self._put_a_stranger_in_the_way(request, body)
        status, text, headers = await self._forward(request, body)
        passed("is done")
        asyncio.get_running_loop().call_later(0.002, passed, "was answered")
        if fault.name == "reply_lost":
            return _cut(request)
        if fault.name == "5xx_after":
            return _status(504, "Timeout", "request did not complete within the allotted timeout")
        if fault.name == "slow_reply":
            await asyncio.sleep(fault.random.uniform(0.05, 0.8))
        return web.Response(status=status, body=text, headers=headers)

    async def _forward(self, request: web.Request, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        async with self._session.request(
            request.method, self.api.server + request.path_qs, data=body or None, headers=_headers(request)
        ) as answer:
            kept = {
                name: answer.headers[name] for name in ("Content-Type", "Date", "Retry-After") if name in answer.headers
            }
            text = await answer.read()
        if answer.status == 201 and request.path.endswith("/pods"):
            self._in_time(self._run_later(request, json.loads(body)["metadata"]["name"]))
        return answer.status, text, kept

    def _in_time(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._late.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._late.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken.append(repr(error))

    async def _store_later(self, request: web.Request, body: bytes, fault: Fault) -> None:
        await asyncio.sleep(fault.random.uniform(0.1, LATEST_STORE_S))
        await self._forward(request, body)

    async def _run_later(self, request: web.Request, name: str) -> None:
        """Play the pod's node, if it is to have one."""
        trial = self._trials[name]
        after_s = self.plan.runs_after_s(trial)
        if after_s is None:
            return
        await asyncio.sleep(after_s)
        async with self._session.patch(
            f"{self.api.server}{request.path}/{name}/status",
            json={"status": running()},
            headers={"Authorization": request.headers["Authorization"], **MERGE},
        ) as answer:
            if answer.status == 200:
                self._on_moment(trial, "pod runs")
            elif answer.status != 404:  # gone meanwhile
                raise RuntimeError(f"{answer.status}: {await answer.text()}")

    async def _put_a_stranger_in_the_way(self, request: web.Request, body: bytes) -> None:
        name = json.loads(body)["metadata"]["name"]
        async with self._session.post(
            self.api.server + request.path_qs, json=foreign_pod(name), headers=_headers(request)
        ) as answer:
            if answer.status == 201:
                self.strangers.append(name)

    async def _watch(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.name == "5xx_before":
            return _status(503, "ServiceUnavailable", "the server is overloaded")
        async with self._session.get(
            self.api.server + request.path_qs, headers=_headers(request), timeout=aiohttp.ClientTimeout(total=None)
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            pieces = fault.random.randrange(1, 30)
            with contextlib.suppress(ConnectionResetError, aiohttp.ClientError):
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                    pieces -= 1
                    if fault.name is not None and pieces <= 0:
                        break
            if fault.name == "half_open":
                await asyncio.sleep(3.0)
            if fault.name == "410":
                gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
                await response.write(json.dumps(gone).encode() + b"\n")
            if fault.name is not None and request.transport is not None:
                request.transport.abort()
            return response

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[FaultyServer]:
        connector = aiohttp.TCPConnector(limit=200, ssl=self.api.credentials.now.tls)
        async with aiohttp.ClientSession(connector=connector) as self._session:
            app = web.Application(client_max_size=1 << 24)
            app.router.add_route("*", "/{path:.*}", self.handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                while self._late:
                    await asyncio.wait(set(self._late))
                for watch in self._watches:
                    watch.cancel()
                await runner.cleanup()


def foreign_pod(name: str) -> dict[str, object]:
    """A pod without any mark of ours, which no node takes."""
    return {
        "metadata": {"name": name, "labels": {"app": "foreign"}},
        "spec": {
            "nodeSelector": {"no": "node"},
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "localhost/pause:1"}],
        },
    }


def proxied_kubeconfig(real: Path, url: str, into: Path) -> Path:
    """The same credentials, by way of the proxy."""
    document: dict[str, Any] = yaml.safe_load(real.read_text())
    for cluster in document["clusters"]:
        cluster["cluster"] = {"server": url}
    into.write_text(yaml.safe_dump(document))
    return into


def _headers(request: web.Request) -> dict[str, str]:
    return {
        name: request.headers[name] for name in ("Authorization", "Content-Type", "Accept") if name in request.headers
    }


def _cut(request: web.Request) -> web.StreamResponse:
    """The connection breaks without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _status(code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return web.json_response(body, status=code, headers=headers)
