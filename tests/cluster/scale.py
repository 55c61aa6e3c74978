"""The provider at a size: `KUBECONFIG=... python -m tests.cluster.scale`, on a cluster of `tests/cluster/up --api`.

One provider process holds 12,000 sandboxes at once on 375 fake nodes (`fakenodes.py`), placed by the real scheduler. In
the same run the plainest client there is creates as many of the same pods as fast as it can, before and after each
round of the provider. Each begins when the server is at rest. Before all that 1,000 pods show how evenly they are
spread. Prints one JSON object: every round, and the ratios of the medians.

On one machine the clients take processor time that the server then lacks, and how much of the cluster's own work
(placing pods, noting that they run) falls into the time of the creates changes with their rate. So the rate at which
pods come to run is told beside the rate of creates, and `--client-cpu N` gives the clients and the fake nodes processor
N and the server the others, as if each had a machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.collector import expect_thousands
from sandbox.config import PacingConfig, PhaseBudgets
from sandbox.errors import SandboxError
from sandbox.kube.api import Api, CreateAnswer, open_api
from sandbox.kube.manifest import Mark, pod
from sandbox.kube.provider import KubernetesProvider
from tests.cluster.conftest import a_namespace, pods_of
from tests.cluster.fakenodes import NODE_PREFIX, cluster_session

CONNECTIONS = (64, 128)
"""Of the bare client, by turns; the provider may have as many requests under way as the most of them."""
COMMANDS = 64
"""At once."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
SPEC = SandboxSpec(image="localhost/fake@sha256:" + "0" * 64, egress="open", lifetime_s=7200)
ACQUIRE_S = 1800.0
REST_S = 300.0
"""How long a server may take to come to rest."""
AT_REST_CPUS = 0.3
"""Processors that a server at rest uses for itself, over `REST_SEEN_S`."""
REST_SEEN_S = 5.0


def provider_config(kubeconfig: Path, namespace: str, sandboxes: int) -> KubernetesConfig:
    """Paced by nothing but the server itself."""
    return KubernetesConfig(
        kubeconfig=kubeconfig,
        namespace=namespace,
        pacing=PacingConfig(
            creates_per_s=100_000,
            burst=sandboxes,
            max_in_flight=sandboxes,
            max_live=sandboxes,
            max_requests=max(CONNECTIONS),
        ),
        budgets=PhaseBudgets(schedule_s=ACQUIRE_S, start_s=ACQUIRE_S, daemon_s=60),
    )


async def raw_creates(kubeconfig: Path, namespace: str, count: int, connections: int) -> dict[str, float]:
    """Creates a second by aiohttp and nothing else, with the provider's own manifest, and pods a second until all run.
    Its pods are deleted again."""
    config = provider_config(kubeconfig, namespace, 1)
    path = f"/api/v1/namespaces/{namespace}/pods"
    bodies = [
        json.dumps(
            pod(
                SPEC,
                config,
                Mark(f"raw-{os.urandom(6).hex()}", "nonce", "raw", "raw"),
                token_sha256="0" * 64,
                config_map="raw",
            )
        ).encode()
        for _ in range(count)
    ]
    async with cluster_session(kubeconfig, connections) as session:

        async def worker() -> None:
            while bodies:
                async with session.post(
                    path, data=bodies.pop(), headers={"Content-Type": "application/json"}
                ) as answer:
                    await answer.read()
                    if answer.status != 201:
                        raise RuntimeError(f"{answer.status}: {(await answer.text())[:300]}")

        began, cpu_before_s = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(worker())
        created_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_before_s
        async with asyncio.timeout(ACQUIRE_S):
            while await _any(session, path, _NOT_RUNNING):
                await asyncio.sleep(2.0)
        running_s = time.perf_counter() - began
        async with asyncio.timeout(ACQUIRE_S):
            await _delete_all(session, path)
    return {
        "connections": connections,
        "creates_per_s": round(count / created_s, 1),
        "running_per_s": round(count / running_s, 1),
        "cpu_ms_per_create": round(1000 * cpu_s / count, 2),
    }


async def _delete_all(session: aiohttp.ClientSession, path: str) -> None:
    """Until none is left: a delete of many ends at the first that another has changed meanwhile."""
    while True:
        async with session.delete(path, json={"gracePeriodSeconds": 0}) as answer:
            await answer.read()
        if not await _any(session, path, {"limit": "1"}):
            return


_NOT_RUNNING = {"fieldSelector": "status.phase!=Running", "resourceVersion": "0"}
"""From the server's memory: else it would read all pods from its store and decode them, time and again."""


