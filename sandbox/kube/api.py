"""The way to the API server: raw JSON, with the official client's credentials and TLS, and every answer as one of ours.
The only seam.

Requests that change the cluster answer with a value that says what is known, since "not known" is the common case that
ownership lives on: a 5xx, a broken connection and a time-out leave the outcome of a create or delete unknown. Reads
that somebody waits for raise `ApiFailure`. Nothing here is retried, but once for a credential that was read anew.

What is asked for each pod goes through a lane of bounded width, which its caller takes before the request is made: so
a request's time-out never runs while it waits for thousands of others, and a lease is renewed beside them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from pydantic_core import from_json

from sandbox.config import KubernetesConfig
from sandbox.errors import ProviderUnavailable
from sandbox.kube.credentials import Credentials, Identity, open_credentials
from sandbox.kube.snapshot import Pod, WatchEvent, parse_list, parse_pod, parse_watch_event

if TYPE_CHECKING:
    import aiohttp

REQUEST_S = 30.0
CONNECT_S = 10.0
EVENTS_AT_ONCE = 16
BESIDE = EVENTS_AT_ONCE + 16
"""Connections for all else: explanations, and lists, watches and leases beside as many of them as there may be."""
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""What is accepted where only who an object is matters: the server need not write all of it, nor we read it."""

_READ_AHEAD_BYTES = 1 << 21
"""One line of a watch is a whole object, which may be a megabyte or more."""


class ApiFailure(Exception):
    """The server did not do what was asked. `status` is 0 when no answer came. `about` is the name of what its Status
    object is about, or "" where that names nothing; None: there was no Status object."""

    def __init__(
        self,
        what: str,
        status: int,
        reason: str,
        said: str,
        retry_after_s: float | None = None,
        *,
        about: str | None = None,
    ) -> None:
        super().__init__(f"{what}: {status or 'no answer'} {reason}: {said}".rstrip(": "))
        self.what = what
        self.status = status
        self.reason = reason
        self.said = said
        self.retry_after_s = retry_after_s
        self.about = about

    def says_absent(self, name: str) -> bool:
        """Whether the API server itself says that no object of that name is there. What stands before it, and a path
        that it does not know, answer 404 as well."""
        return self.status == 404 and self.reason == "NotFound" and self.about in {"", name}

    @property
    def is_unknown(self) -> bool:
        """Whether a request that changes something may have been carried out all the same."""
        return self.status == 0 or self.status >= 500


@dataclass(frozen=True)
class Created:
    """The pod is stored."""

    pod: Pod


@dataclass(frozen=True)
class NameTaken:
    """A pod of that name exists: ours, from an earlier request, or another's."""


@dataclass(frozen=True)
class Throttled:
    """Not stored; the server asked to wait."""

    retry_after_s: float | None
    said: str


@dataclass(frozen=True)
class Rejected:
    """Not stored, and the same request would be rejected again."""

    failure: ApiFailure


@dataclass(frozen=True)
class Unknown:
    """It may have been carried out, or may be yet. `by_server`: there was an answer, an error of the server's or of
    what stands before it. `is_over`: the API server itself has ended the request."""

    said: str
    by_server: bool
    is_over: bool = False


@dataclass(frozen=True)
class Found:
    """The pod as it is now."""

    pod: Pod


@dataclass(frozen=True)
class Absent:
    """There is no such pod now: the API server itself says so."""


@dataclass(frozen=True)
class DeleteAccepted:
    """The pod is gone, or ends within its grace."""


@dataclass(frozen=True)
class OtherUid:
    """Nothing was deleted: another pod has that name, or something else (a webhook) was in conflict. A look tells."""

    said: str


CreateAnswer = Created | NameTaken | Throttled | Rejected | Unknown
ReadAnswer = Found | Absent | Unknown
DeleteAnswer = DeleteAccepted | Absent | OtherUid | Throttled | Unknown


