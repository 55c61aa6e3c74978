"""The network guard: sandboxes with egress denied are made only once this cluster has proved that it denies it.

A policy object proves nothing: without a plugin that enforces it the object is there and every pod reaches everything.
So two sandboxes are made, and looked out of. The one with open egress must reach the canary (else the canary proves
nothing), the one with denied egress must not; and the open one must not reach the other's execd.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio

from sandbox.config import KubernetesConfig
from sandbox.errors import AcquireTimeout, CreateError, ImageError, ProviderUnavailable
from sandbox.kube.api import Api, ApiFailure
from sandbox.kube.box import KubeSandbox
from sandbox.kube.manifest import EGRESS_LABEL, SANDBOX_LABEL
from sandbox.spec import SandboxSpec

POLICIES = "apis/networking.k8s.io/v1"
REMEDY = "apply the network policies of docs/kubernetes.md, and see that the cluster's network plugin enforces policies"
CANARY = "set `canary` in the provider's config to an address and port that pods with open egress reach"
AT_ONCE = 2
"""Sandboxes that a proof takes."""
LAG_S = 20.0
"""Policies may come into force some seconds after a pod starts."""


def denies_egress(policy: Mapping[str, Any]) -> bool:
    """Whether the policy selects sandboxes with egress denied and names what, if anything, may go out."""
    return _selects(policy, {SANDBOX_LABEL: "true", EGRESS_LABEL: "denied"}) and "Egress" in _types(policy)


def guards_ingress(policy: Mapping[str, Any]) -> bool:
    """Whether the policy selects all sandboxes and names who may come in."""
    return _selects(policy, {SANDBOX_LABEL: "true", EGRESS_LABEL: "open"}) and "Ingress" in _types(policy)


def _types(policy: Mapping[str, Any]) -> list[str]:
    return list((policy.get("spec") or {}).get("policyTypes") or [])


def _selects(policy: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    selector = (policy.get("spec") or {}).get("podSelector") or {}
    wanted = selector.get("matchLabels") or {}
    return not selector.get("matchExpressions") and all(labels.get(key) == value for key, value in wanted.items())


@dataclass(frozen=True)
class Proof:
    """What the two sandboxes saw."""

    canary: tuple[str, int]
    open_reaches_canary: bool
    denied_reaches_canary: bool
    open_reaches_execd: bool

    def complaint(self) -> str | None:
        """What is wrong. None: the guard holds."""
        where = f"{self.canary[0]}:{self.canary[1]}"
        if not self.open_reaches_canary:
            return f"nothing is proved: a sandbox with open egress does not reach {where}; {CANARY}"
        if self.denied_reaches_canary:
            return f"a sandbox with egress denied reaches {where}; {REMEDY}"
        if self.open_reaches_execd:
            return f"one sandbox reaches another's execd; {REMEDY}"
        return None


class Guard:
    """Proved once for a run, with the image of the first sandbox that needs it."""

    def __init__(
        self,
        api: Api,
        config: KubernetesConfig,
        sandbox: Callable[[SandboxSpec], AbstractAsyncContextManager[KubeSandbox]],
    ) -> None:
        self._api = api
        self._config = config
        self._sandbox = sandbox
        self._proving: asyncio.Task[None] | None = None
        self._image = ""
        """With which it is being proved."""
        self._closed = False

    async def prove(self, spec: SandboxSpec, *, timeout_s: float) -> None:
        """Return once the guard is proved. Raises `ProviderUnavailable` when it does not hold, `AcquireTimeout` when
        that is not known in time, and whatever kept it from being proved with this very image. A proof that failed is
        tried anew for the next caller."""
        if self._config.guard == "unguarded":
            raise ProviderUnavailable(
                "egress is to be denied and the provider's config says `unguarded`: ask for `egress = open`, or set "
                '`guard = "required"`'
            )
        if self._config.pacing.max_live < AT_ONCE:
            raise ProviderUnavailable(
                f"the network guard is proved with {AT_ONCE} sandboxes that live at once, and `pacing.max_live` is "
                f"{self._config.pacing.max_live}: raise it, or ask for `egress = open`"
            )
        with anyio.move_on_after(timeout_s):
            while not await self._is_proved(spec):
                pass
            return
        raise AcquireTimeout(
            f"the network guard was not proved within {timeout_s:g} s; it needs two sandboxes of its own at a run's "
            "first use: allow more time",
            waited_in={"guard": timeout_s},
        )

    async def _is_proved(self, spec: SandboxSpec) -> bool:
        """Wait for the proof that is under way, else for one of our own. False: it failed, and by another's image or
        an accident of another's, which says nothing about the guard or us."""
        if self._closed:
            raise _closed()
        proving, is_ours = self._proving, False
        if proving is None or (proving.done() and proving.exception() is not None):
            self._proving = proving = asyncio.get_running_loop().create_task(self._prove(spec))
            self._image, is_ours = spec.image, True
        image = self._image
        await asyncio.wait({proving})
        if proving.cancelled():
            raise _closed()
        error = proving.exception()
        if error is None:
            return True
        if is_ours or isinstance(error, ProviderUnavailable) or (isinstance(error, ImageError) and image == spec.image):
            raise error
        return False

    async def close(self) -> None:
        """Give up a proof that is under way. Who waits for it, or asks later, hears a `CreateError`."""
        self._closed = True
        if self._proving is not None:
            self._proving.cancel()
            await asyncio.gather(self._proving, return_exceptions=True)

    async def _prove(self, spec: SandboxSpec) -> None:
        await self._find_policies()
        complaint = (await self._look(spec)).complaint()
        if complaint is not None:
            raise ProviderUnavailable(f"egress cannot be denied here: {complaint}")

    async def _find_policies(self) -> None:
        try:
            answer = await self._api.call("GET", self._api.path("networkpolicies", group=POLICIES))
        except ApiFailure as failure:
            raise ProviderUnavailable(
                f"the network policies cannot be read: {failure}; the role needs `list networkpolicies`"
            ) from failure
        policies = answer.get("items") or []
        missing = [
            what
            for what, is_it in (("egress", denies_egress), ("ingress", guards_ingress))
            if not any(is_it(policy) for policy in policies)
        ]
        if missing:
            raise ProviderUnavailable(
                f"namespace {self._api.namespace} has no network policy for sandboxes' {' and '.join(missing)}; "
                f"{REMEDY}"
            )

    async def _look(self, spec: SandboxSpec) -> Proof:
        canary = await self.canary()
        plain = SandboxSpec(image=spec.image, labels={"caller": "guard"}, lifetime_s=600)
        async with (
            self._sandbox(plain.model_copy(update={"egress": "open"})) as witness,
            self._sandbox(plain.model_copy(update={"egress": "denied"})) as denied,
        ):
            reached = await _reaches(witness, canary)
            deadline = time.monotonic() + LAG_S
            while True:
                leaks, enters = await _reaches(denied, canary), await _reaches(witness, denied.address)
                if not (leaks or enters) or time.monotonic() > deadline:
                    return Proof(canary, reached, leaks, enters)
                await anyio.sleep(1.0)

    async def canary(self) -> tuple[str, int]:
        """An address that pods with open egress reach and denied ones must not: the config's, else the API server's,
        which pods with open egress nearly always reach. Looked up here, since a denied pod may only lack DNS. Raises
        `ProviderUnavailable`."""
        parts = urlsplit(self._api.server)
        host, port = self._config.canary or (parts.hostname or "", parts.port or 443)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ProviderUnavailable(f"the canary {host}:{port} cannot be looked up ({error}); {CANARY}") from error
        addresses = [str(sockaddr[0]) for *_, sockaddr in found]
        usable = [one for one in addresses if not ipaddress.ip_address(one).is_loopback]
        if not usable:
            raise ProviderUnavailable(
                f"a way out of pods cannot be tried on {host}:{port}, which is loopback to each of them; {CANARY}"
            )
        return min(usable, key=lambda one: ":" in one), port  # IPv4 before IPv6, which not every pod network has


def _closed() -> CreateError:
    return CreateError("the provider was closed before the network guard was proved: ask an open one", phase="queue")


async def _reaches(box: KubeSandbox, target: tuple[str, int]) -> bool:
    return (await box.facts(canary=target)).canary == "reached"
