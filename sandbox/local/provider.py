"""The local provider: sandboxes on this machine, owned by it from before they exist until nothing of them is left.

Each sandbox has an owner task of the provider's own. The caller only waits for it and, leaving, says that it is done,
without waiting: so no cancellation of the caller, however often and at whatever moment, can lose a sandbox. What the
event loop cannot finish any more `__aexit__` finishes without it; what a killed process leaves, the next start sweeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from sandbox.box import DaemonSandbox
from sandbox.bundle import bundle
from sandbox.client import ExecdClient
from sandbox.errors import CreateError
from sandbox.local import host
from sandbox.local.cell import Cell, Request
from sandbox.local.disk import DiskWatch
from sandbox.local.image import StoredImage
from sandbox.local.limits import choose_cpus
from sandbox.local.process import SandboxProcess
from sandbox.local.scratch import Instance, state_directory, usable
from sandbox.local.site import Site
from sandbox.local.sweep import sweep
from sandbox.local.ticket import LocalTicket
from sandbox.log import Log
from sandbox.outlast import in_thread, outlast
from sandbox.spec import Egress, Identity, SandboxSpec

if TYPE_CHECKING:
    from sandbox.config import LocalConfig
    from sandbox.local.store import ImageStore

T = TypeVar("T")

DAEMON_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 60.0


class LocalProvider:
    """A `Provider`. Open it with `sandbox.open_provider(LocalConfig())`."""

    name = "local"

    def __init__(self, config: LocalConfig) -> None:
        self.config = config
        self.state_dir = state_directory(config.state_dir)
        self._site: Site | None = None
        self._slots = asyncio.Semaphore(config.max_live)
        self._tickets: set[LocalTicket] = set()
        self._owners: set[asyncio.Task[None]] = set()
        self._cells: dict[str, Cell] = {}
        self._removals: set[asyncio.Future[None]] = set()
        self._log = Log("sandbox.local")

    @cached_property
    def store(self) -> ImageStore:
        """The images of this machine, but for `host`."""
        from sandbox.local.store import ImageStore

        return ImageStore(self.state_dir)

    @property
    def host_image(self) -> StoredImage:
        """The host's own programs as an image."""
        return self._open_site().host

    async def __aenter__(self) -> LocalProvider:
        with usable(self.state_dir):
            instance = Instance.open(self.state_dir)
            try:
                self._site = await in_thread(Site.prepare, instance, self.state_dir, bundle(), self.config.host_python)
            except BaseException:
                with contextlib.suppress(OSError):
                    instance.close()
                raise
        self._remover = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sandman-remove")
        self._later(self._remover.submit(self._sweep))
        self._disk = DiskWatch(self.state_dir)
        self._looking = asyncio.get_running_loop().create_task(self._disk.follow(), name="disk of the sandboxes")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        site, self._site = self._open_site(), None
        self._looking.cancel()
        for ticket in list(self._tickets):
            ticket.release()
        try:
            await outlast(self._owners, CLOSE_TIMEOUT_S)
            await outlast(self._removals, CLOSE_TIMEOUT_S)
        finally:
            for cell in list(self._cells.values()):  # only when the loop was torn down under the owners
                cell.kill("provider closed")
                cell.process.kill_and_wait(timeout_s=KILL_TIMEOUT_S)
                cell.remove()
            self._remover.shutdown(wait=True)
            try:
                site.instance.close()
            except OSError as left:
                self._log.warning("left behind; the next start tries again", error=str(left))

    @contextlib.asynccontextmanager
    async def sandbox(self, spec: SandboxSpec, *, acquire_timeout_s: float = 120.0) -> AsyncIterator[DaemonSandbox]:
        async with self._held(LocalTicket(_new_id(), spec), acquire_timeout_s) as box:
            yield box

    @contextlib.asynccontextmanager
    async def build_sandbox(
        self,
        image: StoredImage,
        upper: Path,
        *,
        egress: Egress = "open",
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        lifetime_s: float = 3600.0,
        acquire_timeout_s: float = 120.0,
    ) -> AsyncIterator[DaemonSandbox]:
        """A sandbox over `image` whose writes are kept in `upper`, to become a layer once the `with` has ended.

        `upper` is the absolute path of an existing, empty directory. Its parent is the caller's, on a file system that
        takes overlays, and holds `<upper>.work` for the while. What is written to
        `/tmp` is not kept. When the `with` has ended nothing writes to `upper` any more.
        """
        spec = SandboxSpec(image=image.reference, egress=egress, env=env or {}, workdir=workdir, lifetime_s=lifetime_s)
        ticket = LocalTicket(_new_id(), spec, image=image, keep_upper=upper)
        self._open_site()  # a closed provider would leave us waiting for an end that never comes
        try:
            async with self._held(ticket, acquire_timeout_s) as box:
                yield box
        finally:
            await ticket.gone.wait()

    @contextlib.asynccontextmanager
    async def _held(self, ticket: LocalTicket, acquire_timeout_s: float) -> AsyncIterator[DaemonSandbox]:
        self._own(ticket)
        try:
            with anyio.move_on_after(acquire_timeout_s):
                await ticket.settled.wait()
            yield ticket.result(acquire_timeout_s=acquire_timeout_s)
        finally:
            ticket.release()  # no await here: see the module's law

    def _own(self, ticket: LocalTicket) -> None:
        """Start the task that owns the ticket's sandbox to its end."""
        self._open_site()
        self._tickets.add(ticket)
        owner = asyncio.get_running_loop().create_task(self._life(ticket), name=f"owner of {ticket.sandbox_id}")
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)

    async def _life(self, ticket: LocalTicket) -> None:
        """One sandbox from its wish to its removal. Catches its own errors: they are the caller's to hear."""
        began, outcome = time.monotonic(), "abandoned"
        holds_slot = False
        cell: Cell | None = None
        client: ExecdClient | None = None
        held = contextlib.ExitStack()
        try:
            with ticket.creating:
                ticket.clock.enter("queue")
                holds_slot = await self._slots.acquire()
                ticket.clock.enter("pull")
                image = ticket.image or await self._resolve(ticket.spec.image, held)
                cell = self._start(ticket, image)
                client = ExecdClient(cell.host, cell.port, cell.token, explain=cell.explain)
                ticket.hand_over(await self._await_daemon(ticket, cell, client))
                outcome = "ended"
            if cell is not None and ticket.box is not None:
                await self._watch(ticket, cell)
        except Exception as error:
            outcome = "failed"
            ticket.fail(error)
        finally:
            try:
                await self._bury(ticket, cell, client)
            finally:
                held.close()
                if holds_slot:
                    self._slots.release()
                self._tickets.discard(ticket)
                ticket.gone.set()
                if not ticket.settled.is_set():  # given up by its caller, who hears nothing, or by our closing
                    ticket.fail(_closed(ticket.clock.phase or "queue"))
            self._report(ticket, cell, outcome, time.monotonic() - began)

    async def _resolve(self, reference: str, held: contextlib.ExitStack) -> StoredImage:
        """The image, held in the store until `held` is closed so that nobody removes it under the sandbox."""
        if reference == host.REFERENCE:
            return self.host_image
        image = await anyio.to_thread.run_sync(self.store.resolve, reference, abandon_on_cancel=True)
        held.enter_context(self.store.hold(image.digest))
        if image.host_programs:
            # The store keeps what a recipe added; the host's own layer, and Python, are those of the host as it is now.
            image = replace(image, layers=(*self.host_image.layers, *image.layers), python=self.host_image.python)
        await in_thread(self._open_site().compile_for, image)
        return image

    def _start(self, ticket: LocalTicket, image: StoredImage) -> Cell:
        site = self._open_site()
        ticket.clock.enter("start")
        in_use = [cell.request.cpus for cell in self._cells.values() if cell.request.cpus]
        wanted = ticket.spec.cpus
        cpus = choose_cpus(wanted, site.cpus, in_use) if wanted is not None else None
        cell = Cell.start(site, Request(ticket.sandbox_id, ticket.spec, image, cpus, ticket.keep_upper))
        self._cells[ticket.sandbox_id] = cell
        return cell

    async def _await_daemon(self, ticket: LocalTicket, cell: Cell, client: ExecdClient) -> DaemonSandbox:
        """Wait until the daemon answers, and keep what it says about itself: the proof of never used."""
        await cell.process.spawned.wait()
        ticket.clock.enter("daemon")
        health = await _or_ended(client.wait_ready(timeout_s=DAEMON_TIMEOUT_S), cell.process)
        ticket.clock.enter(None)
        image = cell.request.image
        identity = Identity(
            sandbox_id=ticket.sandbox_id,
            provider=self.name,
            boot_id=health.boot_id,
            image_ref=ticket.spec.image,
            image_digest=image.digest,
            created_at=ticket.created_at,
            execs_before=health.execs,
            handovers=1,
            runtime="bubblewrap",
        )
        return DaemonSandbox(
            ticket.spec,
            identity,
            ticket.clock.times(),
            cell.unenforced,
            client,
            cell.ended_because,
            lambda: self._neighbour_of(ticket),
            find_trouble=lambda: self._trouble_since(cell.started_at),
        )

    def _neighbour_of(self, ticket: LocalTicket) -> tuple[str, int] | None:
        others = (cell for sandbox_id, cell in self._cells.items() if sandbox_id != ticket.sandbox_id)
        return next(((cell.host, cell.port) for cell in others if cell.ended_because() is None), None)

    def _trouble_since(self, at: float) -> str | None:
        self._disk.look()
        if not self._disk.was_full_since(at):
            return None
        return f"the disk of its sandboxes ({self.state_dir}) was full meanwhile; make room there"

    async def _watch(self, ticket: LocalTicket, cell: Cell) -> None:
        """Wait for the caller's release; end the sandbox when its lifetime is over."""
        with anyio.move_on_after(ticket.spec.lifetime_s):
            await ticket.released.wait()
            return
        cell.kill("lifetime")
        await ticket.released.wait()

    async def _bury(self, ticket: LocalTicket, cell: Cell | None, client: ExecdClient | None) -> None:
        """End the sandbox's processes, then have its directories removed off everybody's path."""
        if cell is None:
            return
        cell.kill("provider closed" if self._site is None else "released")
        with anyio.move_on_after(KILL_TIMEOUT_S):
            await cell.process.ended.wait()
        if client is not None:
            with contextlib.suppress(Exception):
                await client.aclose()
        if cell.process.ended.is_set():
            removal = self._later(self._remover.submit(cell.remove))
            del self._cells[ticket.sandbox_id]
            if ticket.keep_upper is not None:
                await asyncio.wait([removal])
        else:
            self._log.warning("a killed sandbox does not end; closing tries again", id=ticket.sandbox_id)

    def _later(self, removal: Future[None]) -> asyncio.Future[None]:
        future = asyncio.wrap_future(removal)
        self._removals.add(future)
        future.add_done_callback(self._removed)
        return future

    def _removed(self, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        if not removal.cancelled() and (error := removal.exception()) is not None:
            self._log.warning("left behind; the next start tries again", error=str(error))

    def _sweep(self) -> None:
        swept = sweep(self.state_dir)
        if swept.instances:
            self._log.info("swept", instances=swept.instances, sandboxes=swept.sandboxes, processes=swept.processes)

    def _report(self, ticket: LocalTicket, cell: Cell | None, outcome: str, lived_s: float) -> None:
        phases = {f"{phase}_s": round(seconds, 4) for phase, seconds in ticket.clock.seconds().items()}
        self._log.info(
            "sandbox",
            id=ticket.sandbox_id,
            image=ticket.spec.image,
            outcome=outcome,
            cause=cell.cause() if cell else None,
            error=str(ticket.error) if ticket.error else None,
            lived_s=round(lived_s, 3),
            **phases,
            **{f"label_{name}": value for name, value in ticket.spec.labels.items()},
        )

    def _open_site(self) -> Site:
        if self._site is None:
            raise _closed("queue")
        return self._site


def _closed(phase: str) -> CreateError:
    return CreateError("the provider is not open: use it inside `async with open_provider(...)`", phase=phase)


def _new_id() -> str:
    return f"sb-{secrets.token_hex(6)}"


async def _or_ended(ready: Coroutine[Any, Any, T], process: SandboxProcess) -> T:
    """What the daemon answers, or `CreateError` as soon as its process is gone."""
    answer = asyncio.ensure_future(ready)
    end = asyncio.ensure_future(process.ended.wait())
    try:
        await asyncio.wait({answer, end}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done() and answer.exception() is None:
            return answer.result()
        with anyio.move_on_after(1.0):
            await end  # the way to it breaks a moment before the process is gone
    finally:
        answer.cancel()
        end.cancel()
    error = answer.exception() if answer.done() and not answer.cancelled() else None
    raise _not_ready(process, error) from error


def _not_ready(process: SandboxProcess, error: BaseException | None) -> CreateError:
    said = process.log_tail() or (str(error) if error else "nothing")
    status = process.exit_status
    state = f"ended with status {status}" if status is not None else "did not answer"
    return CreateError(
        f"the sandbox {state} before it was ready; it said: {said}", phase="daemon", exit_status=status, said=said
    )
