"""Real tasks on images that were built once: a cluster and this machine give the same verdicts, test by test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.kube.api import Api
from tests.cluster.conftest import a_canary
from tests.cluster.grading import Bench, built_and_loaded, differences

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.real,
    pytest.mark.network,
    pytest.mark.anyio,
    pytest.mark.usefixtures("image"),  # for a Ready node
    pytest.mark.timeout(2400),
]

TASKS = ["psf__requests-6028", "sympy__sympy-23413"]
CONDITIONS = {
    "egress": "denied",
    "visible_cpus": 1,
    "memory_mib": 2048,
    "hash_seed": 0,
    "time_zone": "UTC",
    "locale": "C.UTF-8",
    "user": 0,
}


async def test_real_tasks_have_the_same_verdicts_on_both_providers(
    admin: Api, kubeconfig: Path, namespace: str, real_data: Path, tmp_path: Path
) -> None:
    """Reference, empty and published patches: the expected verdict on pods, and the same status of every test here."""
    recipes = real_data / "recipes.jsonl"
    where = {"namespace": namespace, "kubeconfig": str(kubeconfig), "canary": list(await a_canary(admin))}
    images = built_and_loaded(recipes, TASKS, tmp_path / "images")
    bench = Bench(tmp_path, real_data / "swebench_verified.jsonl", recipes, images, where, CONDITIONS, concurrency=1)
    lines = (real_data / "patches.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["instance_id"] in TASKS]
    published = tmp_path / "published.jsonl"
    published.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    for patches in ("reference", "empty", str(published)):
        words = ("--patches", patches, "--only", ",".join(TASKS))
        there = bench.grade("kubernetes", Path(patches).stem, *words)
        here = bench.grade("local", Path(patches).stem, *words)

        assert [] == differences(here, there)
        resolved = {key: row["outcome"] == "resolved" for key, row in there.items()}
        if patches == str(published):
            assert {(r["instance_id"], r["model_name_or_path"]): r["published_resolved"] for r in rows} == resolved
        else:
            assert {(task, patches): patches == "reference" for task in TASKS} == resolved


async def test_preflight_admits_the_same_tasks_on_both_providers(
    admin: Api, kubeconfig: Path, namespace: str, real_data: Path, tmp_path: Path
) -> None:
    """Reference and empty patch twice each, every grading in a pod of its own; the admission file then lets the
    reference in on the cluster, and is void under another declaration."""
    recipes = real_data / "recipes.jsonl"
    where = {"namespace": namespace, "kubeconfig": str(kubeconfig), "canary": list(await a_canary(admin))}
    images = built_and_loaded(recipes, TASKS, tmp_path / "images")
    bench = Bench(tmp_path, real_data / "swebench_verified.jsonl", recipes, images, where, CONDITIONS, concurrency=1)
    words = ("--only", ",".join(TASKS), "--repeats", "2")

    there, here = bench.preflight("kubernetes", *words), bench.preflight("local", *words)

    assert dict.fromkeys(TASKS, "admitted") == {task: entry["kind"] for task, entry in there.items()}
    for task in TASKS:
        assert 4 == len(set(there[task]["rows"]))
        assert (here[task]["kind"], here[task]["hints"]) == (there[task]["kind"], there[task]["hints"])
    admission = tmp_path / "runs" / "preflight-kubernetes" / "admission.jsonl"
    graded = bench.grade("kubernetes", "let-in", "--patches", "reference", "--admission", admission, *words[:2])
    assert ["resolved"] * len(TASKS) == [row["outcome"] for row in graded.values()]
    void = replace(bench, conditions={**CONDITIONS, "hash_seed": 1})
    refused = void.refused("kubernetes", "--patches", "reference", "--admission", admission, *words[:2])
    assert "hash_seed" in refused
