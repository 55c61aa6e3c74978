"""The fault matrix on the Kubernetes provider: real faults strike real gradings on the node of `tests/cluster/up`.

As in `test_local`, a good, a bad and an empty patch are in flight when the fault strikes, and none gets a score of it.
What takes a minute, or disturbs the node for others, is marked `long`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import KUBE_DIR, cluster_held, left_in
from tests.cluster.images import a_registry, ctr, forget
from tests.faults.cluster import Admin, cut_off, killed, load_toy, standing_still
from tests.faults.processes import Striker, frozen, held_asleep, kill_first
from tests.faults.room import Room, check_all_right, check_none_has_a_verdict, is_root
from tests.faults.seen import note
from tests.grader.tasks import make_repo

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def cluster() -> Admin:
    """The node is to be this machine: faults strike its processes, and images are loaded into it."""
    kubeconfig = KUBE_DIR / "pki" / "admin.kubeconfig"
    given = os.environ.get("KUBECONFIG")
    if given and Path(given) != kubeconfig:
        pytest.skip("faults are made on the node of tests/cluster/up, which is not $KUBECONFIG's")
    if not is_root() or not (KUBE_DIR / "run" / "py.ref").exists():
        pytest.skip("no node: run tests/cluster/up as root")
    admin = Admin(kubeconfig)
    if not admin.answers():
        pytest.skip("no cluster answers: run tests/cluster/up as root")
    return admin


@pytest.fixture(scope="session")
def toy(cluster: Admin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The toy's image on the node."""
    folder = tmp_path_factory.mktemp("faults-toy")
    reference = load_toy(make_repo(folder / "repo").path, folder)
    yield reference
    forget(reference)


@pytest.fixture(autouse=True)
def held(request: pytest.FixtureRequest, cluster: Admin) -> Iterator[None]:
    """What disturbs the node for others has it to itself."""
    with cluster_held(exclusively=request.node.get_closest_marker("long") is not None):
        yield


@pytest.fixture
def namespace(cluster: Admin) -> Iterator[str]:
    with cluster.namespace() as name:
        yield name


@pytest.fixture
def room(tmp_path: Path, cluster: Admin, namespace: str, toy: str) -> Iterator[Callable[..., Room]]:
    """Makes a room in a namespace of its own, of which no pod and no lease is left at the end."""
    made: list[Room] = []

    def make(*, image: str = toy, provider: dict[str, Any] | None = None, **changes: Any) -> Room:
        settings = {"type": "kubernetes", "namespace": namespace, "kubeconfig": str(cluster.kubeconfig)}
        settings |= {"guard": "unguarded", **(provider or {})}
        changes["conditions"] = {"egress": "open", **changes.get("conditions", {})}
        made.append(Room(tmp_path / "room", image, settings, **changes))
        return made[-1]

    yield make
    for one in made:
        one.kill_what_runs()
    assert [] == left_in(cluster.kubeconfig, namespace)


def test_a_pod_that_another_hand_deletes_costs_an_attempt(
    room: Callable[..., Room], cluster: Admin, namespace: str
) -> None:
    """Each patch's pod is deleted beside its suite; each gets its right verdict in a second one."""
    one = room(sleep_s=3)
    running = one.start()
    with held_asleep(one.asleep, 3):
        for pod in cluster.pods(namespace):
            cluster.delete_pod(namespace, pod["metadata"]["name"])
    rows = check_all_right(running.wait(90), attempts=2)

    assert all("(deleted)" in row.evidence.failures[0] for row in rows), [row.evidence.failures for row in rows]
    note("sandbox killed", "kubernetes", rows)


