"""Ownership against a real API server behind a proxy that loses, delays and refuses: nothing of ours stays, nothing of
others goes. The whole proof is `python -m tests.cluster.trials --trials 3000 --kills 50`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import KubernetesConfig
from sandbox.kube.api import Api
from tests.cluster import trials
from tests.cluster.kills import kill_trials
from tests.cluster.trials import ownership_trials

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(1800)]

TRIALS = int(os.environ.get("SANDMAN_OWNERSHIP_TRIALS", "200"))
KILLS = int(os.environ.get("SANDMAN_KILL_TRIALS", "4"))
SEED = os.environ.get("SANDMAN_SEED", "ci")


async def test_no_pod_of_ours_stays_and_no_pod_of_others_goes(
    admin: Api, config: Callable[..., KubernetesConfig]
) -> None:
    """Hundreds of acquires under faults and cancellations beside foreign pods: 0 ownerless, 0 foreign deletes."""
    count = await ownership_trials(admin, config(), trials=TRIALS, seed=SEED)

    assert ([], [], [], []) == (count.ownerless, count.foreign_deletes, count.stuck, count.unexpected)
    assert sum(count.faults.values()) >= TRIALS / 4
    assert count.outcomes["got one, gave it back"] >= TRIALS / 40
    assert count.outcomes["cancelled with one"] >= 1
    assert sum(number for what, number in count.cancelled.items() if not what.startswith("nobody")) >= TRIALS / 3


async def test_what_a_killed_process_leaves_the_janitor_deletes(
    admin: Api, config: Callable[..., KubernetesConfig]
) -> None:
    """SIGKILL at random moments of twenty creates: after the lease's time one run of the janitor leaves nothing of
    them, and everything of others and of a run that lives."""
    told = await kill_trials(admin, config(), kills=KILLS, seed=SEED)

    assert ([], [], []) == (told.ownerless, told.foreign_deletes, told.living_deletes)
    assert told.swept > 0


async def test_a_run_that_does_not_end_is_given_up_and_named(
    admin: Api, config: Callable[..., KubernetesConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hang is a finding, and no reason to count on for ever."""

    async def never(run: trials.Run, how_many: int, scratch: Path) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(trials.Run, "trials", never)
    monkeypatch.setattr(trials, "RUN_LIMIT_S", 0.1)

    count = await ownership_trials(admin, config(), trials=10, seed="stuck", only=[7])

    assert ["stuck/7"] == count.stuck
