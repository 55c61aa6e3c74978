"""A reverse proxy in front of a real API server that does to requests what networks, webhooks and servers do.

It speaks plain HTTP on loopback, forwards to the real server, and asks a `Plan` at each request which fault to inject.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from sandbox.kube.api import Api

CREATE_FAULTS = (
    "request_lost",
    "reply_lost",
    "stored_late",
    "5xx_before",
    "5xx_after",
    "webhook_timeout",
    "429",
    "409_stranger",
    "slow_reply",
)
DELETE_FAULTS = ("request_lost", "reply_lost", "5xx_before", "5xx_after", "429", "slow_reply")
READ_FAULTS = ("request_lost", "5xx_before", "slow_reply")
WATCH_FAULTS = ("cut", "half_open", "410", "5xx_before")


REFUSALS = {
    "5xx_before": (503, "ServiceUnavailable", "the server is overloaded"),
    "webhook_timeout": (500, "InternalError", 'failed calling webhook "w": context deadline exceeded'),
    "429": (429, "TooManyRequests", "slow down", {"Retry-After": "0"}),
}


class Plan:
    """Which fault a request meets: with probability `share` one of its kind, else none."""

    def __init__(self, seed: int, share: float) -> None:
        self.random = random.Random(seed)
        self.share = share
        self.injected: Counter[str] = Counter()

    def choose(self, kind: str, faults: tuple[str, ...]) -> str | None:
        if self.random.random() >= self.share:
            return None
        fault = self.random.choice(faults)
        self.injected[f"{kind}: {fault}"] += 1
        return fault


class FaultyServer:
    """The proxy. `url` is where it listens."""

    def __init__(self, api: Api, plan: Plan) -> None:
        self.api = api
        self.plan = plan
        self.url = ""
        self.strangers: list[str] = []
        """Pods that were put in the way under names of ours. They are foreign, and must survive."""
        self.late: set[asyncio.Task[None]] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        pods = "/pods" in request.path
        if request.method == "GET" and request.query.get("watch"):
            return await self._watch(request, self.plan.choose("watch", WATCH_FAULTS))
        fault = None
        if pods and request.method == "POST":
            fault = self.plan.choose("create", CREATE_FAULTS)
        elif pods and request.method == "DELETE":
            fault = self.plan.choose("delete", DELETE_FAULTS)
        elif pods and request.method == "GET":
            fault = self.plan.choose("read", READ_FAULTS)
        return await self._answer(request, body, fault)

    async def _answer(self, request: web.Request, body: bytes, fault: str | None) -> web.StreamResponse:
        if fault in REFUSALS:
            return _status(*REFUSALS[fault])
        if fault == "stored_late":
            task = asyncio.create_task(self._later(request, body))
            self.late.add(task)
            task.add_done_callback(self.late.discard)
        if fault in {"request_lost", "stored_late"}:
            return _cut(request)
        if fault == "409_stranger":
            await self._put_a_stranger_in_the_way(request, body)
        status, text, headers = await self._forward(request, body)
        if fault == "reply_lost":
            return _cut(request)
        if fault == "5xx_after":
            return _status(504, "Timeout", "request did not complete within the allotted timeout")
        if fault == "slow_reply":
            await asyncio.sleep(self.plan.random.uniform(0.05, 0.8))
        return web.Response(status=status, body=text, headers=headers)

    async def _forward(self, request: web.Request, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        async with self._session.request(
            request.method, self.api.server + request.path_qs, data=body or None, headers=self._headers(request)
        ) as answer:
            kept = {
                name: answer.headers[name] for name in ("Content-Type", "Date", "Retry-After") if name in answer.headers
            }
            return answer.status, await answer.read(), kept

    async def _later(self, request: web.Request, body: bytes) -> None:
        await asyncio.sleep(self.plan.random.uniform(0.1, 1.5))
        await self._forward(request, body)

    async def _put_a_stranger_in_the_way(self, request: web.Request, body: bytes) -> None:
        name = json.loads(body)["metadata"]["name"]
        pod = {
            "metadata": {"name": name, "labels": {"app": "foreign"}},
            "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "localhost/pause:1"}]},
        }
        async with self._session.post(
            self.api.server + request.path_qs, json=pod, headers=self._headers(request)
        ) as answer:
            if answer.status == 201:
                self.strangers.append(name)

    async def _watch(self, request: web.Request, fault: str | None) -> web.StreamResponse:
        if fault == "5xx_before":
            return _status(503, "ServiceUnavailable", "the server is overloaded")
        async with self._session.get(
            self.api.server + request.path_qs, headers=self._headers(request), timeout=aiohttp.ClientTimeout(total=None)
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            pieces = self.plan.random.randrange(1, 30)
            with contextlib.suppress(ConnectionResetError, aiohttp.ClientError):
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                    pieces -= 1
                    if fault is not None and pieces <= 0:
                        break
            if fault == "half_open":
                await asyncio.sleep(3.0)
            if fault == "410":
                gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
                await response.write(json.dumps(gone).encode() + b"\n")
            if fault is not None and request.transport is not None:
                request.transport.abort()
            return response

    def _headers(self, request: web.Request) -> dict[str, str]:
        return {
            name: request.headers[name]
            for name in ("Authorization", "Content-Type", "Accept")
            if name in request.headers
        }

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[FaultyServer]:
        connector = aiohttp.TCPConnector(limit=200, ssl=self.api._client.rest_client.ssl_context)
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
                if self.late:
                    await asyncio.wait(self.late)
                await runner.cleanup()


def proxied_kubeconfig(real: Path, url: str, into: Path) -> Path:
    """The same credentials, by way of the proxy."""
    document: dict[str, Any] = yaml.safe_load(real.read_text())
    for cluster in document["clusters"]:
        cluster["cluster"] = {"server": url}
    into.write_text(yaml.safe_dump(document))
    return into


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
