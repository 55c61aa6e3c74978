"""What it costs to find out why a sandbox cannot be reached, and how long it may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from sandbox import KubernetesConfig
from sandbox.config import PacingConfig
from sandbox.kube import loss
from sandbox.kube import ownership as rules
from sandbox.kube.api import Api, open_api
from sandbox.kube.endings import Ending
from sandbox.kube.events import Events
from sandbox.kube.owner import Owner
from sandbox.kube.snapshot import Pod, parse_pod
from tests.sandbox.kube.pods import raw_pod
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio

ROUND_S = 0.4


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandIn]:
    """One pod runs."""
    monkeypatch.setattr(loss, "EXPLAIN_S", ROUND_S)
    async with StandIn(tmp_path).serve() as stand_in:
        stand_in.pods["sb"] = raw_pod()
        yield stand_in


@pytest.fixture
async def api(cluster: StandIn) -> AsyncIterator[Api]:
    config = KubernetesConfig(kubeconfig=cluster.kubeconfig(), pacing=PacingConfig(max_requests=1))
    async with open_api(config) as api:
        yield api


def owner(api: Api, watched: Callable[[], bool] = lambda: False) -> Owner:
    """Of the pod that runs."""
    owner = Owner(
        api,
        rules.Claim("sb", "n1"),
        b"",
        grace_s=1,
        spawn=asyncio.ensure_future,
        watched=watched,
        on_send=lambda: None,
        on_closed=lambda _: None,
    )
    owner.on_pod(running())
    return owner


def running() -> Pod:
    return parse_pod(raw_pod())


async def explained(owner: Owner, api: Api, patience_s: float) -> Ending | None:
    return await loss.explained(owner, running(), Events(api), lifetime_s=60, patience_s=patience_s)


async def test_who_cannot_ask_waits_no_longer_than_it_has_patience(cluster: StandIn, api: Api) -> None:
    """However long others hold the way to the server."""
    async with api.lane:
        with anyio.fail_after(3):
            assert await explained(owner(api), api, 3 * ROUND_S) is None
    assert ("GET", "pods") not in cluster.requests


async def test_a_server_that_does_not_answer_is_waited_for_no_longer_either(cluster: StandIn, api: Api) -> None:
    """A look ends with the patience of whoever asked for it."""
    cluster.slow_s["GET", "pods"] = 5.0
    with anyio.fail_after(3):
        assert await explained(owner(api), api, 3 * ROUND_S) is None


async def test_commands_of_one_sandbox_share_their_looks_at_its_pod(cluster: StandIn, api: Api) -> None:
    """Whenever each of them began."""
    one = owner(api)
    began = time.monotonic()

    async def ask(after_s: float) -> Ending | None:
        await anyio.sleep(after_s)
        return await explained(one, api, 5 * ROUND_S)

    assert [None] * 8 == await asyncio.gather(*(ask(number * ROUND_S / 8) for number in range(8)))
    assert cluster.requests.count(("GET", "pods")) <= 1 + (time.monotonic() - began) / ROUND_S


async def test_a_watch_that_tells_is_trusted_until_the_last_look(cluster: StandIn, api: Api) -> None:
    """What it told of others came after what there was to tell of this pod."""
    assert await explained(owner(api, watched=lambda: True), api, 3.9 * ROUND_S) is None
    assert 1 == cluster.requests.count(("GET", "pods"))


@pytest.mark.parametrize("watched", [True, False])
async def test_an_end_of_which_nothing_was_told_is_found(cluster: StandIn, api: Api, watched: bool) -> None:
    """By looking, at the latest before it is given up; by all who ask."""
    del cluster.pods["sb"]
    one = owner(api, watched=lambda: watched)

    ends = await asyncio.gather(*(explained(one, api, 2.9 * ROUND_S) for _ in range(4)))

    assert ["deleted"] * 4 == [end.cause for end in ends if end is not None]
    assert 1 == cluster.requests.count(("GET", "pods"))