async def _any(session: aiohttp.ClientSession, path: str, query: Mapping[str, str]) -> bool:
    """Whether there is such a pod. A server that is too busy to say is asked again."""
    while True:
        async with session.get(path, params=query, headers={"Accept": METADATA_LIST}) as answer:
            body = await answer.read()
        if answer.status == 200:
            break
        if answer.status != 429 and answer.status < 500:
            raise RuntimeError(f"{answer.status}: {body[:300]!r}")
        await asyncio.sleep(1.0)
    page = json.loads(body)
    return bool(page["items"]) or bool(page["metadata"].get("continue"))


async def provider_process(kubeconfig: Path, namespace: str, sandboxes: int) -> dict[str, Any]:
    """One provider, `sandboxes` callers at once. Once all have their sandboxes or an error, each runs a command in its
    own: the raw client runs none either while pods are created."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    expect_thousands()
    outcomes: Counter[str] = Counter()
    commands: Counter[int] = Counter()
    sent: list[float] = []
    stored: list[float] = []
    acquired: list[float] = []
    ran: list[float] = []
    cpu_s_at_last_stored = 0.0
    live, most_live, arrived, all_arrived = 0, 0, 0, asyncio.Event()
    few = asyncio.Semaphore(COMMANDS)
    config = provider_config(kubeconfig, namespace, sandboxes)
    async with open_provider(config) as provider:
        assert isinstance(provider, KubernetesProvider)
        create = provider._api.create_pod

        async def timed(manifest: bytes) -> CreateAnswer:
            nonlocal cpu_s_at_last_stored
            sent.append(time.monotonic())
            answer = await create(manifest)
            stored.append(time.monotonic())
            cpu_s_at_last_stored = time.process_time()
            return answer

        provider._api.create_pod = timed  # type: ignore[method-assign]

        async def caller() -> None:
            nonlocal live, most_live, arrived
            try:
                async with provider.sandbox(SPEC, acquire_timeout_s=ACQUIRE_S) as box:
                    acquired.append(time.monotonic())
                    live += 1
                    most_live = max(most_live, live)
                    arrived += 1
                    if arrived == sandboxes:
                        all_arrived.set()
                    await all_arrived.wait()
                    async with few:
                        commands.update([(await box.run("true", timeout_s=60)).exit_code])
                    ran.append(time.monotonic())
                    live -= 1
                outcomes["acquired"] += 1
            except SandboxError as error:
                outcomes[type(error).__name__] += 1
                arrived += 1
                if arrived == sandboxes:
                    all_arrived.set()

        began, cpu_before_s = time.monotonic(), time.process_time()
        callers = [asyncio.get_running_loop().create_task(caller()) for _ in range(sandboxes)]
        await asyncio.wait(callers)
        released_at = time.monotonic()
    return {
        "outcomes": dict(outcomes),
        "commands_by_exit_code": dict(commands),
        "commands_per_s": round(len(ran) / (max(ran) - max(acquired)), 1),
        "most_live_at_once": most_live,
        "creates_per_s": round(len(stored) / (max(stored) - min(sent)), 1),
        "running_per_s": round(len(acquired) / (max(acquired) - min(sent)), 1),
        "all_acquired_after_s": round(max(acquired) - began, 1),
        "all_gone_after_s": round(time.monotonic() - released_at, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "cpu_ms_per_create": round(1000 * (cpu_s_at_last_stored - cpu_before_s) / len(stored), 2),
        "cpu_s": round(time.process_time(), 1),
    }


async def spread(admin: Api, kubeconfig: Path, pods: int, nodes: int) -> dict[str, Any]:
    """How many of `pods` pods the fullest node gets: of the provider's, and if each were thrown at random."""
    async with a_namespace(admin) as namespace:
        config = provider_config(kubeconfig, namespace, pods)
        async with open_provider(config) as provider, asyncio.TaskGroup() as group:
            placed: list[str] = []
            done = asyncio.Event()

            async def caller() -> None:
                async with provider.sandbox(SPEC, acquire_timeout_s=ACQUIRE_S) as box:
                    placed.append(box.node)  # type: ignore[attr-defined]
                    if len(placed) == pods:
                        done.set()
                    await done.wait()

            for _ in range(pods):
                group.create_task(caller())
    thrown = [max(Counter(random.Random(seed).choices(range(nodes), k=pods)).values()) for seed in range(1000)]
    return {
        "pods": pods,
        "nodes": nodes,
        "most_on_a_node": max(Counter(placed).values()),
        "most_if_thrown_at_random": statistics.median(thrown),
    }


async def at_rest() -> float:
    """Wait until the server, as `tests/cluster/up` has started it, has little to do; the seconds that this took."""
    began = time.monotonic()
    spent = _server_cpu_s()
    while time.monotonic() - began < REST_S:
        await asyncio.sleep(REST_SEEN_S)
        before, spent = spent, _server_cpu_s()
        if spent - before < AT_REST_CPUS * REST_SEEN_S:
            return round(time.monotonic() - began, 1)
    raise RuntimeError(f"the server did not come to rest in {REST_S:g} s: is anybody else using it?")


