"""`grader grade --provider kubernetes`: the demo set on pods and here, from the same archives, verdict by verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox.kube.api import Api
from sandbox.kube.manifest import LEASE_LABEL, NONCE_LABEL, SANDBOX_LABEL
from tests.cluster.conftest import a_canary, pods_of
from tests.cluster.grading import Bench, answers, built_and_loaded, command, differences
from tests.demo.taskset import TIME_LIMIT_S, task_ids, write

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.timeout(2400)]

CONDITIONS = {
    "egress": "denied",
    "visible_cpus": 1,
    "memory_mib": 512,
    "hash_seed": 7,
    "time_zone": "Asia/Tokyo",
    "locale": "C.UTF-8",
    "user": 0,
    "test_time_limit_s": TIME_LIMIT_S,
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.network
@pytest.mark.usefixtures("image")
async def test_the_demo_set_has_its_declared_verdicts_on_pods_and_here(
    admin: Api, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    """Each kind of patch gets its declared verdict on the cluster; every declared condition is set and read back there;
    and the local provider says the same of every test. No pod is left."""
    files = write(tmp_path / "demo")
    where = {"namespace": namespace, "kubeconfig": str(kubeconfig), "canary": list(await a_canary(admin))}
    images = built_and_loaded(files.recipes, task_ids(), tmp_path / "images")
    bench = Bench(tmp_path, files.taskset, files.recipes, images, where, CONDITIONS)

    there = bench.grade("kubernetes", "demo", "--patches", files.patches)
    here = bench.grade("local", "demo", "--patches", files.patches)

    assert files.expected == {key: row["outcome"] for key, row in there.items()}
    assert [] == differences(here, there)
    probed = [row["evidence"] for row in there.values() if row["evidence"]["observed"]]
    assert probed
    assert all(set(CONDITIONS) == set(one["agreed"]) and not one["unread"] for one in probed)
    assert all(one["never_used"] for one in probed)
    assert [] == await pods_of(admin, namespace)


async def test_the_janitor_deletes_what_a_dead_run_left(admin: Api, kubeconfig: Path, namespace: str) -> None:
    """A pod of ours whose lease is gone is deleted and named; a stranger's pod stays."""

    marks = {SANDBOX_LABEL: "true", LEASE_LABEL: "gone", NONCE_LABEL: "n"}
    for name, labels in (("ours", marks), ("stranger", {**marks, SANDBOX_LABEL: "no"})):
        spec = {"containers": [{"name": "c", "image": "localhost/none:1"}], "nodeSelector": {"no-such": "node"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
        await admin.call("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    where = ("--provider", "kubernetes", "--namespace", namespace, "--kubeconfig", kubeconfig)

    (swept,) = answers("janitor", *where)
    again = command("janitor", *where)

    assert (["ours"], [], 0) == (swept["deleted"], swept["failed"], swept["kept"])
    assert ["stranger"] == await pods_of(admin, namespace)
    assert (0, "0 pods deleted, 0 not, 0 kept of living runs\n") == (again.returncode, again.stdout)


async def test_the_doctor_answers_programs(kubeconfig: Path, namespace: str) -> None:
    """Each finding is a JSON object, and the exit status says that nothing stands in the way."""
    told = answers("doctor", "--provider", "kubernetes", "--namespace", namespace, "--kubeconfig", kubeconfig)

    assert {"server", "clock", "permissions", "policies", "capacity"} <= {one["check"] for one in told}
    assert {"check", "level", "said", "facts"} == set(told[0])
    assert json.dumps(told)
