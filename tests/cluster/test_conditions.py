"""Every condition that both providers can set, in pods: it agrees, it contradicts and no test runs, it is unread."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from grader.campaign import Conditions
from grader.verdict import Outcome
from sandbox import KubernetesConfig, Provider, SandboxSpec, open_provider
from sandbox.config import PacingConfig
from sandbox.kube.api import Api
from tasksets.task import Task
from tests.cluster.conftest import a_canary, a_namespace
from tests.grader.declarations import EVERYWHERE, NEVER_UNREAD, Bare, Giving, graded_under, refused
from tests.grader.tasks import COMMAND, Repo, Seeded, make_repo, make_task

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.slow]

RIGHT = Conditions(
    egress="denied",
    visible_cpus=1,
    cpu_quota=0.8,
    memory_mib=256,
    open_files=512,
    shm_mib=32,
    test_time_limit_s=60,
    attempts=2,
    hash_seed=7,
    time_zone="UTC",
    locale="C.UTF-8",
    umask="027",
    clock_within_s=5,
    runtime_class="default",
    seccomp="filtered",
    environment={"MODE": "fast"},
)


@dataclass(frozen=True)
class Ground:
    """A provider of pods that hold the little task, and the canary that pods with open egress reach."""

    provider: Provider
    repo: Repo
    image: str
    canary: tuple[str, int]

    def task(self, *, setup: str = "", command: str = COMMAND) -> Task:
        return dataclasses.replace(make_task(self.repo, setup=setup, command=command), image=self.image)


@pytest.fixture(scope="module")
async def ground(
    admin: Api, kubeconfig: Path, spec: SandboxSpec, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Ground]:
    repo = make_repo(tmp_path_factory.mktemp("task") / "repo")
    canary = await a_canary(admin)
    async with a_namespace(admin) as namespace:
        pacing = PacingConfig(creates_per_s=50, burst=25)
        config = KubernetesConfig(kubeconfig=kubeconfig, namespace=namespace, canary=canary, pacing=pacing)
        async with open_provider(config) as provider:
            yield Ground(Seeded(provider, repo.path), repo, spec.image, canary)


@pytest.mark.parametrize("name", EVERYWHERE)
async def test_a_wrong_declaration_is_refused_before_any_test(ground: Ground, name: str) -> None:
    """A declaration that the pod contradicts gives no verdict, no reward and no test, whatever the condition."""
    wrong = EVERYWHERE[name]
    provider = Giving(ground.provider, wrong.given)
    conditions = Conditions(**{"egress": None, "test_time_limit_s": 60, **wrong.declared})
    task = ground.task(setup=wrong.setup)
    refused(await graded_under(task, provider, conditions, canary=ground.canary), provider, name)


async def test_all_right_declarations_agree(ground: Ground) -> None:
    """What the provider can make true agrees by name, and the tests are judged."""
    spec = SandboxSpec(image=ground.image, shm_mib=RIGHT.shm_mib, open_files=RIGHT.open_files)
    async with ground.provider.sandbox(spec) as box:
        not_on_this_node = box.unenforced
    right = RIGHT.model_copy(update=dict.fromkeys(not_on_this_node))
    grading = await graded_under(ground.task(), ground.provider, right, canary=ground.canary)
    assert Outcome.RESOLVED == grading.outcome, grading.reasons
    assert () == grading.evidence.unread
    assert {name for name, value in right if value is not None} == set(grading.evidence.agreed)
    assert set(not_on_this_node) <= {"shm_mib"}


async def test_what_the_node_does_not_enforce_is_refused(ground: Ground) -> None:
    """A `/dev/shm` that is larger than declared, as kubelets before 1.22 make it, is never silently taken."""
    conditions = Conditions(shm_mib=32, test_time_limit_s=60)
    grading = await graded_under(ground.task(), ground.provider, conditions, canary=ground.canary)
    assert ("shm_mib" in grading.evidence.unenforced) == (grading.outcome is Outcome.NO_VERDICT)
    assert ("shm_mib" in grading.evidence.agreed) == (grading.outcome is Outcome.RESOLVED)


async def test_another_user_agrees(ground: Ground) -> None:
    """A pod runs as the declared user. (The little task lies where only root may put it, so it is not judged.)"""
    conditions = Conditions(user=1000, test_time_limit_s=60)
    grading = await graded_under(ground.task(), ground.provider, conditions, canary=ground.canary)
    assert "user" in grading.evidence.agreed


async def test_what_cannot_be_read_is_unread_by_name(ground: Ground) -> None:
    """Without a Python in the tests' shell, facts or a canary, every condition is unread by name, and none refuses."""
    provider = Giving(ground.provider, wrap=Bare)
    command = f"PATH=/usr/local/bin:/usr/bin:/bin {COMMAND}"
    task = ground.task(setup="export PATH=/nowhere\n", command=command)
    grading = await graded_under(task, provider, RIGHT, canary=None)
    assert Outcome.RESOLVED == grading.outcome, grading.reasons
    declared = {name for name, value in RIGHT if value is not None}
    assert declared - NEVER_UNREAD == set(grading.evidence.unread)
