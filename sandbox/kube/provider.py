"""The Kubernetes provider: plain pods, owned from before they are asked for until the server says that they are gone.

Each sandbox is made by a task of the provider's own. The caller only waits for it and, leaving, says that it is done,
without waiting: no cancellation of the caller, however often and at whatever moment, loses a pod. Closing the provider
outlasts cancellations as well and waits, for a bounded time, until everything is gone; what is not is listed and left
to the janitor, who knows the run by its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from importlib.resources import files
from types import TracebackType
from typing import Any

import anyio

from sandbox.bundle import bundle
from sandbox.client import ExecdClient
from sandbox.config import KubernetesConfig
from sandbox.errors import CreateError, ProviderUnavailable, SandboxLost
from sandbox.kube import birth
from sandbox.kube import ownership as rules
from sandbox.kube.api import ApiFailure, open_api
from sandbox.kube.box import KubeSandbox
from sandbox.kube.endings import ended_early, lost
from sandbox.kube.events import Events
from sandbox.kube.guard import Guard
from sandbox.kube.janitor import sweep
from sandbox.kube.keep import kept_up
from sandbox.kube.lease import RunLease
from sandbox.kube.loss import EXPLAIN_S, explained, is_over
from sandbox.kube.manifest import BOOT_KEY, PREFIX, RUN_LABEL, Mark, config_map, image_ref, pod
from sandbox.kube.owner import Owner
from sandbox.kube.pulls import Pulls
from sandbox.kube.snapshot import Pod
from sandbox.kube.ticket import PodTicket
from sandbox.kube.watch import Watch
from sandbox.log import Log
from sandbox.outlast import outlast
from sandbox.pacing import Pacer, PacerLimits, Permit
from sandbox.spec import Identity, SandboxSpec

CLOSE_TIMEOUT_S = 120.0
"""Closing goes on for as long as it gets somewhere in that time. Longer than a create of unknown outcome stays in
doubt."""

RELEASED = "released"
"""The cause of a sandbox's end that its own holder made."""

LOOK_S = 5.0
"""Between two looks whether the watch is silent."""


