"""A provider's config, and a stand-in for the cluster that it names, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import KubernetesConfig, SandboxSpec
from sandbox.config import PacingConfig, PhaseBudgets
from sandbox.kube import ownership
from tests.sandbox.kube.standin import StandIn

SPEC = SandboxSpec(image="name@sha256:" + "1" * 64, egress="open")


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandIn]:
    monkeypatch.setattr(ownership, "ANSWERED_DOUBT_S", 0.5)
    async with StandIn(tmp_path).serve() as stand_in:
        yield stand_in


@pytest.fixture
def config(cluster: StandIn) -> KubernetesConfig:
    return KubernetesConfig(
        kubeconfig=cluster.kubeconfig(),
        guard="unguarded",
        pacing=PacingConfig(creates_per_s=500, burst=100),
        budgets=PhaseBudgets(schedule_s=1.0, pull_s=2.0, start_s=0.5, daemon_s=20),
    )


async def lost(command: Any) -> Exception:
    try:
        await command
    except Exception as error:
        return error
    return AssertionError("the command ended")