class Api:
    """One connection pool to one API server. Made by `open_api`."""

    def __init__(
        self, config: KubernetesConfig, credentials: Credentials, session: aiohttp.ClientSession, namespace: str
    ) -> None:
        self.namespace = namespace
        self._session = session
        self._config = config
        self.credentials = credentials
        self.lane = asyncio.Semaphore(config.pacing.max_requests)
        """Hold it around `create_pod`, `read_pod` and `delete_pod`."""
        self._server_ahead_s = 0.0
        self._server_date: str | None = None

    def in_namespace(self, namespace: str) -> Api:
        """The same server, credentials and connections for another namespace."""
        return Api(self._config, self.credentials, self._session, namespace)

    def server_time(self) -> float:
        """Seconds since the epoch by the server's clock, to about a second. Leases are written and judged by it."""
        return time.time() + self._server_ahead_s

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return str(self.credentials.now.configuration.host).rstrip("/")

    # -- pods ----------------------------------------------------------------------------------------------------------

    async def create_pod(self, manifest: bytes) -> CreateAnswer:
        """Send one create, of a pod's JSON. Never raises."""
        try:
            return Created(parse_pod(await self._answer("POST", self._pods(), manifest, accept=METADATA)))
        except ApiFailure as failure:
            return _create_answer(failure)
        except ValueError as error:
            return Unknown(str(error), by_server=True)

    async def read_pod(self, name: str) -> ReadAnswer:
        """The pod of that name, whosever it is. Never raises."""
        try:
            return Found(parse_pod(await self._answer("GET", self._pods(name))))
        except ApiFailure as failure:
            return Absent() if failure.says_absent(name) else Unknown(str(failure), failure.status != 0)
        except ValueError as error:
            return Unknown(str(error), by_server=True)

    async def delete_pod(self, name: str, uid: str, *, grace_s: int) -> DeleteAnswer:
        """Delete the pod of that name only if it has that UID. Never raises."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_s,
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            await self._answer("DELETE", self._pods(name), _json(options), accept=METADATA)
        except ApiFailure as failure:
            if failure.says_absent(name):
                return Absent()
            if failure.status == 409:
                return OtherUid(failure.said)
            if failure.status == 429:
                return Throttled(failure.retry_after_s, failure.said)
            return Unknown(str(failure), failure.status != 0)
        return DeleteAccepted()

    async def list_pods(self, selector: str) -> tuple[list[Pod], str]:
        """All pods that match, and the version to watch from. Raises `ApiFailure`."""
        pods: list[Pod] = []
        query = {"labelSelector": selector, "limit": "500"}
        while True:
            page = await self._answer("GET", self._pods() + "?" + urlencode(query))
            try:
                more, metadata = parse_list(page)
            except ValueError as error:
                raise ApiFailure("list pods", 0, "Garbled", str(error)) from error
            pods += more
            if not metadata.get("continue"):
                return pods, metadata.get("resourceVersion") or ""
            query["continue"] = metadata["continue"] or ""

    async def watch_pods(self, selector: str, version: str, *, timeout_s: float) -> AsyncGenerator[WatchEvent, None]:
        """Lines of one watch until the server ends it, at the latest after `timeout_s`. Raises `ApiFailure`, also
        when nothing at all came in that time and a little more: the connection is dead on one side."""
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        async with self._open("GET", self._pods() + "?" + urlencode(query), None, read_s=timeout_s + 5.0) as response:
            async for line in _lines(response):
                try:
                    yield parse_watch_event(line)
                except ValueError as error:
                    raise ApiFailure("watch pods", 0, "Garbled", str(error)) from error

    # -- anything else -------------------------------------------------------------------------------------------------

    def path(self, plural: str, name: str | None = None, *, group: str = "api/v1") -> str:
        """The path of a kind of object, or of one object, in the namespace."""
        where = f"/{group}/namespaces/{quote(self.namespace)}/{plural}"
        return where if name is None else f"{where}/{quote(name)}"

    async def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = REQUEST_S
    ) -> dict[str, Any]:
        """One request and its JSON. Raises `ApiFailure`."""
        try:
            answer = from_json(await self._answer(method, path, _json(body), timeout_s=timeout_s))
        except ValueError as error:
            raise ApiFailure(f"{method} {path}", 0, "Garbled", str(error)) from error
        return answer if isinstance(answer, dict) else {}

    async def _answer(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = REQUEST_S,
        accept: str = "application/json",
    ) -> bytes:
        """One request and what came. Raises `ApiFailure`."""
        async with self._open(method, path, body, total_s=timeout_s, accept=accept) as response:
            return await response.read()

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        body: bytes | None,
        *,
        total_s: float | None = None,
        read_s: float | None = None,
        accept: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to a request, its head read and its status good. Raises `ApiFailure`, also for what goes wrong
        while the caller reads."""
        import aiohttp

        what = f"{method} {path.partition('?')[0]}"
        if self._session.closed:
            raise ApiFailure(what, 0, "Closed", "the connections to the server were closed meanwhile")
        timeout = aiohttp.ClientTimeout(total=total_s, sock_read=read_s, sock_connect=CONNECT_S, connect=None)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        for is_last in (False, True):
            identity = self.credentials.now
            configuration = identity.configuration
            headers = {"Accept": accept, "Content-Type": kind, **await _said_of(identity, what)}
            try:
                async with self._session.request(
                    method,
                    self.server + path,
                    headers=headers,
                    data=body,
                    timeout=timeout,
                    ssl=identity.tls,
                    proxy=configuration.proxy,
                    proxy_headers=configuration.proxy_headers,
                    server_hostname=configuration.tls_server_name,
                ) as response:
                    self._note_clock(response.headers.get("Date"))
                    if response.status < 400:
                        yield response
                        return
                    failure = await _failure(what, response)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise ApiFailure(what, 0, type(error).__name__, str(error)) from error
            if failure.status != 401 or is_last or not await self.credentials.renewed(identity):
                raise failure

    def _note_clock(self, date: str | None) -> None:
        if date == self._server_date:
            return
        self._server_date = date
        try:
            self._server_ahead_s = parsedate_to_datetime(date or "").timestamp() - time.time()
        except ValueError:
            return

    def _pods(self, name: str | None = None) -> str:
        return self.path("pods", name)


