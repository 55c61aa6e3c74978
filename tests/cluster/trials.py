"""Trials of ownership against a real API server, in numbers: `python -m tests.cluster.trials --trials 3000 --kills 50`.

A trial is one acquire through a proxy that loses, delays and refuses (`faults.py`), whose caller, or the task that
holds the provider, or both, are cancelled at some moment, once, twice or five times. Some of the pods come to run: who
gets one runs a command, holds it for a while and gives it back. 25 trials share a provider: a run. Beside them stand
pods of others. Counted in the end: pods of ours that are left, pods of others that are gone.

Kills of whole processes are counted beside them: `kills.py`.

The plan of every trial is settled by the seed, its run and its number: `--run N` does one run again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import structlog

from sandbox import KubernetesConfig, open_provider
from sandbox.config import PacingConfig
from sandbox.errors import SandboxError
from sandbox.kube import ownership
from sandbox.kube.api import Api, open_api
from tests.cluster.conftest import KUBE_DIR, a_namespace, pods_of
from tests.cluster.fakepods import answering
from tests.cluster.faults import (
    LATEST_STORE_S,
    MOMENTS,
    NOWHERE,
    FaultyServer,
    Plan,
    foreign_pod,
    proxied_kubeconfig,
)
from tests.cluster.kills import kill_trials

PER_RUN = 25
RUNS_AT_ONCE = 8
FAULTS_SHARE = 0.35
RUNS_SHARE = 0.75
LONGEST_HOLD_S = 1.0
SENTINELS = 10
RUN_LIMIT_S = 400.0
"""A run takes a quarter of a minute. One that takes so much longer is given up, and named."""

HOLDS = "it holds one"
MOMENTS_OF_A_CALLER = (*MOMENTS[:5], HOLDS, HOLDS)
"""Other ones of the proxy come when it has gone."""
CALLER_AWAITS = 3
"""Of one that gets a sandbox: for it, for its command, for the end of its hold. Giving it back is the host's."""
HOST_AWAITS = 24
"""From the first of opening to the last of closing."""

Who = Literal["nobody", "caller", "host"]


@dataclass(frozen=True)
class Cancel:
    """Who is cancelled, how often, and when: after some seconds, at a moment of its requests, or at its own n-th await
    and the awaits that follow."""

    who: Who
    times: int = 0
    after_s: float | None = None
    moment: str | None = None
    at_await: int | None = None


def cancel_of_a_caller(chance: random.Random) -> Cancel:
    """One trial's cancellation."""
    times = chance.choice((0, 1, 2, 5))
    if times == 0:
        return Cancel("nobody")
    when = chance.random()
    if when < 0.3:
        return Cancel("caller", times, after_s=chance.uniform(0, 2))
    if when < 0.8:
        return Cancel("caller", times, moment=chance.choice(MOMENTS_OF_A_CALLER))
    return Cancel("caller", times, at_await=chance.randrange(1, CALLER_AWAITS + 1))