def _server_cpu_s() -> float:
    """Processor seconds that the server's processes have used."""
    ticks = 0
    for server in _servers():
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _servers() -> list[int]:
    """Process ids."""
    run = Path(os.environ["KUBECONFIG"]).parent.parent / "run"
    servers = [int(file.read_text()) for file in run.glob("*.pid")]
    if not servers:
        raise SystemExit(f"{run} names no server: set KUBECONFIG to what tests/cluster/up printed")
    return servers


async def raw_round(kubeconfig: Path, namespace: str, count: int, connections: int) -> dict[str, float]:
    """`raw_creates`, once the server is at rest."""
    rested_s = await at_rest()
    return {**await raw_creates(kubeconfig, namespace, count, connections), "at_rest_after_s": rested_s}


async def provider_round(namespace: str, sandboxes: int) -> dict[str, Any]:
    """`provider_process`, in a process of its own, once the server is at rest."""
    rested_s = await at_rest()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.cluster.scale",
        "--provider",
        namespace,
        "--sandboxes",
        str(sandboxes),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"the provider's process ended with {child.returncode}")
    return {**json.loads(said), "at_rest_after_s": rested_s}


async def measure(sandboxes: int, nodes: int, raw: int, spread_pods: int, rounds: int) -> dict[str, Any]:
    """All of it, with the fake nodes and the provider in processes of their own."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    kubeconfig = Path(os.environ["KUBECONFIG"])
    fake = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.cluster.fakenodes", "--nodes", str(nodes), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert fake.stdout is not None
        if await fake.stdout.readline() != b"ready\n":
            raise RuntimeError("the fake nodes did not come up")
        async with open_api(KubernetesConfig(kubeconfig=kubeconfig)) as admin:
            others = [
                one["metadata"]["name"]
                for one in (await admin.call("GET", "/api/v1/nodes"))["items"]
                if not one["metadata"]["name"].startswith(NODE_PREFIX)
            ]
            if others:
                raise RuntimeError(f"real nodes are there ({others}): use a cluster of `tests/cluster/up --api`")
            told: dict[str, Any] = {"cpus": os.cpu_count(), "load_before": os.getloadavg()[0]}
            if spread_pods:
                told["spread"] = await spread(admin, kubeconfig, spread_pods, nodes)
            provided: list[dict[str, Any]] = []
            async with a_namespace(admin) as namespace:
                raws = [await raw_round(kubeconfig, namespace, raw, CONNECTIONS[0])]
                for number in range(1, rounds + 1):
                    provided.append(await provider_round(namespace, sandboxes))
                    provided[-1]["left"] = len(await pods_of(admin, namespace))
                    raws.append(await raw_round(kubeconfig, namespace, raw, CONNECTIONS[number % len(CONNECTIONS)]))
                    print(json.dumps({"provider": provided, "raw": raws}), file=sys.stderr, flush=True)
            told |= {"provider": provided, "raw": raws}
            for what in ("creates_per_s", "running_per_s"):
                ours, theirs = statistics.median(one[what] for one in provided), [one[what] for one in raws]
                told[f"{what}_of_the_median_raw"] = round(ours / statistics.median(theirs), 2)
                told[f"{what}_of_the_fastest_raw"] = round(ours / max(theirs), 2)
            return told
    finally:
        fake.terminate()
        await fake.wait()


def apart(client_cpu: int) -> None:
    """This process and what it starts run on that processor alone from now on, and the server, as `tests/cluster/up`
    has started it, on the others."""
    for server in _servers():
        for thread in Path(f"/proc/{server}/task").iterdir():
            os.sched_setaffinity(int(thread.name), os.sched_getaffinity(0) - {client_cpu})
    os.sched_setaffinity(0, {client_cpu})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The provider at a size.")
    parser.add_argument("--sandboxes", type=int, default=12_000)
    parser.add_argument("--nodes", type=int, default=375)
    parser.add_argument("--raw", type=int, default=12_000, help="pods that the raw client makes each time")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--spread", type=int, default=1_000)
    parser.add_argument("--client-cpu", type=int, help="for the clients and fake nodes; the server gets the others")
    parser.add_argument("--provider", help="be the provider's process, in this namespace")
    given = parser.parse_args()
    if given.provider:
        work = provider_process(Path(os.environ["KUBECONFIG"]), given.provider, given.sandboxes)
    else:
        if given.client_cpu is not None:
            apart(given.client_cpu)
        work = measure(given.sandboxes, given.nodes, given.raw, given.spread, given.rounds)
    print(json.dumps(asyncio.run(work), indent=2))
