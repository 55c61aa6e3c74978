"""Each way in which a sandbox ends, or does not start, brought about on a real node: its own error with what the
cluster said, read before our delete; nothing of ours is left, and nothing of others is touched."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandbox import KubernetesConfig, SandboxSpec
from sandbox.config import PhaseBudgets
from sandbox.errors import (
    ContainerEnded,
    CreateError,
    DeletedByAnother,
    Evicted,
    ImageError,
    LifetimeOver,
    OutOfMemory,
    Preempted,
    QuotaExceeded,
    Replaced,
    SandboxLost,
    Unschedulable,
)
from sandbox.kube.api import Api
from sandbox.kube.box import KubeSandbox
from tests.cluster.conftest import FAST, a_namespace
from tests.cluster.faults import foreign_pod
from tests.cluster.hands import Place, a_place, is_here, refusal, told_while
from tests.cluster.images import a_registry, name_by_digest

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.slow]

WAITS = "sleep 120"


@pytest.fixture(scope="module")
def plain(image: str) -> SandboxSpec:
    return SandboxSpec(image=image, egress="open")


# -- how a sandbox in use ends -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """What the caller of a sandbox heard."""

    lost: SandboxLost
    box: KubeSandbox


Deed = Callable[[Place, SandboxSpec], Awaitable[Ended]]


async def deleted(place: Place, spec: SandboxSpec) -> Ended:
    """A pod that somebody deletes under a command: its first process ends as it is asked to."""
    async with place.provider.sandbox(spec) as box:
        return Ended(await told_while(box, partial(place.delete, box.identity.sandbox_id), WAITS), box)


async def evicted_by_the_api(place: Place, spec: SandboxSpec) -> Ended:
    """Who empties a node by the eviction API: servers from 1.26 on say so, older ones make it a plain delete."""
    async with place.provider.sandbox(spec) as box:
        return Ended(await told_while(box, partial(place.evict, box.identity.sandbox_id), WAITS), box)


async def out_of_memory(place: Place, spec: SandboxSpec) -> Ended:
    """Files in /dev/shm count against the memory limit and belong to no command: the kernel kills the first process."""
    async with place.provider.sandbox(spec.model_copy(update={"memory_mib": 64})) as box:
        return Ended(await told_while(box, None, f"head -c 200M /dev/zero >/dev/shm/x; {WAITS}"), box)


async def deleted_after_a_command_out_of_memory(place: Place, spec: SandboxSpec) -> Ended:
    """A command that the kernel kills at the limit ends with 137 and the sandbox lives on. That the node keeps the
    word `OOMKilled` for the container is no evidence when it is deleted later."""
    async with place.provider.sandbox(spec.model_copy(update={"memory_mib": 64})) as box:
        killed = await box.run("python3 -c 'x = b\"x\" * (400 << 20)'", timeout_s=60)
        after = await box.run("echo on", timeout_s=20)
        assert (137, b"on\n") == (killed.exit_code, after.output)
        return Ended(await told_while(box, partial(place.delete, box.identity.sandbox_id), WAITS), box)


async def first_process_killed(place: Place, spec: SandboxSpec) -> Ended:
    """By somebody on the node."""
    async with place.provider.sandbox(spec) as box:
        return Ended(await told_while(box, partial(place.kill_first_process, box), WAITS), box)


async def deadline(place: Place, spec: SandboxSpec) -> Ended:
    """The pod's own deadline, which the node keeps when nobody else does; here somebody brings it forward."""
    sooner = {"spec": {"activeDeadlineSeconds": 3}}
    async with place.provider.sandbox(spec) as box:
        path = place.path(box.identity.sandbox_id)
        return Ended(await told_while(box, partial(place.admin.call, "PATCH", path, sooner), WAITS), box)


async def replaced(place: Place, spec: SandboxSpec) -> Ended:
    """A pod that is deleted and made again with all of its marks is another sandbox. It bears our nonce, so it goes."""
    async with place.provider.sandbox(spec) as box:
        uid = await place.replace(box)
        with pytest.raises(SandboxLost) as told:
            await box.run("true", timeout_s=20)
        assert uid in told.value.facts["said"]
        return Ended(told.value, box)


async def under_a_strangers_pod(place: Place, spec: SandboxSpec) -> Ended:
    """A pod that somebody makes under our name after deleting ours is not ours, and is left alone."""
    async with place.provider.sandbox(spec) as box:
        name = box.identity.sandbox_id
        await place.delete(name)
        await place.gone(name)
        await place.admin.call("POST", place.path(), foreign_pod(name))
        with pytest.raises(SandboxLost) as told:
            await box.run("true", timeout_s=20)
        return Ended(told.value, box)


