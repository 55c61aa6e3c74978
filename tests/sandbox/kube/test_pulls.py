"""What pods' events may cost a server that reads all of a namespace's to find one pod's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from sandbox import KubernetesConfig
from sandbox.config import PacingConfig
from sandbox.kube.api import EVENTS_AT_ONCE, Api, open_api
from sandbox.kube.pulls import ALLOWED_S, ALLOWED_SHARE, AT_ONCE, Pulls
from sandbox.kube.snapshot import parse_pod
from sandbox.spec import PhaseTimes
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio

POD = parse_pod({"metadata": {"name": "one", "uid": "u"}})
PULLED = {"reason": "Pulled", "message": 'Successfully pulled image "x" in 4s'}
LATE = PhaseTimes(start_s=5.0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with StandIn(tmp_path).serve() as stand_in:
        stand_in.events = [PULLED]
        yield stand_in


@pytest.fixture
async def api(cluster: StandIn) -> AsyncIterator[Api]:
    async with open_api(KubernetesConfig(kubeconfig=cluster.kubeconfig())) as opened:
        yield opened


async def test_hundreds_that_want_to_know_ask_a_few_at_once(cluster: StandIn, api: Api) -> None:
    """And all of them hear it."""
    cluster.slow_s["GET", "events"] = 0.01

    heard = await asyncio.gather(*(api.pod_events(POD) for _ in range(200)))

    assert [PULLED["message"]] * 200 == [events[0].message for events in heard if events]
    assert EVENTS_AT_ONCE == cluster.most_at_once["events"]


async def test_who_asks_a_server_that_does_not_answer_hears_that_it_is_not_known(cluster: StandIn, api: Api) -> None:
    """Not that there was nothing. Those who wait for their turn are patient for no longer."""
    cluster.slow_s["GET", "events"] = 30.0

    with anyio.fail_after(10):
        heard = await asyncio.gather(*(api.pod_events(POD, patience_s=0.2) for _ in range(2 * EVENTS_AT_ONCE)))

    assert [None] * 2 * EVENTS_AT_ONCE == heard


async def test_a_lease_is_renewed_beside_all_that_want_to_know(cluster: StandIn) -> None:
    """However many ask for events, and whatever else is under way, there is a connection for it."""
    cluster.slow_s["GET", "events"] = 30.0
    config = KubernetesConfig(kubeconfig=cluster.kubeconfig(), pacing=PacingConfig(max_requests=1))
    async with open_api(config) as api, asyncio.TaskGroup() as group:
        watching = group.create_task(anext(api.watch_pods("a=b", "1", timeout_s=30.0)))
        asking = [group.create_task(api.pod_events(POD)) for _ in range(2 * EVENTS_AT_ONCE)]
        with anyio.fail_after(5):
            while cluster.most_at_once["events"] < EVENTS_AT_ONCE or ("WATCH", "pods") not in cluster.requests:
                await anyio.sleep(0.01)
            await api.call("GET", api.path("leases", group="apis/coordination.k8s.io/v1"))
        for task in (watching, *asking):
            task.cancel()


async def test_the_pull_is_told_apart_from_the_start(cluster: StandIn, api: Api) -> None:
    """It is no longer than the whole was, and not asked for where the start was short or the pull is known."""
    pulls = Pulls(api)

    assert PhaseTimes(start_s=1.0, pull_s=4.0) == await pulls.told_apart(LATE, POD)
    assert PhaseTimes(start_s=0.0, pull_s=3.0) == await pulls.told_apart(PhaseTimes(start_s=3.0), POD)
    asked = len(cluster.requests)
    for told in (PhaseTimes(), PhaseTimes(start_s=1.9), PhaseTimes(start_s=5.0, pull_s=1.0)):
        assert told == await pulls.told_apart(told, POD)
    assert asked == len(cluster.requests)


async def test_of_many_that_start_together_few_are_asked_about(cluster: StandIn, api: Api) -> None:
    """The others need not wait for it either."""
    cluster.slow_s["GET", "events"] = 0.2
    pulls = Pulls(api)

    told = await asyncio.gather(*(pulls.told_apart(LATE, POD) for _ in range(100)))

    assert (AT_ONCE, 100 - AT_ONCE) == (sum(one.pull_s == 4.0 for one in told), told.count(LATE))
    assert AT_ONCE == cluster.requests.count(("GET", "events"))


@pytest.mark.parametrize("quiet_s", [0.0, 3600.0])
async def test_the_server_is_asked_for_a_share_of_its_time_only(cluster: StandIn, api: Api, quiet_s: float) -> None:
    """Where each answer takes two seconds there are few: by the clock of ten minutes, a pod each second. A quiet hour
    before them allows no more."""
    answer_s, run_s, now = 2.0, 600, 0.0

    def takes_long(verb: str, kind: str) -> None:
        nonlocal now
        now += answer_s

    cluster.refuse = takes_long
    pulls = Pulls(api, now=lambda: now)

    now = quiet_s
    while now < quiet_s + run_s:
        await pulls.told_apart(LATE, POD)
        now += 1.0

    most = (ALLOWED_S + ALLOWED_SHARE * run_s) / answer_s + 1
    assert most / 2 < cluster.requests.count(("GET", "events")) <= most
