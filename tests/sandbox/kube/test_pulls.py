"""What asking for the time of pulls may cost a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox import KubernetesConfig
from sandbox.kube.api import open_api
from sandbox.kube.events import Events
from sandbox.kube.pulls import ALLOWED_S, ALLOWED_SHARE, AT_ONCE, Pulls
from sandbox.kube.snapshot import parse_pod
from sandbox.spec import PhaseTimes
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio

POD = parse_pod({"metadata": {"name": "one", "uid": "u"}})
ABOUT = {"involvedObject": {"kind": "Pod", "name": "one"}}
PULLED = {**ABOUT, "reason": "Pulled", "message": 'Successfully pulled image "x" in 4s'}
LATE = PhaseTimes(start_s=5.0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with StandIn(tmp_path).serve() as stand_in:
        stand_in.events = [PULLED]
        yield stand_in


@pytest.fixture
async def events(cluster: StandIn) -> AsyncIterator[Events]:
    async with open_api(KubernetesConfig(kubeconfig=cluster.kubeconfig())) as api:
        yield Events(api)


async def test_the_pull_is_told_apart_from_the_start(cluster: StandIn, events: Events) -> None:
    """It is no longer than the whole was, and not asked for where the start was short or the pull is known."""
    pulls = Pulls(events)

    assert PhaseTimes(start_s=1.0, pull_s=4.0) == await pulls.told_apart(LATE, POD)
    assert PhaseTimes(start_s=0.0, pull_s=3.0) == await pulls.told_apart(PhaseTimes(start_s=3.0), POD)
    asked = len(cluster.requests)
    for told in (PhaseTimes(), PhaseTimes(start_s=1.9), PhaseTimes(start_s=5.0, pull_s=1.0)):
        assert told == await pulls.told_apart(told, POD)
    assert asked == len(cluster.requests)


async def test_of_many_that_start_together_few_are_asked_about(cluster: StandIn, events: Events) -> None:
    """The others need not wait for it either."""
    cluster.slow_s["GET", "events"] = 0.2
    pulls = Pulls(events)

    told = await asyncio.gather(*(pulls.told_apart(LATE, POD) for _ in range(100)))

    assert (AT_ONCE, 100 - AT_ONCE) == (sum(one.pull_s == 4.0 for one in told), told.count(LATE))
    assert AT_ONCE == cluster.requests.count(("GET", "events"))


@pytest.mark.parametrize("quiet_s", [0.0, 3600.0])
async def test_the_server_is_asked_for_a_share_of_its_time_only(
    cluster: StandIn, events: Events, quiet_s: float
) -> None:
    """Where each answer takes two seconds there are few: by the clock of ten minutes, a pod each second. A quiet hour
    before them allows no more."""
    answer_s, run_s, now = 2.0, 600, 0.0

    def takes_long(verb: str, kind: str) -> None:
        nonlocal now
        now += answer_s

    cluster.refuse = takes_long
    pulls = Pulls(events, now=lambda: now)

    now = quiet_s
    while now < quiet_s + run_s:
        await pulls.told_apart(LATE, POD)
        now += 1.0

    most = (ALLOWED_S + ALLOWED_SHARE * run_s) / answer_s + 1
    assert most / 2 < cluster.requests.count(("GET", "events")) <= most
