"""Ownership against a real API server behind a proxy that loses, delays and refuses: nothing of ours stays, nothing of
others goes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PacingConfig
from sandbox.errors import SandboxError
from sandbox.kube import ownership
from sandbox.kube.api import Api
from sandbox.kube.janitor import sweep
from tests.cluster.conftest import pods_of
from tests.cluster.faults import FaultyServer, Plan, proxied_kubeconfig

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(1800)]

TRIALS = int(os.environ.get("SANDMAN_OWNERSHIP_TRIALS", "300"))
"""Acquires in all. The whole proof is 3,000."""
KILLS = int(os.environ.get("SANDMAN_KILL_TRIALS", "5"))
"""The whole proof is 50."""
PER_RUN = 25
AT_ONCE = 4
NOWHERE = SandboxSpec(image="localhost/nothing@sha256:" + "0" * 64, egress="open")


def sentinel(name: str) -> dict[str, object]:
    return {
        "metadata": {"name": name, "labels": {"app": "foreign"}},
        "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "localhost/pause:1"}]},
    }


async def one_run(config: KubernetesConfig, rng: random.Random, outcomes: Counter[str]) -> None:
    """A provider and its callers, each cancelled at some moment or timing out; at times the host is cancelled too."""

    async def host() -> None:
        async with open_provider(config) as provider:

            async def caller() -> None:
                try:
                    async with provider.sandbox(NOWHERE, acquire_timeout_s=rng.uniform(0.05, 2.5)):
                        outcomes["got one"] += 1
                except SandboxError as error:
                    outcomes[type(error).__name__] += 1

            async def cancelled(after_s: float, times: int) -> None:
                task = asyncio.create_task(caller())
                await asyncio.wait({task}, timeout=after_s)
                for _ in range(times):
                    task.cancel()
                    await asyncio.sleep(rng.choice((0, 0.001)))
                await asyncio.wait({task})
                outcomes["cancelled"] += task.cancelled()

            moments = [(rng.uniform(0, 2), rng.choice((0, 1, 2, 5))) for _ in range(PER_RUN)]
            await asyncio.gather(*(cancelled(after_s, times) for after_s, times in moments))

    task = asyncio.create_task(host())
    if rng.random() < 0.3:
        await asyncio.wait({task}, timeout=rng.uniform(0.05, 2))
        for _ in range(rng.choice((1, 2, 5))):
            task.cancel()
            await asyncio.sleep(0.001)
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is not None:
        outcomes[f"run: {type(task.exception()).__name__}"] += 1


async def test_no_pod_of_ours_stays_and_no_pod_of_others_goes(
    admin: Api, config: Callable[..., KubernetesConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of acquires under faults and cancellations beside sentinel pods: 0 ownerless, 0 foreign deletes."""
    monkeypatch.setattr(ownership, "DOUBT_S", 4.0)  # the proxy stores nothing later than 2 s after it was sent
    direct = config()
    assert direct.namespace is not None and direct.kubeconfig is not None
    namespace = direct.namespace
    seed = int(os.environ.get("SANDMAN_SEED", "1"))
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    pacing = PacingConfig(creates_per_s=200, burst=100)
    sentinels = {f"foreign-{number}" for number in range(10)}
    for name in sentinels:
        await admin.call("POST", f"/api/v1/namespaces/{namespace}/pods", sentinel(name))

    async with FaultyServer(admin, Plan(seed, share=0.35)).serve() as proxy:
        through = proxied_kubeconfig(direct.kubeconfig, proxy.url, tmp_path / "kubeconfig")
        settings = config(kubeconfig=through, pacing=pacing, node_selector={"no": "node"})
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def limited() -> None:
            async with limiter:
                await one_run(settings, rng, outcomes)

        await asyncio.gather(*(limited() for _ in range(-(-TRIALS // PER_RUN))))
        foreign = sentinels | set(proxy.strangers)
        print(f"\noutcomes {dict(outcomes)}\nfaults {dict(proxy.plan.injected)}\nforeign {len(foreign)}")

    left = set(await pods_of(admin, namespace))
    assert set() == left - foreign, "ownerless pods"
    assert set() == foreign - left, "foreign pods that were deleted"


VICTIM = """
import asyncio, sys
from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PacingConfig

async def main():
    config = KubernetesConfig(kubeconfig=sys.argv[1], namespace=sys.argv[2], lease_s=5, node_selector={"no": "node"},
                              pacing=PacingConfig(creates_per_s=200, burst=50))
    spec = SandboxSpec(image="localhost/nothing@sha256:" + "0" * 64, egress="open")
    async with open_provider(config) as provider:
        async def caller():
            async with provider.sandbox(spec, acquire_timeout_s=60):
                pass
        print("open", flush=True)
        await asyncio.gather(*(caller() for _ in range(20)))

asyncio.run(main())
"""


async def test_what_a_killed_process_leaves_the_janitor_deletes(admin: Api, namespace: str, kubeconfig: Path) -> None:
    """SIGKILL at random moments of twenty creates: after the lease's time one run of the janitor leaves nothing."""
    rng = random.Random(7)
    left_by_kills = 0
    for _ in range(KILLS):
        argv = [sys.executable, "-c", VICTIM, str(kubeconfig), namespace]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as victim:
            assert victim.stdout is not None
            while (await anyio.to_thread.run_sync(victim.stdout.readline)).strip() not in {b"open", b""}:
                pass  # log lines
            await anyio.sleep(rng.uniform(0.05, 2.0))
            victim.send_signal(signal.SIGKILL)
        left_by_kills = max(left_by_kills, len(await pods_of(admin, namespace)))
    own = Api(KubernetesConfig(), admin._client, namespace)
    before = await sweep(own)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (await sweep(own)).kept:
        await anyio.sleep(1)
    print(f"\n{KILLS} kills; at most {left_by_kills} pods lay about; the first sweep deleted {len(before.deleted)}")

    assert [] == await pods_of(admin, namespace)
    assert left_by_kills > 0