def test_a_killed_execd_costs_an_attempt(room: Callable[..., Room]) -> None:
    """PID 1 of each pod is killed from outside: the container's end is the cause, a second pod the remedy."""
    one = room(sleep_s=2)

    with Striker(one.asleep, kill_first, most=3) as striker:
        rows = check_all_right(one.start().wait(90), attempts=2)

    assert 3 == len(striker.struck)
    assert all("exit code 137" in row.evidence.failures[0] for row in rows), [row.evidence.failures for row in rows]
    note("execd killed", "kubernetes", rows)


def test_tests_that_are_killed_for_memory_are_no_failed_tests(room: Callable[..., Room]) -> None:
    """A suite that outgrows the pod's memory limit has no verdict, although the pod itself lives on."""
    one = room(
        sleep_s=0,
        before="python3 -c 'bytearray(400 << 20)' || exit 1",
        conditions={"memory_mib": 96},
        limits={"attempts": 2},
    )

    rows = check_none_has_a_verdict(one.start().wait(90), "OutOfMemory", attempts=2)

    note("out of memory", "kubernetes", rows)


@pytest.mark.long
def test_a_sandbox_that_stands_still_has_not_timed_out(room: Callable[..., Room]) -> None:
    """The pods hang until their tests' time is over: that is no time-out of the patch's, but costs an attempt."""
    one = room(sleep_s=2, conditions={"test_time_limit_s": 8})
    running = one.start()

    with held_asleep(one.asleep, 3) as sandboxes, frozen(sandboxes):
        time.sleep(12)
    rows = check_all_right(running.wait(60), attempts=2)

    assert all("stood still" in row.evidence.failures[0] for row in rows), [row.evidence.failures for row in rows]
    note("sandbox stands still beyond the tests' limit", "kubernetes", rows)


def test_a_short_cut_of_the_network_costs_nothing(room: Callable[..., Room], cluster: Admin, namespace: str) -> None:
    """No packet passes while the suites end: their results come afterwards, and no test runs twice."""
    one = room(sleep_s=2)
    running = one.start()
    with contextlib.ExitStack() as cut:
        with held_asleep(one.asleep, 3):
            cut.enter_context(cut_off(_addresses(cluster, namespace)))
        time.sleep(4)
    rows = check_all_right(running.wait(90), attempts=1)

    note("network cut for seconds", "kubernetes", rows)


@pytest.mark.long
def test_pods_that_stay_cut_off_are_given_up(room: Callable[..., Room], cluster: Admin, namespace: str) -> None:
    """Pods that cannot be reached any more, while the server calls them well, are lost; new ones give the verdicts."""
    one = room(sleep_s=2)
    running = one.start()
    with contextlib.ExitStack() as cut:
        with held_asleep(one.asleep, 3):
            cut.enter_context(cut_off(_addresses(cluster, namespace)))
        rows = check_all_right(running.wait(240), attempts=2)

    assert all(row.evidence.failures[0].startswith("SandboxLost") for row in rows)
    note("network cut for more than a minute", "kubernetes", rows)


@pytest.mark.long
def test_a_pod_beyond_its_disk_is_evicted_and_has_no_verdict(room: Callable[..., Room]) -> None:
    """A suite that writes more than the pod may is put out by the node: no verdict, and the eviction is named."""
    one = room(
        provider={"ephemeral_storage_mib": 64},
        sleep_s=0,
        before="head -c 200000000 /dev/zero > fill; sleep 50",
        limits={"attempts": 1},
    )

    rows = check_none_has_a_verdict(one.start().wait(200), "Evicted", attempts=1)

    note("disk filled by the suite", "kubernetes", rows)


def test_a_missing_image_costs_no_verdict(room: Callable[..., Room], toy: str) -> None:
    """No score of an image that its registry does not have, at the first try; once it is there, the same command."""
    with a_registry({"toy": (404, "MANIFEST_UNKNOWN")}) as registry:
        elsewhere = f"{registry}/toy@{toy.partition('@')[2]}"
        one = room(image=elsewhere, sleep_s=0)

        rows = check_none_has_a_verdict(one.start().wait(90), "ImageError: .* not found", attempts=1)
        note("image missing", "kubernetes", rows)

        ctr("tag", toy, elsewhere)
        try:
            note("image missing", "kubernetes", check_all_right(one.start().wait(90)), then=True)
        finally:
            ctr("rm", elsewhere)