@asynccontextmanager
async def open_api(config: KubernetesConfig) -> AsyncIterator[Api]:
    """Load the credentials and open the connection pool. Raises `ProviderUnavailable`."""
    if importlib.util.find_spec("kubernetes") is None:
        raise ProviderUnavailable(
            "the Kubernetes client is not installed: pip install 'sandman-grader[kubernetes]'", missing="kubernetes"
        )
    import aiohttp

    async with (
        aclosing(await open_credentials(config)) as credentials,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=config.pacing.max_requests + BESIDE),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_AHEAD_BYTES,
        ) as session,
    ):
        yield Api(config, credentials, session, config.namespace or credentials.now.namespace or "default")


async def _said_of(identity: Identity, what: str) -> dict[str, str]:
    try:
        return await identity.headers()
    except Exception as error:  # the official client raises what comes
        raise ApiFailure(what, 0, type(error).__name__, f"the credentials could not be read: {error}") from error


def _json(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else json.dumps(body).encode()


def _create_answer(failure: ApiFailure) -> CreateAnswer:
    if failure.status == 429:
        return Throttled(failure.retry_after_s, failure.said)
    if failure.status == 409:  # any other conflict (a quota that others update) is tried again
        return NameTaken() if failure.reason == "AlreadyExists" else Throttled(None, failure.said)
    if failure.is_unknown:
        return Unknown(str(failure), failure.status != 0, is_over=failure.status == 500 and failure.reason != "")
    return Rejected(failure)


async def _failure(what: str, response: aiohttp.ClientResponse) -> ApiFailure:
    """The server's own words, from its Status object where it sent one."""
    text = (await response.read())[:4096]
    try:
        status = from_json(text)
        reason, said = str(status.get("reason") or ""), str(status.get("message") or "")
        details = status.get("details") or {}
        seconds, about = details.get("retryAfterSeconds"), str(details.get("name") or "")
    except (ValueError, AttributeError):
        reason, said, seconds, about = str(response.reason or ""), text.decode("utf-8", "replace"), None, None
    else:
        about = about if status.get("kind") == "Status" else None
    after = response.headers.get("Retry-After", "")
    retry_after_s = (
        float(after) if after.isascii() and after.isdigit() else (float(seconds) if isinstance(seconds, int) else None)
    )
    return ApiFailure(what, response.status, reason, said[:1000], retry_after_s, about=about)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole lines, however long and however they come in pieces."""
    rest = b""
    while piece := await response.content.readany():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