class KubernetesProvider:
    """A `Provider`. Open it with `sandbox.open_provider(KubernetesConfig())`."""

    name = "kubernetes"

    def __init__(self, config: KubernetesConfig) -> None:
        self.config = config
        self.run_id = f"run-{secrets.token_hex(6)}"
        self.lease_name = f"{PREFIX}-{self.run_id}"
        self._selector = f"{RUN_LABEL}={self.run_id}"
        self._open = False
        self._tickets: set[PodTicket] = set()
        self._births: set[asyncio.Task[None]] = set()
        self._requests: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._owners: dict[str, Owner] = {}
        self._clients: dict[str, tuple[str, ExecdClient]] = {}
        """Of sandboxes whose container ran: the pod's UID, and who waits for its daemon."""
        self._permits: dict[str, Permit] = {}
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._log = Log("sandbox.kube")

    @property
    def pending(self) -> tuple[str, ...]:
        """Pods that are to go and that the server has not yet said to be gone, by name."""
        return tuple(name for name, owner in self._owners.items() if not owner.claim.wanted)

    async def canary(self) -> tuple[str, int]:
        """An address that sandboxes with egress open reach and denied ones must not. Raises `ProviderUnavailable`."""
        return await self._guard.canary()

    # -- open and close ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> KubernetesProvider:
        pacing = self.config.pacing
        limits = PacerLimits(pacing.creates_per_s, pacing.burst, pacing.max_in_flight, pacing.max_live)
        self._pacer = Pacer(limits)
        self._resources = contextlib.AsyncExitStack()
        try:
            self._api = await self._resources.enter_async_context(open_api(self.config))
            self._config_map = await self._publish_execd()
            self._lease = RunLease(self._api, self.lease_name, duration_s=self.config.lease_s)
            await self._lease.begin()
        except BaseException:
            await self._resources.aclose()
            raise
        self._open = True
        self._events = Events(self._api)
        self._pulls = Pulls(self._events)
        self._guard = Guard(self._api, self.config, self._probe_sandbox)
        self._watch = Watch(self._api, self._selector, self)
        self._spawn(self._background, kept_up(self._watch.follow, "watch"), "watch")
        self._spawn(self._background, kept_up(self._look_again, "looks beside the watch"), "looks")
        self._spawn(self._background, kept_up(self._lease.renew, "lease"), "lease")
        self._spawn(self._background, kept_up(self._sweep, "janitor"), "janitor")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        for ticket in list(self._tickets):
            ticket.release()
        closing = asyncio.get_running_loop().create_task(self._close())
        await outlast({closing})
        closing.result()

    async def _close(self) -> None:
        """Wait until nothing of ours is left, then stop. Bounded, whatever the server does: but thousands may take
        their time, as long as there are ever fewer of them."""
        left_before = math.inf
        while self._births or self._owners:
            if len(self._owners) >= left_before:
                break
            left_before = len(self._owners)
            with anyio.move_on_after(CLOSE_TIMEOUT_S):
                if self._births:
                    await asyncio.wait(self._births)
                await self._none_left.wait()
        left = self.pending
        await self._guard.close()
        for owner in self._owners.values():
            owner.stop()
        for task in [*self._background, *self._requests]:
            task.cancel()
        await asyncio.gather(*self._background, *self._requests, return_exceptions=True)
        if left:
            claims = [str(self._owners[name].claim) for name in left]
            self._log.error("left to the janitor", pods=left, claims=claims, lease=self.lease_name)
        else:
            await self._lease.end()  # once nobody renews it
        await self._resources.aclose()

    # -- sandboxes -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def sandbox(self, spec: SandboxSpec, *, acquire_timeout_s: float = 120.0) -> AsyncIterator[KubeSandbox]:
        began = time.monotonic()
        if spec.egress == "denied":
            await self._guard.prove(spec, timeout_s=acquire_timeout_s)
        left_s = max(0.0, acquire_timeout_s - (time.monotonic() - began))
        async with self._held(spec, left_s) as box:
            yield box

    @contextlib.asynccontextmanager
    async def _held(self, spec: SandboxSpec, acquire_timeout_s: float) -> AsyncIterator[KubeSandbox]:
        if not self._open:
            raise CreateError("the provider is closed: use it inside `async with open_provider(...)`", phase="queue")
        ticket = PodTicket(f"{PREFIX}-{secrets.token_hex(8)}", spec)
        self._tickets.add(ticket)
        self._spawn(self._births, self._life(ticket), f"birth of {ticket.sandbox_id}")
        try:
            with anyio.move_on_after(acquire_timeout_s):
                await ticket.settled.wait()
            if not ticket.settled.is_set() and ticket.turn is not None and ticket.turn.state == "waiting":
                raise self._pacer.late(ticket.turn, acquire_timeout_s)
            yield ticket.result(acquire_timeout_s=acquire_timeout_s)
        finally:
            ticket.release()  # no await here: see the module's law

    def _probe_sandbox(self, spec: SandboxSpec) -> contextlib.AbstractAsyncContextManager[KubeSandbox]:
        """For the guard, which cannot wait for its own proof."""
        return self._held(spec, self.config.budgets.schedule_s + self.config.budgets.pull_s)

    async def _life(self, ticket: PodTicket) -> None:
        """One sandbox from its wish to its caller's release. Catches its own errors: they are the caller's to hear."""
        began, outcome = time.monotonic(), "abandoned"
        owner: Owner | None = None
        permit: Permit | None = None
        client: ExecdClient | None = None
        try:
            with ticket.creating:
                ticket.clock.enter("queue")
                image_ref(ticket.spec.image, self.config.images)  # what will be refused need not queue
                key = _key(ticket.spec)
                ticket.turn = self._pacer.ask(key)
                permit = await self._pacer.acquire(key, timeout_s=math.inf, turn=ticket.turn)
                token = secrets.token_urlsafe(32)
                owner = self._own(ticket, token, permit)
                await birth.be_stored(owner, permit)
                running = await birth.run(ticket, owner, self._events, self.config)
                client = self._client(ticket, owner, running, token)
                self._clients[ticket.sandbox_id] = running.uid, client
                ticket.hand_over(await self._await_daemon(ticket, owner, running, client))
                permit.settled()
                outcome = "ended"
            if ticket.box is not None:
                await ticket.released.wait()
        except Exception as error:
            outcome = "failed"
            ticket.fail(error)
        finally:
            if not ticket.settled.is_set():
                ticket.fail(CreateError("the sandbox was given up before it was ready; ask again", phase="queue"))
            if owner is not None:
                owner.tell(rules.Abandoned())
            if permit is not None:
                permit.settled() if owner is not None else permit.gone()
            self._tickets.discard(ticket)
            self._clients.pop(ticket.sandbox_id, None)
            self._report(ticket, owner, outcome, time.monotonic() - began)
            if client is not None:
                with contextlib.suppress(Exception):
                    await client.aclose()

    def _own(self, ticket: PodTicket, token: str, permit: Permit) -> Owner:
        mark = Mark(ticket.sandbox_id, secrets.token_hex(16), self.run_id, self.lease_name)
        token_sha256 = hashlib.sha256(token.encode()).hexdigest()
        manifest = pod(ticket.spec, self.config, mark, token_sha256=token_sha256, config_map=self._config_map)

        def ask(work: Coroutine[Any, Any, None]) -> None:
            task = self._spawn(self._requests, work, f"request for {mark.name}")
            task.add_done_callback(lambda _: self._heard_of(owner))  # a look may have found the pod gone

        owner = Owner(
            self._api,
            rules.Claim(mark.name, mark.nonce),
            json.dumps(manifest).encode(),
            grace_s=self.config.grace_s,
            spawn=ask,
            watched=self._watch.tells,
            on_send=permit.sent,
            on_closed=self._disown,
        )
        self._owners[mark.name] = owner
        self._permits[mark.name] = permit
        self._none_left.clear()
        return owner

    def _disown(self, owner: Owner) -> None:
        """Nothing of it exists and nothing can come to exist."""
        del self._owners[owner.claim.name]
        self._permits.pop(owner.claim.name).gone()
        if not self._owners:
            self._none_left.set()

    def _client(self, ticket: PodTicket, owner: Owner, running: Pod, token: str) -> ExecdClient:
        assert running.ip is not None

        async def explain() -> str | None:
            if ticket.box is None:  # whoever makes it asks for itself
                return None
            if ticket.released.is_set():
                return RELEASED
            end = await explained(owner, running, self._events, lifetime_s=ticket.spec.lifetime_s)
            if ticket.released.is_set() and (end is None or end.cause == "deleted"):  # by us, meanwhile
                return RELEASED
            if end is not None:
                raise lost(ticket.sandbox_id, end)
            return None

        return ExecdClient(running.ip, self.config.port, token, explain=explain)

    async def _await_daemon(self, ticket: PodTicket, owner: Owner, running: Pod, client: ExecdClient) -> KubeSandbox:
        """Wait until the daemon answers, and keep what it says about itself: the proof of never used."""
        ticket.clock.enter("daemon")
        try:
            health = await client.wait_ready(timeout_s=self.config.budgets.daemon_s)
        except SandboxLost as error:
            end = await explained(
                owner, running, self._events, lifetime_s=ticket.spec.lifetime_s, patience_s=2 * EXPLAIN_S
            )
            if end is not None:
                raise ended_early(ticket.sandbox_id, "daemon", end) from error
            raise CreateError(
                f"execd in {ticket.sandbox_id} ({running.ip}:{self.config.port} on {running.node}) did not answer "
                f"within {self.config.budgets.daemon_s:g} s; pods must be reachable from here, and the ingress policy "
                "must let this worker in",
                phase="daemon",
                node=running.node,
            ) from error
        phases = await self._pulls.told_apart(ticket.clock.times(), running)
        ticket.clock.enter(None)
        image = image_ref(ticket.spec.image, self.config.images)
        identity = Identity(
            sandbox_id=ticket.sandbox_id,
            provider=self.name,
            boot_id=health.boot_id,
            image_ref=ticket.spec.image,
            image_digest=image.digest,
            created_at=ticket.created_at,
            execs_before=health.execs,
            handovers=1,
            runtime=self.config.runtime_class or "default",
        )
        return KubeSandbox(
            spec=ticket.spec,
            identity=identity,
            phases=phases,
            unenforced=await _unenforced(ticket.spec, client),
            client=client,
            node=running.node or "",
            address=(running.ip or "", self.config.port),
            ended_because=lambda: RELEASED if ticket.released.is_set() else None,
            find_neighbour=lambda: self._neighbour_of(ticket),
        )

    def _neighbour_of(self, ticket: PodTicket) -> tuple[str, int] | None:
        others = (other.box for other in self._tickets if other is not ticket and not other.released.is_set())
        return next((box.address for box in others if isinstance(box, KubeSandbox)), None)

    def _heard_of(self, owner: Owner) -> None:
        """Who waits for a sandbox that is over hears it now, and not when its address stays silent for too long."""
        uid, client = self._clients.get(owner.claim.name, (None, None))
        if uid is not None and client is not None and is_over(owner, uid):
            client.break_off()

    # -- news of the run's pods ----------------------------------------------------------------------------------------

    def on_list(self, pods: Sequence[Pod], asked_at: float) -> None:
        named = {one.name: one for one in pods}
        for name, owner in list(self._owners.items()):
            found = named.get(name)
            if found is not None:
                owner.on_pod(found)
            else:
                owner.on_not_listed(asked_at)
            self._heard_of(owner)

    def on_pod(self, pod: Pod) -> None:
        owner = self._owners.get(pod.name)
        if owner is not None:
            owner.on_pod(pod)
            self._heard_of(owner)

    def on_gone(self, pod: Pod) -> None:
        owner = self._owners.get(pod.name)
        if owner is not None:
            owner.on_gone(pod)
            self._heard_of(owner)

    async def _look_again(self) -> None:
        """A watch that is silent may be dead on one side: while some stored pod is waited for, the run is listed."""
        while True:
            await anyio.sleep(LOOK_S)
            if self._watch.tells() or not any(ticket.waits_for_its_pod for ticket in self._tickets):
                continue
            asked_at = time.monotonic()
            try:
                pods, _ = await self._api.list_pods(self._selector)
            except ApiFailure as failure:
                self._log.info("not looked beside the watch", said=str(failure))
            else:
                self.on_list(pods, asked_at)

    # -- what else runs ------------------------------------------------------------------------------------------------

    async def _publish_execd(self) -> str:
        """Make sure that execd's ConfigMap is there; its name. Raises `ProviderUnavailable`."""
        manifest = config_map(bundle(), files("sandbox.kube").joinpath(BOOT_KEY).read_bytes())
        name = str(manifest["metadata"]["name"])
        try:
            await self._api.call("POST", self._api.path("configmaps"), manifest)
        except ApiFailure as failure:
            if failure.status != 409:  # it is there, and a name stands for its content
                raise ProviderUnavailable(
                    f"execd cannot be put into namespace {self._api.namespace}: {failure}; see that the server is up, "
                    "that the namespace exists, and that the role of docs/kubernetes.md is given"
                ) from failure
        return name

    async def _sweep(self) -> None:
        """What dead runs left behind goes when another run begins."""
        try:
            swept = await sweep(self._api, grace_s=self.config.grace_s)
        except ApiFailure as failure:
            self._log.info("not swept", said=str(failure))
            return
        if swept.deleted or swept.failed:
            self._log.info("swept", deleted=swept.deleted, failed=swept.failed)

    def _spawn(self, group: set[asyncio.Task[None]], work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        group.add(task)
        task.add_done_callback(group.discard)
        return task

    def _report(self, ticket: PodTicket, owner: Owner | None, outcome: str, lived_s: float) -> None:
        phases = {f"{phase}_s": round(seconds, 4) for phase, seconds in ticket.clock.seconds().items()}
        self._log.info(
            "sandbox",
            id=ticket.sandbox_id,
            image=ticket.spec.image,
            node=owner.pod.node if owner is not None and owner.pod is not None else None,
            outcome=outcome,
            error=str(ticket.error) if ticket.error else None,
            lived_s=round(lived_s, 3),
            **phases,
            **{f"label_{name}": value for name, value in ticket.spec.labels.items()},
        )


async def _unenforced(spec: SandboxSpec, client: ExecdClient) -> tuple[str, ...]:
    """The limits of the spec that do not hold in the pod. How many processes a pod may have only its node decides."""
    missing = ["processes"] if spec.processes is not None else []
    if spec.open_files is not None or spec.shm_mib is not None:
        seen = (await client.facts()).raw
        if spec.open_files not in {None, seen.get("open_files_limit")}:
            missing.append("open_files")
        if spec.shm_mib is not None and seen.get("dev_shm_bytes") != spec.shm_mib << 20:  # servers before 1.22
            missing.append("shm_mib")
    return tuple(missing)


def _key(spec: SandboxSpec) -> str:
    """Whose turn an acquire uses: callers that name themselves take turns with the others."""
    return spec.labels.get("caller") or spec.labels.get("run") or ""
