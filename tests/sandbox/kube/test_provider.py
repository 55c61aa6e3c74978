"""The provider before a stand-in for a cluster, whose pods run the real execd: creates, endings, ownership, closing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from sandbox import KubernetesConfig, SandboxSpec, execs, open_provider
from sandbox.config import PacingConfig, PhaseBudgets
from sandbox.errors import (
    AcquireTimeout,
    CreateError,
    DeletedByAnother,
    ImageError,
    NodeLost,
    OutOfMemory,
    ProviderUnavailable,
    QuotaExceeded,
    Replaced,
    SandboxLost,
    Unschedulable,
)
from sandbox.kube import keep, ownership
from sandbox.kube.api import Api
from sandbox.kube.manifest import LEASE_LABEL, NONCE_LABEL, SANDBOX_LABEL
from tests.sandbox.deaf import Deaf
from tests.sandbox.kube.pods import container, waiting
from tests.sandbox.kube.standin import StandIn

pytestmark = pytest.mark.anyio

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


async def test_a_pod_becomes_a_sandbox_and_goes_with_the_with(cluster: StandIn, config: KubernetesConfig) -> None:
    """Commands run, the identity proves never used, and after the provider no pod and no lease is there."""
    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC) as box:
            said = await box.run("echo hello", timeout_s=20)
            assert 1 == len(cluster.pods)
            assert 1 == len(cluster.leases)
        assert box.identity.never_used

    assert b"hello\n" == said.output
    assert ({}, {}) == (cluster.pods, cluster.leases)


async def test_one_watch_serves_all_pods_of_a_run(cluster: StandIn, config: KubernetesConfig) -> None:
    """Ten sandboxes need one list, at most two watches, and no look at a pod of its own."""
    async with open_provider(config) as provider:

        async def one() -> None:
            async with provider.sandbox(SPEC) as box:
                await box.run("true", timeout_s=20)

        await asyncio.gather(*(one() for _ in range(10)))

    gets = [entry for entry in cluster.requests if entry == ("GET", "pods")]
    watches = [entry for entry in cluster.requests if entry == ("WATCH", "pods")]
    assert len(gets) <= 2  # the run's list, and the janitor's
    assert len(watches) <= 2


async def test_a_watch_that_is_mute_is_looked_beside(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten pods of which the watch tells nothing come to be by a few lists, and by none while nobody waits."""
    monkeypatch.setattr("sandbox.kube.watch.SILENT_S", 0.3)
    monkeypatch.setattr("sandbox.kube.provider.LOOK_S", 0.1)
    patient = config.model_copy(update={"budgets": PhaseBudgets(daemon_s=20)})
    cluster.is_mute = True

    async with open_provider(patient) as provider:

        async def one() -> None:
            async with provider.sandbox(SPEC, acquire_timeout_s=30):
                arrived.append(1)
                await leave.wait()

        arrived: list[int] = []
        leave = asyncio.Event()
        callers = [asyncio.create_task(one()) for _ in range(10)]
        with anyio.fail_after(30):
            while len(arrived) < 10:
                await anyio.sleep(0.01)
        before = cluster.requests.count(("GET", "pods"))
        await anyio.sleep(1)
        after = cluster.requests.count(("GET", "pods"))
        cluster.is_mute = False
        leave.set()
        await asyncio.gather(*callers)

    assert before == after
    assert {} == cluster.pods