@pytest.mark.long
def test_a_grader_that_is_killed_goes_on(room: Callable[..., Room], cluster: Admin, namespace: str) -> None:
    """kill -9 leaves pods behind, whose results nobody reads; the same command gives the verdicts, and once the dead
    run's lease is over the next start, or the janitor, deletes what it left."""
    one = room(provider={"lease_s": 5}, sleep_s=2)
    running = one.start()
    with held_asleep(one.asleep, 3):
        running.kill()
    assert [] == one.rows()
    left = {pod["metadata"]["name"] for pod in cluster.pods(namespace)}
    assert 3 == len(left)

    rows = check_all_right(one.start().wait(90), attempts=1)

    assert left.isdisjoint(row.evidence.sandbox_id for row in rows)
    note("grader killed with SIGKILL, same command again", "kubernetes", rows)
    deadline = time.monotonic() + 30
    while cluster.pods(namespace):
        assert time.monotonic() < deadline, "what a dead run left is still there"
        one.janitor()


# -- what disturbs the node for everybody ------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "gone"),
    [
        ("API server stands still for a minute", standing_still),
        ("API server killed, and back after a minute", killed),
    ],
)
def test_a_server_that_is_away_for_a_minute_costs_nothing(
    room: Callable[..., Room],
    cluster: Admin,
    fault: str,
    gone: Callable[[str], contextlib.AbstractContextManager[None]],
) -> None:
    """The API server is away for a minute: what is in flight ends, what is to come waits, nobody gets a score of it."""
    one = room(sleep_s=8, limits={"concurrency": 2})
    running = one.start()
    with contextlib.ExitStack() as away:
        with held_asleep(one.asleep, 2):
            away.enter_context(gone("apiserver"))
        time.sleep(60)
    rows = check_all_right(running.wait(300))

    assert cluster.answers()
    note(fault, "kubernetes", rows)


@pytest.mark.long
def test_a_node_that_is_gone_for_a_while_costs_an_attempt(room: Callable[..., Room]) -> None:
    """The node's kubelet stands still and its pods' processes are dead, while the server still calls them well: the
    sandboxes are lost, and once the node is back new ones give the verdicts."""
    one = room(sleep_s=5)
    running = one.start()
    with contextlib.ExitStack() as away:
        with held_asleep(one.asleep, 3) as sandboxes:
            away.enter_context(standing_still("kubelet"))
            for seen in sandboxes:
                kill_first(seen)
        time.sleep(75)
    rows = check_all_right(running.wait(300), attempts=2)

    assert all(row.evidence.failures[0].startswith(("SandboxLost", "NodeLost")) for row in rows)
    note("node gone for 75 s", "kubernetes", rows)


@pytest.mark.long
def test_a_node_that_the_cluster_gives_up_costs_an_attempt(
    room: Callable[..., Room], cluster: Admin, namespace: str
) -> None:
    """The node is dead, and somebody takes it out of the cluster, which then deletes its pods: the sandboxes are lost,
    and once there is a node again new ones give the verdicts."""
    one = room(sleep_s=5)
    running = one.start()
    with contextlib.ExitStack() as away:
        with held_asleep(one.asleep, 3) as sandboxes:
            away.enter_context(standing_still("kubelet"))
            away.enter_context(cluster.without_node())
            for seen in sandboxes:
                kill_first(seen)
        time.sleep(90)
    rows = check_all_right(running.wait(300), attempts=2)

    note("node gone, and taken out of the cluster", "kubernetes", rows)


def _addresses(cluster: Admin, namespace: str) -> list[str]:
    return [pod["status"]["podIP"] for pod in cluster.pods(namespace)]