def cancel_of_a_host(number: int, chance: random.Random) -> Cancel:
    """Half of the runs are cancelled as a whole: by turns at each of the host's awaits, after a while, or at a moment
    of one of its trials' requests."""
    times = (1, 2, 5)[number // 6 % 3]
    if number % 6 == 0:
        return Cancel("host", times, at_await=1 + number // 6 % HOST_AWAITS)
    if number % 6 == 1:
        return Cancel("host", times, after_s=chance.uniform(0.02, 2))
    if number % 6 == 2:
        return Cancel("host", times, moment=chance.choice(MOMENTS))
    return Cancel("nobody")


class Steps:
    """A coroutine that is cancelled at its own n-th await, and at the ones that follow, `times` in all."""

    def __init__(self, work: Coroutine[Any, Any, None], cancel: Cancel, on_cancel: Callable[[], None]) -> None:
        assert cancel.at_await is not None
        self.work = work
        self.awaits = 0
        self.cancel_at = range(cancel.at_await, cancel.at_await + cancel.times)
        self.on_cancel = on_cancel

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        inner = self.work.__await__()
        go_on: Callable[[], Any] = lambda: next(inner)  # noqa: E731
        while True:
            try:
                waits_for = go_on()
            except StopIteration:
                return
            self.awaits += 1
            if self.awaits in self.cancel_at:
                task.cancel()
                self.on_cancel()
            try:
                yield waits_for
                go_on = lambda: inner.send(None)  # noqa: E731
            except BaseException as error:
                go_on = lambda error=error: inner.throw(error)  # noqa: E731


async def _stepped(work: Coroutine[Any, Any, None], cancel: Cancel, on_cancel: Callable[[], None]) -> None:
    await Steps(work, cancel, on_cancel)


@dataclass
class Count:
    """What the trials came to."""

    trials: int = 0
    """Acquires that began. Runs that were cancelled while their provider opened have none."""
    under_way: int = 0
    runs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    cancelled: Counter[str] = field(default_factory=Counter)
    """Trials by who was cancelled, and how often."""
    moments: Counter[str] = field(default_factory=Counter)
    """Cancellations by the moment that they came at."""
    faults: Counter[str] = field(default_factory=Counter)
    ownerless: list[str] = field(default_factory=list)
    foreign_deletes: list[str] = field(default_factory=list)
    foreign: int = 0
    stuck: list[str] = field(default_factory=list)
    """Runs that were not over in their time."""
    unexpected: list[str] = field(default_factory=list)
    """Errors of callers and hosts that are none of the product's, and of the proxy."""


class Run:
    """A provider and its callers, cancelled by plan, before a server with faults."""

    def __init__(self, admin: Api, config: KubernetesConfig, seed: str, number: int, count: Count) -> None:
        self.admin = admin
        self.config = config
        self.seed = f"{seed}/{number}"
        self.chance = random.Random(self.seed)
        self.host_cancel = cancel_of_a_host(number, self.chance)
        self.count = count
        self.callers: dict[str, tuple[Cancel, asyncio.Task[None]]] = {}
        self.fired: set[str] = set()
        """Trials whose caller was cancelled, and "host"."""
        self.held: set[str] = set()
        """Trials whose caller got a sandbox."""

    async def trials(self, how_many: int, scratch: Path) -> None:
        assert self.config.kubeconfig is not None
        proxy = FaultyServer(self.admin, Plan(self.seed, FAULTS_SHARE, runs=RUNS_SHARE), on_moment=self._on_moment)
        async with proxy.serve():
            through = proxied_kubeconfig(
                self.config.kubeconfig, proxy.url, scratch / f"{self.seed.replace('/', '-')}.kubeconfig"
            )
            config = self.config.model_copy(update={"kubeconfig": through})
            await self._cancelled(self._host(config, how_many))
        self._note()
        self.count.faults += proxy.plan.injected
        self.count.foreign += len(proxy.strangers)
        self.count.unexpected += [f"{self.seed}: {what}" for what in proxy.broken]
        left = await pods_of(self.admin, self._namespace)
        self.count.foreign_deletes += [f"{self.seed}: {name}" for name in proxy.strangers if name not in left]

    @property
    def _namespace(self) -> str:
        assert self.config.namespace is not None
        return self.config.namespace

    async def _host(self, config: KubernetesConfig, how_many: int) -> None:
        async with open_provider(config) as provider:

            async def caller(trial: str, timeout_s: float, hold_s: float) -> None:
                spec = NOWHERE.model_copy(update={"labels": {"trial": trial}})
                try:
                    async with provider.sandbox(spec, acquire_timeout_s=timeout_s) as box:
                        self.held.add(trial)
                        self._on_moment(trial, HOLDS)
                        await box.run("true", timeout_s=20)
                        await asyncio.sleep(hold_s)
                    self.count.outcomes["got one, gave it back"] += 1
                except SandboxError as error:
                    self.count.outcomes[type(error).__name__] += 1

            for number in range(how_many):
                trial = str(number)
                chance = random.Random(f"{self.seed}/{trial}")
                cancel = cancel_of_a_caller(chance)
                in_a_hurry = cancel.moment is None and chance.random() < 0.4
                longest_s = chance.uniform(0.05, 2.5) if in_a_hurry else 8.0
                work = caller(trial, longest_s, chance.uniform(0, LONGEST_HOLD_S))
                if cancel.at_await is not None:
                    work = _stepped(work, cancel, partial(self._fire, trial, "at an await"))
                self.callers[trial] = cancel, asyncio.get_running_loop().create_task(work)
                if cancel.after_s is not None:
                    asyncio.get_running_loop().call_later(cancel.after_s, self._cancel, trial, "after a while")
            await asyncio.wait([task for _, task in self.callers.values()])

    async def _cancelled(self, host: Coroutine[Any, Any, None]) -> None:
        """Run the host, cancelled as its plan says."""
        cancel = self.host_cancel
        if cancel.at_await is not None:
            host = _stepped(host, cancel, partial(self._fire, "host", "at an await"))
        task = self.host = asyncio.get_running_loop().create_task(host)
        await asyncio.wait({task}, timeout=cancel.after_s)
        if cancel.after_s is not None:
            self._cancel("host", "after a while")
            await asyncio.wait({task})
        tasks = [task for _, task in self.callers.values()]
        if tasks:  # those whose provider has gone end by themselves
            await asyncio.wait(tasks)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.count.outcomes[f"run: {error!r}"] += 1
            self._expect(error)

    def _expect(self, error: BaseException) -> None:
        if not isinstance(error, SandboxError):
            self.count.unexpected.append(f"{self.seed}: {error!r}")

    def _on_moment(self, trial: str, moment: str) -> None:
        cancel, _ = self.callers.get(trial, (None, None))
        if cancel is not None and cancel.moment == moment:
            self._cancel(trial, moment)
        if self.host_cancel.moment == moment and "host" not in self.fired:
            self._cancel("host", moment)

    def _cancel(self, who: str, moment: str) -> None:
        """Once now, and again each time that the loop turns, until it was done as often as planned."""
        cancel, task = (self.host_cancel, self.host) if who == "host" else self.callers[who]

        def again(left: int) -> None:
            if left and not task.done():
                task.cancel()
                self._fire(who, moment)
                asyncio.get_running_loop().call_soon(again, left - 1)

        again(cancel.times)

    def _fire(self, who: str, moment: str) -> None:
        self.count.moments[moment if who != "host" else f"the host: {moment}"] += who not in self.fired
        self.fired.add(who)

    def _note(self) -> None:
        """Count what was planned and came to pass."""
        self.count.runs += 1
        self.count.trials += len(self.callers)
        by_host = "host" in self.fired
        for trial, (cancel, task) in self.callers.items():
            by_caller = trial in self.fired
            times = cancel.times if by_caller else self.host_cancel.times if by_host else 0
            who = ("both" if by_host else "caller") if by_caller else "host" if by_host else "nobody"
            self.count.cancelled[f"{who}, {times} times" if times else who] += 1
            if task.cancelled():
                self.count.outcomes["cancelled with one" if trial in self.held else "cancelled"] += 1
            elif (error := task.exception()) is not None:
                self._expect(error)


async def ownership_trials(
    admin: Api, config: KubernetesConfig, *, trials: int, seed: str, only: Iterable[int] | None = None
) -> Count:
    """All runs of `trials` trials in the config's namespace, or those named by `only`."""
    count = Count()
    assert config.namespace is not None
    pods = f"/api/v1/namespaces/{config.namespace}/pods"
    sentinels = [f"foreign-{number}" for number in range(SENTINELS)]
    for name in sentinels:
        await admin.call("POST", pods, foreign_pod(name))
    numbers = iter(itertools.count() if only is None else only)
    with (
        tempfile.TemporaryDirectory() as scratch,
        patch.object(ownership, "DOUBT_S", 2 * LATEST_STORE_S + 1),  # the proxy stores nothing later than that
    ):
        async with answering(0) as port:
            ours = config.model_copy(
                update={
                    "port": port,
                    "pacing": PacingConfig(creates_per_s=200, burst=100),
                    "node_selector": {"no": "node"},
                }
            )

            async def runs() -> None:
                while count.trials + count.under_way < trials and (number := next(numbers, None)) is not None:
                    count.under_way += PER_RUN
                    run = Run(admin, ours, seed, number, count)
                    work = asyncio.get_running_loop().create_task(run.trials(PER_RUN, Path(scratch)))
                    done, _ = await asyncio.wait({work}, timeout=RUN_LIMIT_S)
                    count.under_way -= PER_RUN
                    if not done:  # cancelling it would wait for as long
                        count.stuck.append(run.seed)
                        return
                    work.result()
                    print(f"{count.trials} trials", file=sys.stderr)

            async with asyncio.TaskGroup() as group:
                for _ in range(RUNS_AT_ONCE):
                    group.create_task(runs())
    await asyncio.sleep(2.0)  # a grace, and what the server had not yet said
    left = (await admin.call("GET", pods, timeout_s=120))["items"]
    count.ownerless = [
        f"{one['metadata']['labels']['sandman-grader/run']}: {one['metadata']['name']}"
        for one in left
        if "sandman-grader/run" in one["metadata"]["labels"]
    ]
    names = {one["metadata"]["name"] for one in left}
    count.foreign_deletes += [name for name in sentinels if name not in names]
    count.foreign += len(sentinels)
    return count


# -- the command -------------------------------------------------------------------------------------------------------


async def main(trials: int, kills: int, seed: str, only: int | None) -> int:
    """Both counts, as JSON. Exit status 0: nothing was left and nothing of others was touched."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    kubeconfig = Path(os.environ.get("KUBECONFIG") or KUBE_DIR / "pki" / "admin.kubeconfig")
    bad = False
    async with open_api(KubernetesConfig(kubeconfig=kubeconfig)) as admin:
        if trials:
            async with a_namespace(admin) as namespace:
                began = time.monotonic()
                config = KubernetesConfig(kubeconfig=kubeconfig, namespace=namespace)
                count = await ownership_trials(
                    admin, config, trials=trials, seed=seed, only=None if only is None else [only]
                )
                bad = bool(count.ownerless or count.foreign_deletes or count.stuck or count.unexpected)
                took_s = round(time.monotonic() - began)
                print(json.dumps({"seed": seed, "took_s": took_s, **vars(count)}, indent=2), flush=True)
                if count.stuck:
                    os._exit(1)  # leaving in order would wait for what does not end
        if kills:
            async with a_namespace(admin) as namespace:
                config = KubernetesConfig(kubeconfig=kubeconfig, namespace=namespace)
                told = await kill_trials(admin, config, kills=kills, seed=seed)
                bad = bad or bool(told.ownerless or told.foreign_deletes or told.living_deletes)
                print(json.dumps(vars(told), indent=2))
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Trials of ownership against a real API server.")
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--run", type=int, default=None)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.trials, given.kills, given.seed, given.run)))