@dataclass(frozen=True)
class Expected:
    kind: type[SandboxLost]
    cause: str
    exit_codes: tuple[int | None, ...]
    """None where the node may end the pod before it tells how its first process ended."""
    words: str


ENDS: dict[Deed, Expected] = {
    deleted: Expected(DeletedByAnother, "deleted", (0, None), "and not by this run"),
    evicted_by_the_api: Expected(DeletedByAnother, "deleted", (0, None), "and not by this run"),
    out_of_memory: Expected(OutOfMemory, "out_of_memory", (137,), "OOMKilled with exit code 137"),
    deleted_after_a_command_out_of_memory: Expected(DeletedByAnother, "deleted", (0, None), "and not by this run"),
    first_process_killed: Expected(ContainerEnded, "ended", (137,), "Error with exit code 137"),
    deadline: Expected(LifetimeOver, "lifetime", (0, 137, 143, None), "deadline"),
    replaced: Expected(Replaced, "replaced", (None,), "the pod is"),
    under_a_strangers_pod: Expected(DeletedByAnother, "deleted", (0, None), "and not by this run"),
}
SAID_SINCE = (1, 26)
"""Servers from then on mark what the eviction API puts out."""


@pytest.fixture(scope="module")
async def ends(
    admin: Api, kubeconfig: Path, plain: SandboxSpec
) -> AsyncIterator[Mapping[Deed, Ended | AssertionError | Exception]]:
    """All of them at once, each to a sandbox of its own: what their callers heard. `a_place` asserts what is left."""
    heard: dict[Deed, Ended | Exception] = {}

    async def one(place: Place, deed: Deed) -> None:
        try:
            heard[deed] = await deed(place, plain)
        except Exception as error:
            heard[deed] = error

    async with a_namespace(admin) as namespace:
        config = KubernetesConfig(kubeconfig=kubeconfig, namespace=namespace, pacing=FAST)
        async with a_place(admin, config) as place, anyio.create_task_group() as group:
            for deed in ENDS:
                group.start_soon(one, place, deed)
        stranger = heard[under_a_strangers_pod]
        if isinstance(stranger, Ended):
            assert stranger.box.identity.sandbox_id in await place.uids(ours=False)
        yield heard


@pytest.mark.parametrize("deed", ENDS, ids=lambda deed: deed.__name__)
async def test_each_end_is_its_own_error(admin: Api, ends: Mapping[Deed, Ended | Exception], deed: Deed) -> None:
    """The claim is the deed's own docstring, with the cause, and what was read of the pod before it was deleted."""
    ended = ends[deed]
    if isinstance(ended, Exception):
        raise ended
    lost, expected = ended.lost, ENDS[deed]
    if deed is evicted_by_the_api and await version(admin) >= SAID_SINCE:
        expected = replace(expected, kind=Evicted, cause="evicted", words="")

    assert (expected.kind, expected.cause) == (type(lost), lost.cause)
    assert ended.box.node == lost.facts["node"]
    assert lost.facts["exit_code"] in expected.exit_codes
    assert expected.words in lost.facts["said"]


# -- what needs settings of its own ------------------------------------------------------------------------------------


async def test_evicted_by_its_node(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig], plain: SandboxSpec
) -> None:
    """A sandbox that writes more than `ephemeral_storage_mib` is put out, and the node's words are in the error."""
    async with a_place(admin, config(ephemeral_storage_mib=20)) as place, place.provider.sandbox(plain) as box:
        lost = await told_while(box, None, f"head -c 60M /dev/zero >/var/tmp/x; {WAITS}")

    assert (Evicted, "evicted", box.node) == (type(lost), lost.cause, lost.facts["node"])
    assert "20Mi" in lost.facts["said"]


async def test_preempted(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig], plain: SandboxSpec
) -> None:
    """A pod of higher priority needs the room. Both ask for more than half of the node's disk, which nobody else asks
    for, so that nobody else has to go."""
    node = await a_real_node(admin)
    name, there = f"sandman-test-{secrets.token_hex(4)}", {"kubernetes.io/hostname": node["metadata"]["name"]}
    half_mib = int(node["status"]["allocatable"]["ephemeral-storage"].removesuffix("Ki")) * 6 // 10 >> 10
    asks = {"resources": {"requests": {"ephemeral-storage": f"{half_mib}Mi"}}}
    important = foreign_pod("important")
    important["spec"] |= {"priorityClassName": name, "nodeSelector": there, "terminationGracePeriodSeconds": 0}
    important["spec"]["containers"][0] |= {**asks, "image": plain.image, "command": ["sleep", "300"]}
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await admin.call("POST", classes, {"metadata": {"name": name}, "value": 1000})
    try:
        async with a_place(admin, config(ephemeral_storage_mib=half_mib, node_selector=there)) as place:
            async with place.provider.sandbox(plain) as box:
                lost = await told_while(box, partial(admin.call, "POST", place.path(), important), WAITS)
            assert "important" in await place.uids()
    finally:
        await admin.call("DELETE", f"{classes}/{name}")

    assert (Preempted, "preempted", box.node) == (type(lost), lost.cause, lost.facts["node"])
    assert f"{namespace}/important" in lost.facts["said"]


