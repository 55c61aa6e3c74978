"""The provider before a stand-in for a cluster: its opening, its closing, and errors that nobody foresaw."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import anyio
import pytest
import structlog

from sandbox import KubernetesConfig, open_provider
from sandbox.errors import (
    CreateError,
    ImageError,
    ProviderUnavailable,
)
from sandbox.kube import keep, ownership
from sandbox.kube.api import Api
from sandbox.kube.manifest import LEASE_LABEL, NONCE_LABEL, SANDBOX_LABEL
from tests.sandbox.deaf import Deaf
from tests.sandbox.kube.pods import waiting
from tests.sandbox.kube.provided import SPEC, cluster, config, lost
from tests.sandbox.kube.standin import StandIn

__all__ = ["cluster", "config"]  # fixtures

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("answered_after_s", [0.0, 0.2])
async def test_an_open_that_is_cancelled_leaves_no_lease(
    cluster: StandIn, config: KubernetesConfig, times: int, answered_after_s: float
) -> None:
    """A cancellation that comes while the lease is on its way takes the lease back, whenever the server stores it."""
    cluster.slow_s["POST", "leases"] = answered_after_s

    async def host() -> None:
        async with open_provider(config):
            raise AssertionError("opened")

    def cancel(verb: str, kind: str) -> tuple[int, str, str] | None:
        if (verb, kind) == ("POST", "leases"):
            for number in range(times):
                asyncio.get_running_loop().call_later(number * 0.01, task.cancel)
        return None

    cluster.refuse = cancel
    task = asyncio.create_task(host())
    await asyncio.wait({task}, timeout=20)

    assert task.cancelled()
    assert ("DELETE", "leases") in cluster.requests
    assert {} == cluster.leases


async def test_an_open_whose_lease_has_no_answer_leaves_none(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A create that may have been carried out is undone, and the error says what was missing."""
    monkeypatch.setattr("sandbox.kube.lease.MAKE_S", 0.3)
    cluster.slow_s["POST", "leases"] = 2.0

    with pytest.raises(ProviderUnavailable, match="lease cannot be made"):
        async with open_provider(config):
            pass

    assert {} == cluster.leases


async def test_nobody_renews_a_lease_that_is_being_taken_away(cluster: StandIn, config: KubernetesConfig) -> None:
    """A slow answer to the lease's delete outlasts its renewals, and none of them makes it again."""
    cluster.slow_s["DELETE", "leases"] = 2.5

    async with open_provider(config.model_copy(update={"lease_s": 6.0})):
        pass

    about_leases = [verb for verb, kind in cluster.requests if kind == "leases"]
    assert "DELETE" == about_leases[-1]
    assert {} == cluster.leases


async def test_closing_answers_who_still_waits(cluster: StandIn, config: KubernetesConfig) -> None:
    """A caller whose pod is pending when the provider closes gets an error, and the pod goes."""
    cluster.status_of_new = lambda pod: {"phase": "Pending"}
    provider = open_provider(config)
    opened = await provider.__aenter__()

    async def caller() -> None:
        async with opened.sandbox(SPEC, acquire_timeout_s=60):
            pass

    waiting = asyncio.create_task(lost(caller()))
    with anyio.fail_after(5):
        while not cluster.pods:
            await anyio.sleep(0.01)
    await provider.__aexit__(None, None, None)

    assert CreateError is type(await waiting)
    assert {} == cluster.pods


async def test_a_log_that_cannot_be_written_loses_no_pod(cluster: StandIn, config: KubernetesConfig) -> None:
    """While every log line raises, deletes that fail are tried again, errors reach callers, and closing ends clean."""
    deaf = Deaf()
    structlog.configure(logger_factory=deaf)
    failing = itertools.repeat((500, "InternalError", "no"), 3)
    cluster.refuse = lambda verb, kind: next(failing, None) if (verb, kind) == ("DELETE", "pods") else None

    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC):
            pass
        cluster.status_of_new = lambda pod: waiting("InvalidImageName")["status"]
        with pytest.raises(ImageError):
            async with provider.sandbox(SPEC):
                pass

    assert ({}, {}) == (cluster.pods, cluster.leases)
    assert deaf.lines >= 4


