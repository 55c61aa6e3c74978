"""What the provider costs, measured against the same cluster in the same run: `python -m tests.cluster.bench`.

Alternates two ways to the same pod on a real node: made by hand until the kubelet says that it is Ready, and acquired
from the provider until its first command has answered. Prints both medians, and the median of the pairs' differences.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import statistics
import sys
import time
from contextlib import aclosing
from pathlib import Path

import structlog

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.config import PacingConfig
from sandbox.kube.api import Api, open_api
from sandbox.kube.manifest import Mark, pod
from sandbox.kube.provider import KubernetesProvider
from tests.cluster.conftest import KUBE_DIR, a_namespace

ROUNDS = int(os.environ.get("SANDMAN_BENCH_ROUNDS", "20"))


async def by_hand(api: Api, config: KubernetesConfig, spec: SandboxSpec, config_map: str) -> float:
    """Seconds from the create to the kubelet's word that the pod is Ready."""
    mark = Mark(f"by-hand-{secrets.token_hex(4)}", secrets.token_hex(8), "by-hand", "by-hand")
    token_sha256 = hashlib.sha256(b"token").hexdigest()
    manifest = pod(spec, config, mark, token_sha256=token_sha256, config_map=config_map)
    _, version = await api.list_pods("sandman-grader/run=by-hand")
    watch = api.watch_pods("sandman-grader/run=by-hand", version, timeout_s=60)

    async def ready() -> None:
        async with aclosing(watch) as events:
            async for event in events:
                if event.pod is not None and event.pod.name == mark.name and event.pod.ready:
                    return

    waiting = asyncio.create_task(ready())
    await asyncio.sleep(0.2)
    began = time.perf_counter()
    created = await api.call("POST", api.path("pods"), manifest)
    await waiting
    took = time.perf_counter() - began
    await api.delete_pod(mark.name, created["metadata"]["uid"], grace_s=1)
    return took


async def acquired(provider: KubernetesProvider, spec: SandboxSpec) -> float:
    """Seconds from the acquire to the answer to the first command."""
    began = time.perf_counter()
    async with provider.sandbox(spec) as box:
        await box.run("true", timeout_s=20)
        return time.perf_counter() - began


async def main() -> None:
    """Run it and print one JSON line."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    kubeconfig = Path(os.environ.get("KUBECONFIG") or KUBE_DIR / "pki" / "admin.kubeconfig")
    image = os.environ.get("SANDMAN_TEST_IMAGE") or (KUBE_DIR / "run" / "py.ref").read_text().strip()
    spec = SandboxSpec(image=image, egress="open")
    async with open_api(KubernetesConfig(kubeconfig=kubeconfig)) as admin, a_namespace(admin) as namespace:
        config = KubernetesConfig(kubeconfig=kubeconfig, namespace=namespace, pacing=PacingConfig(creates_per_s=100))
        hand: list[float] = []
        ours: list[float] = []
        async with open_api(config) as api, open_provider(config) as provider:
            assert isinstance(provider, KubernetesProvider)
            await acquired(provider, spec)
            for _ in range(ROUNDS):
                hand.append(await by_hand(api, config, spec, provider._config_map))
                ours.append(await acquired(provider, spec))
                await asyncio.sleep(1.5)
    overheads = [second - first for first, second in zip(hand, ours, strict=True)]
    told = {
        "pairs": ROUNDS,
        "kubelet_ready_ms": round(1000 * statistics.median(hand)),
        "first_command_ms": round(1000 * statistics.median(ours)),
        "overhead_ms": round(1000 * statistics.median(overheads)),
        "overhead_quartiles_ms": [round(1000 * one) for one in statistics.quantiles(overheads)[::2]],
        "load": os.getloadavg()[0],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