async def test_quota(admin: Api, namespace: str, config: Callable[..., KubernetesConfig], plain: SandboxSpec) -> None:
    """A namespace whose quota has no room for one more says so at once, and the sandbox that it has goes on."""
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    await admin.call("POST", path, {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "2"}}})
    with anyio.fail_after(20):
        while not (await admin.call("GET", f"{path}/small")).get("status", {}).get("used"):
            await anyio.sleep(0.05)
    async with a_place(admin, config()) as place, place.provider.sandbox(plain) as box:
        refused = await refusal(place, image=plain.image)
        assert b"on\n" == (await box.run("echo on", timeout_s=20)).output

    assert (QuotaExceeded, "queue") == (type(refused), refused.facts["phase"])
    assert "exceeded quota: small" in refused.facts["said"]


async def test_what_does_not_start(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig], plain: SandboxSpec
) -> None:
    """No node takes it; its image is missing, not for us, held back by a registry in trouble, or no name at all; it
    has no bash; execd's ConfigMap is gone: each its own error, in the cluster's words."""
    if not is_here():
        pytest.skip("the registry and the image without bash are put on the node of tests/cluster/up only")
    answers = {"no": (404, "MANIFEST_UNKNOWN"), "private": (401, "UNAUTHORIZED"), "busy": (429, "TOOMANYREQUESTS")}
    digest = f"sha256:{secrets.token_hex(32)}"
    budgets = PhaseBudgets(schedule_s=6, pull_s=3, start_s=8)
    told: dict[str, Any] = {}

    async def ask(what: str, **spec: Any) -> None:
        told[what] = await refusal(place, **spec)

    with a_registry(answers) as registry:
        async with a_place(admin, config(budgets=budgets, pacing=FAST)) as place:
            async with anyio.create_task_group() as group:
                for what in answers:
                    group.start_soon(partial(ask, what, image=f"{registry}/{what}/x@{digest}"))
                group.start_soon(partial(ask, "no name", image=f"localhost/UPPER@{digest}"))
                group.start_soon(partial(ask, "no bash", image=name_by_digest("localhost/pause:1")))
            with anyio.fail_after(30):  # a node keeps what its pods use
                while await place.uids(ours=True):
                    await anyio.sleep(0.1)
            [execd] = [one for one in (await admin.call("GET", maps(namespace)))["items"] if "execd" in str(one)]
            await admin.call("DELETE", f"{maps(namespace)}/{execd['metadata']['name']}")
            async with anyio.create_task_group() as group:
                group.start_soon(partial(ask, "no execd", image=plain.image))
                group.start_soon(partial(ask, "no node", image=plain.image, cpus=8192))

    expected: dict[str, tuple[type[CreateError] | type[ImageError], str, str]] = {
        "no": (ImageError, "pull", "not found"),
        "private": (ImageError, "pull", "401 Unauthorized"),
        "busy": (ImageError, "pull", "429 Too Many Requests"),
        "no name": (ImageError, "pull", "InvalidImageName"),
        "no bash": (CreateError, "start", "bash"),
        "no execd": (CreateError, "start", "FailedMount"),
        "no node": (Unschedulable, "schedule", "Insufficient cpu"),
    }
    for what, (kind, phase, words) in expected.items():
        assert (what, kind, phase) == (what, type(told[what]), told[what].facts["phase"])
        assert words in told[what].facts["said"]
    assert ["busy"] == [what for what in (*answers, "no name") if "in 3 s" in str(told[what])]  # the others at once


def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


async def version(admin: Api) -> tuple[int, int]:
    """Of the server."""
    told = await admin.call("GET", "/version")
    return int(told["major"]), int(told["minor"].rstrip("+"))


async def a_real_node(admin: Api) -> dict[str, Any]:
    """A node that a kubelet keeps, not one of `fakenodes`."""
    nodes = (await admin.call("GET", "/api/v1/nodes"))["items"]
    return next(one for one in nodes if "fake" not in one["metadata"]["name"])
