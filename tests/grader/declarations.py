"""Right and wrong declarations for every condition, and providers that do not give what they were asked for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from grader.campaign import Conditions, Limits, RewardPolicy
from grader.grade import grade_one
from grader.record import Grading, Submission
from grader.verdict import Cause, Outcome
from sandbox import Facts, Identity, Provider, Sandbox, SandboxSpec
from tasksets.task import Task
from tests.grader.tasks import COMMAND

ZONES = Path("/usr/share/zoneinfo/tzdata.zi")

LIMITS = Limits(attempts=2, grading_timeout_s=120)

NEVER_UNREAD = {"test_time_limit_s", "attempts", "image_digest"}
"""What the grader promises it knows, and the provider knows its image."""

CLOCK = "import time\ntrue_time = time.time\ntime.time = lambda: true_time() - 1e6\n"
"""A start-up file of Python that sets its clock back, as such libraries do."""


@dataclass(frozen=True)
class Wrong:
    """A declaration that does not hold, and what makes it so."""

    declared: Mapping[str, Any]
    setup: str = ""
    """Of the task."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What the provider gives instead of what its spec says."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Of the campaign."""


EVERYWHERE: Mapping[str, Wrong] = {
    "egress": Wrong({"egress": "denied"}, given={"egress": "open"}),
    "visible_cpus": Wrong({"visible_cpus": 4096}, given={"cpus": None}),
    "cpu_quota": Wrong({"cpu_quota": 0.5}, given={"cpu_quota": 0.75}),
    "memory_mib": Wrong({"memory_mib": 256}, given={"memory_mib": 512}),
    "open_files": Wrong({"open_files": 512}, given={"open_files": 600}),
    "shm_mib": Wrong({"shm_mib": 8}, given={"shm_mib": 16}),
    "hash_seed": Wrong({"hash_seed": 7}, given={"env": {}}),
    "time_zone": Wrong({"time_zone": "Asia/Tokyo"}, setup="export TZ=UTC\n"),
    "locale": Wrong({"locale": "tlh_QO.UTF-8"}),
    "user": Wrong({"user": 1000}, given={"user": 2000}),
    "umask": Wrong({"umask": "027"}, given={"umask": 0o022}),
    "environment": Wrong({"environment": {"MODE": "fast"}}, setup="export MODE=slow\n"),
}
"""What both providers can set, wrong in a sandbox that any of them makes."""

ELSEWHERE: Mapping[str, Wrong] = {
    "cpu_count": Wrong({"cpu_count": 4096}),
    "processes": Wrong({"processes": 500}, given={"processes": 600}),
    "test_time_limit_s": Wrong({"test_time_limit_s": 100}, limits={"grading_timeout_s": 90}),
    "attempts": Wrong({"attempts": 3}, limits={"attempts": 2}),
    "tzdata_version": Wrong({"tzdata_version": "1999a"}),
    "ipv6": Wrong({"ipv6": not Path("/proc/net/if_inet6").exists()}),
    "clock_within_s": Wrong({"clock_within_s": 60}, setup="export PYTHONPATH=/testbed/clock\n"),
    "architecture": Wrong({"architecture": "pdp11"}),
    "kernel": Wrong({"kernel": "0.01"}),
    "runtime_class": Wrong({"runtime_class": "kata"}),
    "seccomp": Wrong({"seccomp": "unconfined"}),
    "image_digest": Wrong({"image_digest": "sha256:" + "0" * 64}),
}
"""What only the local provider sets, what no provider sets, and what the grader itself promises."""

WRONG = {**EVERYWHERE, **ELSEWHERE}


def right(image_digest: str) -> Conditions:
    """A declaration of every condition that the local provider makes true on this machine."""
    system = os.uname()
    return Conditions(
        egress="denied",
        visible_cpus=1,
        cpu_count=1,
        cpu_quota=0.9,
        memory_mib=1024,
        processes=500,
        open_files=512,
        shm_mib=32,
        test_time_limit_s=30,
        attempts=2,
        hash_seed=7,
        time_zone="Europe/Berlin",
        tzdata_version=ZONES.read_text().split(maxsplit=3)[2] if ZONES.exists() else None,
        locale="C.UTF-8",
        user=1234,
        umask="027",
        ipv6=Path("/proc/net/if_inet6").exists(),
        clock_within_s=5,
        architecture=system.machine,
        kernel=".".join(system.release.split(".")[:2]),
        runtime_class="bubblewrap",
        seccomp="filtered",
        environment={"MODE": "fast"},
        image_digest=image_digest,
    )


@dataclass
class Giving:
    """A provider that gives `given` instead of what its spec says, and notes every command that it is sent."""

    provider: Provider
    given: Mapping[str, Any] = field(default_factory=dict)
    wrap: Callable[[Sandbox], object] = lambda box: box
    name: str = "giving"
    commands: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def sandbox(self, spec: SandboxSpec, *, acquire_timeout_s: float = 120.0) -> AsyncIterator[Sandbox]:
        # Egress is asked of the provider, and so is what the spec of the sandbox says: nobody inside knows better.
        changed = spec.model_copy(update=dict(self.given))
        async with self.provider.sandbox(changed, acquire_timeout_s=acquire_timeout_s) as box:
            yield cast(Sandbox, Noting(cast(Sandbox, self.wrap(box)), spec, self.commands))


@dataclass
class Noting:
    """A sandbox that notes the commands that it is sent, and says it was made to `spec`."""

    box: Sandbox
    spec: SandboxSpec
    commands: list[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.box, name)

    async def run(self, command: str | bytes, **how: Any) -> Any:
        self.commands.append(command if isinstance(command, str) else command.decode())
        return await self.box.run(command, **how)


@dataclass
class Bare:
    """A sandbox whose daemon can read nothing about its place, of a provider that does not say what runs it."""

    box: Sandbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self.box, name)

    @property
    def identity(self) -> Identity:
        return dataclasses.replace(self.box.identity, runtime=None)

    async def facts(self, *, canary: tuple[str, int] | None = None) -> Facts:
        return Facts(None, None, None, None, None, None, None, None, None)


async def graded_under(
    task: Task,
    provider: Provider,
    conditions: Conditions,
    *,
    limits: Limits = LIMITS,
    canary: tuple[str, int] | None,
) -> Grading:
    """The reference patch, graded under these conditions."""
    return await grade_one(
        task,
        Submission(task.task_id, "a-model", task.reference_patch, "tests"),
        provider=provider,
        conditions=conditions,
        limits=limits,
        rewards=RewardPolicy(),
        logs_dir=None,
        canary=canary,
        code_revision="test",
    )


def refused(grading: Grading, provider: Giving, name: str) -> None:
    """The grading has no verdict for that one condition, and nothing of the submission or the tests was sent."""
    assert (Outcome.NO_VERDICT, Cause.CONDITIONS_CONTRADICTED) == (grading.outcome, grading.cause), grading.reasons
    assert grading.reward is None
    assert 1 == len(grading.evidence.contradicted)
    assert name not in (*grading.evidence.agreed, *grading.evidence.unread)
    assert provider.commands
    assert not [command for command in provider.commands if COMMAND in command or "apply" in command]
