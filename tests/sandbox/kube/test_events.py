"""What pods' events may cost a server that reads all of a namespace's to find one pod's, and whom they tell what."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandbox import KubernetesConfig
from sandbox.config import PacingConfig
from sandbox.kube.api import EVENTS_AT_ONCE, open_api
from sandbox.kube.endings import REASONS_OF_ENDS, ending_of_a_vanished
from sandbox.kube.events import Events
from sandbox.kube.snapshot import Pod, parse_pod
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio


def event(reason: str, name: str = "one", at: str = "2026-01-01T00:00:00Z", **about: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "name": name, **about}
    return {"reason": reason, "message": f"{reason} it", "lastTimestamp": at, "involvedObject": about}


def pod(name: str = "one") -> Pod:
    return parse_pod({"metadata": {"name": name, "uid": f"uid of {name}"}})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with StandIn(tmp_path).serve() as stand_in:
        stand_in.events = [event("Pulled")]
        yield stand_in


@pytest.fixture
async def events(cluster: StandIn) -> AsyncIterator[Events]:
    async with open_api(KubernetesConfig(kubeconfig=cluster.kubeconfig())) as api:
        yield Events(api)


async def test_hundreds_that_want_to_know_ask_a_few_at_once(cluster: StandIn, events: Events) -> None:
    """And all of them hear it."""
    cluster.slow_s["GET", "events"] = 0.01

    heard = await asyncio.gather(*(events.about(pod()) for _ in range(200)))

    assert ["Pulled it"] * 200 == [noted[0].message for noted in heard if noted]
    assert EVENTS_AT_ONCE == cluster.most_at_once["events"]


async def test_thousands_that_ended_together_are_one_question_and_each_hears_its_own(
    cluster: StandIn, events: Events
) -> None:
    """However slow the answer: the one that was under way when most of them asked, and the next."""
    names = [f"pod-{number}" for number in range(3000)]
    cluster.events += [event("Evicted" if int(name[4:]) % 2 else "Preempted", name) for name in names]
    cluster.events += [event("Scheduled", name) for name in names]
    cluster.slow_s["GET", "events"] = 0.3

    first = asyncio.create_task(events.about_end(pod("pod-0")))
    await anyio.sleep(0.1)
    heard = await asyncio.gather(*(events.about_end(pod(name)) for name in names))

    causes = [ending_of_a_vanished(pod(), noted, lifetime_s=1).cause for noted in heard]
    assert ["preempted", "evicted"] * 1500 == causes
    assert 1 == len(await first or ())
    pages = 3 + 3  # 1,500 of either reason in pages of 500
    assert 2 * (pages + len(REASONS_OF_ENDS) - 2) == cluster.requests.count(("GET", "events"))
    assert 1 == cluster.most_at_once["events"]


async def test_who_asks_later_hears_what_was_noted_since(cluster: StandIn, events: Events) -> None:
    """An answer is for those who had asked before it was begun; what came too late for it is in the next."""
    cluster.slow_s["GET", "events"] = 0.2
    early = asyncio.create_task(events.about_end(pod()))
    while ("GET", "events") not in cluster.requests:
        await anyio.sleep(0.01)
    await anyio.sleep(0.1)  # the first of the lists is being answered, without what comes now
    cluster.events.append(event(REASONS_OF_ENDS[0]))

    later = await events.about_end(pod())

    assert () == await early
    assert REASONS_OF_ENDS[:1] == tuple(one.reason for one in later or ())


async def test_one_that_gives_up_asking_takes_nobody_along(cluster: StandIn, events: Events) -> None:
    """The next in turn asks in its place; whoever is refused hears that it is not known, not that there was nothing."""
    cluster.events.append(event("Evicted"))
    cluster.slow_s["GET", "events"] = 0.2
    asking = [asyncio.create_task(events.about_end(pod())) for _ in range(5)]
    await anyio.sleep(0.1)
    asking[0].cancel()

    assert ["Evicted"] * 4 == [noted[0].reason for noted in await asyncio.gather(*asking[1:]) if noted]
    cluster.refuse = lambda _verb, kind: (503, "ServiceUnavailable", "busy") if kind == "events" else None
    assert [None] * 5 == await asyncio.gather(*(events.about_end(pod()) for _ in range(5)))


async def test_who_asks_a_server_that_does_not_answer_hears_that_it_is_not_known(
    cluster: StandIn, events: Events
) -> None:
    """Not that there was nothing. Those who wait for their turn are patient for no longer."""
    cluster.slow_s["GET", "events"] = 30.0

    with anyio.fail_after(10):
        heard = await asyncio.gather(*(events.about(pod(), patience_s=0.2) for _ in range(2 * EVENTS_AT_ONCE)))
        heard += await asyncio.gather(*(events.about_end(pod(), patience_s=0.2) for _ in range(9)))

    assert {None: 2 * EVENTS_AT_ONCE + 9} == Counter(heard)


async def test_events_of_another_pod_of_the_name_are_no_evidence(cluster: StandIn, events: Events) -> None:
    """Some components leave the UID out of what they note; what names another's is not this pod's."""
    cluster.events = [
        event("Evicted", uid="uid of one", at="2026-01-02T00:00:00Z"),
        event("Evicted", uid="uid of another"),
        event("Preempted"),
        event("Preempted", uid=["uid of one"]),
        event("Pulled", kind="Node"),
    ]
    for noted in (await events.about(pod()), await events.about_end(pod())):
        assert ["Preempted", "Evicted"] == [one.reason for one in noted or ()]


async def test_notes_are_told_in_the_order_of_their_times(cluster: StandIn, events: Events) -> None:
    """Whether a component tells whole seconds, parts of them or nothing at all."""
    cluster.events = [
        event("Third", at="2026-01-01T00:00:01Z"),
        {**event("Second", at=""), "eventTime": "2026-01-01T00:00:00.900000Z"},
        event("First", at="2026-01-01T00:00:00Z"),
        {**event("Fourth", at="2026-01-01T00:00:02Z"), "eventTime": "2026-01-01T00:00:00.500000Z"},
        event("Untold", at=""),
    ]

    noted = await events.about(pod())

    assert ["Untold", "First", "Second", "Third", "Fourth"] == [one.reason for one in noted or ()]


async def test_a_lease_is_renewed_beside_all_that_want_to_know(cluster: StandIn) -> None:
    """However many ask for events, and whatever else is under way, there is a connection for it."""
    cluster.slow_s["GET", "events"] = 30.0
    config = KubernetesConfig(kubeconfig=cluster.kubeconfig(), pacing=PacingConfig(max_requests=1))
    async with open_api(config) as api, asyncio.TaskGroup() as group:
        events = Events(api)
        watching = group.create_task(anext(api.watch_pods("a=b", "1", timeout_s=30.0)))
        asking = [group.create_task(events.about(pod())) for _ in range(2 * EVENTS_AT_ONCE)]
        asking += [group.create_task(events.about_end(pod())) for _ in range(2)]
        with anyio.fail_after(5):
            while cluster.most_at_once["events"] <= EVENTS_AT_ONCE or ("WATCH", "pods") not in cluster.requests:
                await anyio.sleep(0.01)
            await api.call("GET", api.path("leases", group="apis/coordination.k8s.io/v1"))
        for task in (watching, *asking):
            task.cancel()
