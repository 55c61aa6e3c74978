"""Processes that are killed with creates under way: what they leave is the janitor's, and nothing else is.

A kill is a process with twenty creates under way that gets SIGKILL. After the lease's time one run of the janitor must
leave nothing of it, and everything of others and of a run that lives. `trials.py` is the command;
`python -m tests.cluster.kills KUBECONFIG NAMESPACE` is a process to be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from sandbox import KubernetesConfig, open_provider
from sandbox.config import PacingConfig
from sandbox.errors import SandboxError
from sandbox.kube.api import Api, open_api
from sandbox.kube.janitor import sweep
from sandbox.kube.lease import CLOCK_MARGIN_S
from tests.cluster.conftest import pods_of
from tests.cluster.faults import NOWHERE, foreign_pod

CREATES_PER_VICTIM = 20
VICTIM_LEASE_S = 5
START_LIMIT_S = 120.0
"""For what a kill waits for: a process that starts, pods that are made."""


@dataclass(frozen=True)
class Kills:
    """What the kills came to."""

    kills: int
    most_left: int
    """Pods that lay about after a kill, at most."""
    swept: int
    ownerless: list[str]
    foreign_deletes: list[str]
    living_deletes: list[str]


async def kill_trials(admin: Api, config: KubernetesConfig, *, kills: int, seed: str) -> Kills:
    """Kill processes that make sandboxes, and let the janitor run once when their leases are over."""
    assert config.namespace is not None and config.kubeconfig is not None
    await admin.call("POST", f"/api/v1/namespaces/{config.namespace}/pods", foreign_pod("bystander"))
    most_left, chance = 0, random.Random(f"{seed}/kills")
    async with _living(config) as living:
        kept = {"bystander", *living}
        for number in range(kills):
            before = set(await pods_of(admin, config.namespace))
            async with _victim(config) as kill:
                if number % 2:  # however slow the machine is, some have pods when they are killed
                    await _others_than(before, admin, config.namespace)
                await asyncio.sleep(chance.uniform(0.0, 2.0))
                kill()
            most_left = max(most_left, len(set(await pods_of(admin, config.namespace)) - kept))
        await asyncio.sleep(VICTIM_LEASE_S + CLOCK_MARGIN_S + 1)
        swept = await sweep(admin.in_namespace(config.namespace))
        await asyncio.sleep(2.0)
        left = set(await pods_of(admin, config.namespace))
        return Kills(
            kills=kills,
            most_left=most_left,
            swept=len(swept.deleted),
            ownerless=sorted(left - kept),
            foreign_deletes=[] if "bystander" in left else ["bystander"],
            living_deletes=sorted(living - left),
        )


@asynccontextmanager
async def _living(config: KubernetesConfig) -> AsyncIterator[set[str]]:
    """Pods of a run that lives, all the while."""
    async with (
        open_provider(config.model_copy(update={"node_selector": {"no": "node"}})) as provider,
        open_api(config) as api,
    ):

        async def caller() -> None:
            with contextlib.suppress(SandboxError):
                async with provider.sandbox(NOWHERE, acquire_timeout_s=3600):
                    pass

        callers = [asyncio.get_running_loop().create_task(caller()) for _ in range(3)]
        async with asyncio.timeout(START_LIMIT_S):
            while len(names := {pod.name for pod in (await api.list_pods(""))[0]} - {"bystander"}) < len(callers):
                await asyncio.sleep(0.1)
        yield names
        for task in callers:
            task.cancel()
        await asyncio.wait(callers)


@asynccontextmanager
async def _victim(config: KubernetesConfig) -> AsyncIterator[Callable[[], None]]:
    """A process that opens a provider now and makes sandboxes, until what is given is called."""
    victim = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.cluster.kills",
        str(config.kubeconfig),
        str(config.namespace),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert victim.stdout is not None
    try:
        if await asyncio.wait_for(victim.stdout.readline(), START_LIMIT_S) != b"opens\n":
            raise RuntimeError("the process to be killed did not start")
        yield victim.kill
    finally:
        if victim.returncode is None:
            victim.kill()
        await victim.communicate()


async def _others_than(before: set[str], admin: Api, namespace: str) -> None:
    """Until there are pods that were not there before."""
    async with asyncio.timeout(START_LIMIT_S):
        while not set(await pods_of(admin, namespace)) - before:
            await asyncio.sleep(0.05)


async def be_victim(kubeconfig: str, namespace: str) -> None:
    """Open a provider and ask for sandboxes, until killed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    config = KubernetesConfig(
        kubeconfig=Path(kubeconfig),
        namespace=namespace,
        lease_s=VICTIM_LEASE_S,
        node_selector={"no": "node"},
        pacing=PacingConfig(creates_per_s=200, burst=50),
    )
    print("opens", flush=True)
    async with open_provider(config) as provider, asyncio.TaskGroup() as group:

        async def caller() -> None:
            async with provider.sandbox(NOWHERE, acquire_timeout_s=600):
                pass

        for _ in range(CREATES_PER_VICTIM):
            group.create_task(caller())


if __name__ == "__main__":
    asyncio.run(be_victim(*sys.argv[1:]))