def fail_at_first(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Let the first call of this method of `Api` fail as nobody foresaw; its name is put down then."""
    method = getattr(Api, name)
    failed: list[str] = []

    async def failing(*args: Any, **kwargs: Any) -> Any:
        if failed:
            return await method(*args, **kwargs)
        failed.append(name)
        raise LookupError("a defect")

    monkeypatch.setattr(Api, name, failing)
    return failed


@pytest.mark.parametrize("name", ["create_pod", "read_pod", "delete_pod", "list_pods"])
async def test_an_error_that_nobody_foresaw_is_logged_and_ends_nothing(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A create, a read-back, a delete or the watch in which a defect shows goes on as after a failed answer."""
    monkeypatch.setattr(keep, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(ownership, "DOUBT_S", 0.5)
    lost = iter([(500, "InternalError", "no")] if name == "read_pod" else [])  # so that something is read back
    cluster.refuse = lambda verb, kind: next(lost, None) if (verb, kind) == ("POST", "pods") else None
    failed = fail_at_first(monkeypatch, name)

    with structlog.testing.capture_logs() as lines:
        async with open_provider(config) as provider, provider.sandbox(SPEC) as box:
            assert 0 == (await box.run("true", timeout_s=20)).exit_code

    assert [name] == failed
    assert ["LookupError('a defect')"] == [repr(line["exc_info"]) for line in lines if line["log_level"] == "error"]
    assert ({}, {}) == (cluster.pods, cluster.leases)


async def test_a_lease_that_fails_as_nobody_foresaw_is_renewed_all_the_same(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And at once: it was due."""
    monkeypatch.setattr(keep, "FIRST_PAUSE_S", 0.05)
    async with open_provider(config.model_copy(update={"lease_s": 3.0})):
        await anyio.sleep(0.5)  # the sweep is over
        fail_at_first(monkeypatch, "call")
        await anyio.sleep(1.5)
        assert ("PATCH", "leases") in cluster.requests


async def test_a_lease_that_cannot_be_read_keeps_no_sweep_from_beginning_again(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What dead runs left goes once it can."""
    monkeypatch.setattr(keep, "FIRST_PAUSE_S", 0.05)
    cluster.leases["odd"] = {"metadata": {"name": "odd"}, "spec": {"leaseDurationSeconds": "long"}}
    cluster.status_of_new = lambda pod: {"phase": "Pending"}
    labels = {SANDBOX_LABEL: "true", LEASE_LABEL: "dead", NONCE_LABEL: "n1"}
    cluster.create({"metadata": {"name": "left", "labels": labels}, "spec": {}})

    async with open_provider(config):
        await anyio.sleep(0.2)
        assert ["left"] == list(cluster.pods)
        del cluster.leases["odd"]
        with anyio.fail_after(5):
            while cluster.pods:
                await anyio.sleep(0.01)


async def test_closing_goes_on_while_it_gets_somewhere_and_ends_when_it_does_not(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes that are let through one by one are waited for, beyond the time-out; those that never are, are listed."""
    monkeypatch.setattr("sandbox.kube.provider.CLOSE_TIMEOUT_S", 4.0)
    monkeypatch.setattr(ownership, "LONGEST_RETRY_S", 0.2)
    cluster.status_of_new = lambda pod: {"phase": "Pending"}
    let_through = anyio.Event()
    allowed = 0

    def refuse(verb: str, kind: str) -> tuple[int, str, str] | None:
        nonlocal allowed
        if (verb, kind) != ("DELETE", "pods"):
            return None
        if allowed <= 0:
            return 500, "InternalError", "no"
        allowed -= 1
        return None

    cluster.refuse = refuse

    async def caller(provider: Any) -> None:
        async with provider.sandbox(SPEC, acquire_timeout_s=60):
            pass

    async def let() -> None:
        nonlocal allowed
        for _ in range(3):
            await anyio.sleep(2)
            allowed += 1
        let_through.set()

    began = anyio.current_time()
    async with open_provider(config) as provider:
        callers = [asyncio.create_task(lost(caller(provider))) for _ in range(4)]
        with anyio.fail_after(10):
            while len(cluster.pods) < 4:
                await anyio.sleep(0.01)
        letting = asyncio.create_task(let())
    await asyncio.wait({*callers, letting})

    assert let_through.is_set()
    assert 1 == len(provider.pending) == len(cluster.pods)  # type: ignore[attr-defined]
    assert 6 < anyio.current_time() - began < 60