async def test_who_only_queues_is_no_reason_to_list_the_run(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the one sandbox that may live is in use, who waits for the next needs no news of a pod."""
    monkeypatch.setattr("sandbox.kube.watch.SILENT_S", 0.1)
    monkeypatch.setattr("sandbox.kube.provider.LOOK_S", 0.1)
    alone = config.model_copy(update={"pacing": PacingConfig(max_live=1)})

    async def caller() -> None:
        async with provider.sandbox(SPEC, acquire_timeout_s=60):
            pass

    async with open_provider(alone) as provider:
        async with provider.sandbox(SPEC):
            queued = asyncio.create_task(caller())
            await anyio.sleep(0.2)
            before = cluster.requests.count(("GET", "pods"))
            await anyio.sleep(1)
            after = cluster.requests.count(("GET", "pods"))
        await queued

    assert before == after


async def test_a_429_and_a_failing_webhook_lose_no_create(cluster: StandIn, config: KubernetesConfig) -> None:
    """Refusals are waited out and the create is sent again: the caller sees only its sandbox."""
    answers = iter([(429, "TooManyRequests", "later"), (500, "InternalError", "failed calling webhook"), None])
    cluster.refuse = lambda verb, kind: next(answers, None) if (verb, kind) == ("POST", "pods") else None

    async with open_provider(config) as provider, provider.sandbox(SPEC) as box:
        assert 0 == (await box.run("true", timeout_s=20)).exit_code


async def test_a_create_whose_read_back_fails_is_not_sent_again_unseen(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """While nobody can say whether the pod is there, it is looked for; then the create is sent once more."""
    lost = iter([(500, "InternalError", "no")])
    unread = iter([(503, "ServiceUnavailable", "no")] * 3)
    asked: list[str] = []

    def refuse(verb: str, kind: str) -> tuple[int, str, str] | None:
        if kind != "pods" or verb not in {"POST", "GET"} or (verb == "GET" and not asked):
            return None
        asked.append(verb)
        return next(lost, None) if verb == "POST" else next(unread, None)

    cluster.refuse = refuse
    async with open_provider(config) as provider, provider.sandbox(SPEC):
        pass

    assert ["POST", *["GET"] * 4, "POST"] == asked


REJECTIONS = [
    ((403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q'), QuotaExceeded, "raise the quota"),
    ((403, "Forbidden", "cannot create resource pods"), ProviderUnavailable, "role"),
    ((422, "Invalid", "spec.x is invalid"), CreateError, "spec.x is invalid"),
]


@pytest.mark.parametrize(("answer", "kind", "words"), REJECTIONS)
async def test_what_the_server_rejects_is_told_at_once(
    cluster: StandIn, config: KubernetesConfig, answer: tuple[int, str, str], kind: type[Exception], words: str
) -> None:
    """Quota, missing permission and an invalid pod are different errors, each with the remedy."""
    cluster.refuse = lambda verb, what: answer if (verb, what) == ("POST", "pods") else None

    async with open_provider(config) as provider:
        with pytest.raises(kind, match=words):
            async with provider.sandbox(SPEC):
                pass


async def test_a_spec_that_makes_no_pod_keeps_no_slot(cluster: StandIn, config: KubernetesConfig) -> None:
    """Where one sandbox may live at once, a failure before any request leaves the way free for the next."""
    alone = config.model_copy(update={"pacing": PacingConfig(creates_per_s=500, max_live=1)})
    async with open_provider(alone) as provider:
        with pytest.raises(CreateError, match="in phase queue"):
            async with provider.sandbox(SPEC.model_copy(update={"lifetime_s": math.inf})):
                pass
        async with provider.sandbox(SPEC, acquire_timeout_s=20) as box:
            assert 0 == (await box.run("true", timeout_s=20)).exit_code


def pending(**waiting: Any) -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {"phase": "Pending", "conditions": [scheduled], "containerStatuses": [container(waiting=waiting)]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3: no cpu"}],
}
STUCK = [
    (UNSCHEDULABLE, Unschedulable, "0/3: no cpu"),
    (pending(reason="ErrImagePull", message="name@sha256:1: not found"), ImageError, "not found"),
    (pending(reason="RunContainerError", message='exec: "bash": not in $PATH'), CreateError, "bash"),
    ({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough"}, CreateError, "rejected_by_node"),
]


@pytest.mark.parametrize(("status", "kind", "words"), STUCK)
async def test_a_pod_that_does_not_start_is_a_typed_error_and_is_deleted(
    cluster: StandIn, config: KubernetesConfig, status: dict[str, Any], kind: type[Exception], words: str
) -> None:
    """Each reason is an error of its own, with the cluster's words; the pod goes."""
    cluster.status_of_new = lambda pod: status

    async with open_provider(config) as provider:
        with pytest.raises(kind, match=words):
            async with provider.sandbox(SPEC):
                pass
        with anyio.fail_after(5):
            while cluster.pods:
                await anyio.sleep(0.01)


async def test_a_callers_deadline_says_where_it_waited(cluster: StandIn, config: KubernetesConfig) -> None:
    """`AcquireTimeout` names the phase and the scheduler's reason."""
    cluster.status_of_new = lambda pod: UNSCHEDULABLE

    async with open_provider(config) as provider:
        with pytest.raises(AcquireTimeout, match=r"schedule.*no cpu") as late:
            async with provider.sandbox(SPEC, acquire_timeout_s=0.9):
                pass
    assert late.value.waited_in["schedule"] > 0.1


async def test_the_end_of_a_pod_in_use_is_told_by_its_cause(cluster: StandIn, config: KubernetesConfig) -> None:
    """Out of memory, a lost node, deleted by another and replaced: each its own error for the command that ran."""

    def oom(name: str) -> None:
        state = {"exitCode": 137, "reason": "OOMKilled"}
        cluster.set_status(name, phase="Failed", containerStatuses=[container(terminated=state)])
        cluster.kill(name)

    def node_lost(name: str) -> None:
        cluster.set_status(name, phase="Unknown", reason="NodeLost")
        cluster.kill(name)

    def replaced(name: str) -> None:
        body = {**cluster.pods[name], "spec": {**cluster.pods[name]["spec"]}}
        cluster.vanish(name)
        cluster.status_of_new = lambda pod: {"phase": "Pending"}
        cluster.create(body)
        cluster.status_of_new = lambda pod: None

    cases = [(oom, OutOfMemory), (node_lost, NodeLost), (cluster.vanish, DeletedByAnother), (replaced, Replaced)]
    async with open_provider(config) as provider:
        for happens, kind in cases:
            async with provider.sandbox(SPEC) as box:
                name = box.identity.sandbox_id
                with pytest.raises(kind) as told:
                    async with asyncio.TaskGroup() as group:
                        running = group.create_task(_lost(box.run("sleep 600", timeout_s=600)))
                        await anyio.sleep(0.2)
                        happens(name)
                    raise running.result()
                assert name in str(told.value)


@pytest.mark.parametrize("closing", [False, True], ids=["the sandbox is left", "the provider closes"])
async def test_a_command_that_is_left_running_hears_that_its_sandbox_was_released(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    """As a command does that is asked for afterwards; nobody else is said to have deleted it."""
    monkeypatch.setattr(execs, "_RESUME_DELAYS_S", (0.0, 0.1))
    async with contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(open_provider(config))
        async with contextlib.AsyncExitStack() as caller:
            box = await caller.enter_async_context(provider.sandbox(SPEC))
            running = asyncio.create_task(_lost(box.run("sleep 600", timeout_s=600)))
            await anyio.sleep(0.2)
            if closing:
                await stack.aclose()
        with anyio.fail_after(20):
            told = await running

    assert SandboxLost is type(told)
    assert "released" == told.cause


async def test_a_pod_whose_labels_are_taken_away_is_used_and_deleted(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watch says that it is no more, and tells nothing of its end: both are looked up."""
    monkeypatch.setattr(ownership, "FIRST_LOOK_S", 0.2)
    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC) as box:
            cluster.take_labels(box.identity.sandbox_id)
            await anyio.sleep(0.2)
            assert 0 == (await box.run("true", timeout_s=20)).exit_code
        assert hasattr(provider, "pending")
        with anyio.fail_after(5):
            while provider.pending:
                await anyio.sleep(0.01)

    assert ({}, {}) == (cluster.pods, cluster.leases)


async def _lost(command: Any) -> Exception:
    try:
        await command
    except Exception as error:
        return error
    return AssertionError("the command ended")


async def test_a_delete_that_fails_is_tried_again_and_listed(cluster: StandIn, config: KubernetesConfig) -> None:
    """While the server refuses, the pod is in `pending`; afterwards it goes."""
    failing = itertools.repeat((500, "InternalError", "no"), 3)
    cluster.refuse = lambda verb, kind: next(failing, None) if (verb, kind) == ("DELETE", "pods") else None

    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC) as box:
            pass
        assert hasattr(provider, "pending")
        await anyio.sleep(0.05)
        assert (box.identity.sandbox_id,) == provider.pending
        with anyio.fail_after(10):
            while cluster.pods:
                await anyio.sleep(0.01)

    assert 4 == cluster.requests.count(("DELETE", "pods"))


async def test_a_delete_that_is_throttled_waits_as_the_server_asks(cluster: StandIn, config: KubernetesConfig) -> None:
    """And is sent again then."""
    asked_at: list[float] = []

    def refuse(verb: str, kind: str) -> tuple[int, str, str] | None:
        if (verb, kind) != ("DELETE", "pods"):
            return None
        asked_at.append(anyio.current_time())
        return (429, "TooManyRequests", "later") if len(asked_at) == 1 else None

    cluster.refuse, cluster.retry_after_s = refuse, 1
    async with open_provider(config) as provider, provider.sandbox(SPEC):
        pass

    first, second = asked_at
    assert 1 <= second - first
    assert {} == cluster.pods


NO_PROOFS = [(409, "Conflict", "admission webhook denied the request"), (404, "", "404 page not found")]


@pytest.mark.parametrize("answer", NO_PROOFS, ids=["a webhook's conflict", "a proxy's 404"])
async def test_a_delete_is_over_when_the_server_says_so_of_the_pod(
    cluster: StandIn, config: KubernetesConfig, answer: tuple[int, str, str]
) -> None:
    """Whatever else refuses it: the pod stays in `pending` and is deleted once that is over, and the lease last."""
    answers = itertools.repeat(answer, 2)
    cluster.refuse = lambda verb, kind: next(answers, None) if (verb, kind) == ("DELETE", "pods") else None

    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC) as box:
            pass
        assert hasattr(provider, "pending")
        await anyio.sleep(0.05)
        assert (box.identity.sandbox_id,) == provider.pending

    assert ({}, {}) == (cluster.pods, cluster.leases)


async def test_a_watch_that_is_too_old_begins_again_from_a_list(cluster: StandIn, config: KubernetesConfig) -> None:
    """410 means list: a sandbox is made all the same."""
    async with open_provider(config) as provider:
        async with provider.sandbox(SPEC):
            pass
        cluster.oldest = 10**9
        refused = itertools.repeat((410, "Expired", "too old"), 2)
        cluster.refuse = lambda verb, kind: next(refused, None) if verb == "WATCH" else None
        cluster.oldest = 0
        async with provider.sandbox(SPEC) as box:
            assert 0 == (await box.run("true", timeout_s=20)).exit_code


async def test_a_pod_of_our_name_that_is_not_ours_is_left_alone(
    cluster: StandIn, config: KubernetesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger under the name that we chose: the create fails, the stranger stays."""
    monkeypatch.setattr(secrets, "token_hex", lambda size=16: "ab" * size)
    cluster.status_of_new = lambda pod: {"phase": "Pending"}
    cluster.create({"metadata": {"name": "sandman-grader-" + "ab" * 8, "labels": {}}, "spec": {}})

    async with open_provider(config) as provider:
        with pytest.raises(CreateError, match="not ours"):
            async with provider.sandbox(SPEC):
                pass

    assert ["sandman-grader-" + "ab" * 8] == list(cluster.pods)


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

    waiting = asyncio.create_task(_lost(caller()))
    with anyio.fail_after(5):
        while not cluster.pods:
            await anyio.sleep(0.01)
    await provider.__aexit__(None, None, None)

    assert CreateError is type(await waiting)
    assert {} == cluster.pods


async def test_an_unguarded_provider_makes_no_sandbox_with_egress_denied(
    cluster: StandIn, config: KubernetesConfig
) -> None:
    """What nobody proves nobody promises."""
    async with open_provider(config) as provider:
        with pytest.raises(ProviderUnavailable, match="unguarded"):
            async with provider.sandbox(SPEC.model_copy(update={"egress": "denied"})):
                pass


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
        callers = [asyncio.create_task(_lost(caller(provider))) for _ in range(4)]
        with anyio.fail_after(10):
            while len(cluster.pods) < 4:
                await anyio.sleep(0.01)
        letting = asyncio.create_task(let())
    await asyncio.wait({*callers, letting})

    assert let_through.is_set()
    assert 1 == len(provider.pending) == len(cluster.pods)  # type: ignore[attr-defined]
    assert 6 < anyio.current_time() - began < 60
