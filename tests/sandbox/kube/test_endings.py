"""Each way in which a pod ends, or does not start, has its own cause and its own error."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.errors import (
    ContainerEnded,
    CreateError,
    DeletedByAnother,
    Evicted,
    ImageError,
    LifetimeOver,
    NodeLost,
    OutOfMemory,
    Preempted,
    SandboxLost,
    Unschedulable,
)
from sandbox.kube.endings import (
    create_failure,
    ended_early,
    ending,
    ending_of_a_vanished,
    is_pulling,
    last_failure,
    lost,
    never_started,
    pull_seconds,
    silence,
    trouble,
)
from sandbox.kube.snapshot import PodEvent, parse_events, parse_list, parse_pod, parse_watch_event
from tests.sandbox.kube.pods import raw_pod, terminated, waiting

DELETING = {"deletionTimestamp": "2026-01-01T00:01:00Z"}


def disrupted(reason: str, *, exit_code: int | None = None) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    if exit_code is not None:
        return terminated(exit_code, "Completed", metadata=DELETING, conditions=[condition])
    return raw_pod(metadata=DELETING, conditions=[condition])


def silent(**changes: Any) -> dict[str, Any]:
    """As a cluster marks the pods of a node of which it hears nothing."""
    marks = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    return raw_pod(conditions=marks, **changes)


def refused(reason: str) -> dict[str, Any]:
    """As a node marks a pod that it will not have."""
    return raw_pod(phase="Failed", reason=reason, message="Pod was rejected", containerStatuses=[])


REFUSALS = [
    *("OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage", "NodeAffinity", "NodePorts", "TaintToleration"),
    *("TopologyAffinityError", "SysctlForbidden", "Forbidden", "AppArmor", "PodOSNotSupported", "InvalidNodeInfo"),
]
ENDINGS = [
    (terminated(137, "OOMKilled"), "out_of_memory", OutOfMemory),
    (terminated(137, "Error"), "ended", ContainerEnded),
    (terminated(0, "OOMKilled"), "ended", ContainerEnded),  # a command was killed, some time ago
    (terminated(0, "OOMKilled", phase="Succeeded", ran_s=100), "lifetime", LifetimeOver),
    (terminated(0, "OOMKilled", metadata={"deletionTimestamp": "2026-01-01T00:01:00Z"}), "deleted", DeletedByAnother),
    (terminated(0, "Completed", phase="Succeeded"), "ended", ContainerEnded),
    (raw_pod(phase="Failed"), "ended", ContainerEnded),
    (raw_pod(phase="Failed", metadata=DELETING), "deleted", DeletedByAnother),
    (terminated(0, "Completed", phase="Succeeded", ran_s=100), "lifetime", LifetimeOver),
    (terminated(143, "Error", reason="DeadlineExceeded"), "lifetime", LifetimeOver),
    (terminated(137, "Error", reason="Evicted", message="The node was low on resource: memory."), "evicted", Evicted),
    (raw_pod(phase="Failed", reason="Evicted", containerStatuses=[]), "evicted", Evicted),
    (raw_pod(phase="Failed", reason="Preempting", containerStatuses=[]), "preempted", Preempted),
    (raw_pod(phase="Unknown", reason="NodeLost"), "node_lost", NodeLost),
    *((refused(reason), "rejected_by_node", SandboxLost) for reason in REFUSALS),
    (terminated(0, "Completed", metadata={"deletionTimestamp": "2026-01-01T00:01:00Z"}), "deleted", DeletedByAnother),
    (disrupted("PreemptionByScheduler"), "preempted", Preempted),
    (disrupted("DeletionByTaintManager"), "node_lost", NodeLost),
    (disrupted("DeletionByTaintManager", exit_code=0), "evicted", Evicted),  # the node is there: it told of the end
    (disrupted("EvictionByEvictionAPI"), "evicted", Evicted),
]


@pytest.mark.parametrize(("raw", "cause", "kind"), ENDINGS)
def test_each_ending_has_its_cause_and_its_error(raw: dict[str, Any], cause: str, kind: type[SandboxLost]) -> None:
    """What the server says of an ended pod becomes one typed error with the facts."""
    end = ending(parse_pod(raw), lifetime_s=100.0)
    assert end is not None
    error = lost("sb", end)

    assert (cause, kind, cause) == (end.cause, type(error), error.cause)
    assert "node1" == error.facts["node"]
    assert "sb" in str(error)


@pytest.mark.parametrize("raw", [raw_pod(), waiting("ContainerCreating"), raw_pod(phase="Pending", conditions=[])])
def test_a_pod_that_lives_has_not_ended(raw: dict[str, Any]) -> None:
    """Running and pending pods have no ending."""
    assert ending(parse_pod(raw), lifetime_s=100.0) is None


def test_a_pod_that_vanished_is_told_by_what_the_cluster_noted() -> None:
    """Deleted by another, unless an event says that it was preempted or that its node went."""
    last = parse_pod(raw_pod())
    preempted = ending_of_a_vanished(last, [PodEvent("Preempted", "by ns/important on node1")], lifetime_s=100)
    deleted = ending_of_a_vanished(last, [PodEvent("Killing", "Stopping container")], lifetime_s=100)
    oom = ending_of_a_vanished(parse_pod(terminated(137, "OOMKilled")), [], lifetime_s=100)

    assert ("preempted", "deleted", "out_of_memory") == (preempted.cause, deleted.cause, oom.cause)
    assert DeletedByAnother is type(lost("sb", deleted))


def test_a_pod_whose_node_is_silent_is_told_apart() -> None:
    """Readiness that the cluster took away while the containers have theirs: no end by itself, but the reason why the
    sandbox cannot be reached, or is being deleted. A pod that is not ready yet is none of it."""
    pod = parse_pod(silent())
    starting = parse_pod(raw_pod(conditions=[{"type": t, "status": "False"} for t in ("Ready", "ContainersReady")]))
    going = ending_of_a_vanished(parse_pod(silent(metadata=DELETING)), [], lifetime_s=100)

    assert (True, False, False) == (pod.node_silent, starting.node_silent, parse_pod(raw_pod()).node_silent)
    assert ending(pod, lifetime_s=100) is None
    assert ("node_lost", "node1") == (silence(pod).cause, silence(pod).node)
    assert NodeLost is type(lost("sb", going))


def test_a_taint_empties_a_node_or_gives_it_up() -> None:
    """The same note of the cluster: the node that told how the container ended is there, the other is not."""
    note = [PodEvent("TaintManagerEviction", "Marking for deletion Pod ns/sb")]
    told = ending_of_a_vanished(parse_pod(terminated(0, "Completed", metadata=DELETING)), note, lifetime_s=100)
    untold = ending_of_a_vanished(parse_pod(raw_pod(metadata=DELETING)), note, lifetime_s=100)

    assert [("evicted", 0), ("node_lost", None)] == [(one.cause, one.exit_code) for one in (told, untold)]


def test_a_taint_that_was_taken_away_again_ended_nothing() -> None:
    """The cluster notes under one reason that it means to delete a pod, and that it does not."""
    last = parse_pod(raw_pod(metadata=DELETING))
    called_off = PodEvent("TaintManagerEviction", "Cancelling deletion of Pod ns/sb")
    marked = PodEvent("TaintManagerEviction", "Marking for deletion Pod ns/sb")
    notes = ([called_off], [called_off, marked])

    assert ["deleted", "node_lost"] == [ending_of_a_vanished(last, noted, lifetime_s=100).cause for noted in notes]


def test_the_last_note_of_an_end_is_the_one_that_counts() -> None:
    """Whatever the cluster had meant to do with the pod before."""
    notes = [PodEvent("TaintManagerEviction", "Marking for deletion Pod ns/sb"), PodEvent("Preempted", "by ns/other")]

    assert "preempted" == ending_of_a_vanished(parse_pod(raw_pod()), notes, lifetime_s=100).cause


def test_what_failed_on_the_way_to_a_container_is_found() -> None:
    """The last failure that the node noted; None where it noted none."""
    noted = [PodEvent("FailedMount", "one"), PodEvent("FailedMount", "two"), PodEvent("Pulling", "x")]
    assert "FailedMount: two" == last_failure(noted)
    assert last_failure([PodEvent("Scheduled", "x")]) is None


FOR_GOOD = [
    'failed to resolve reference "r/x@sha256:1": r/x@sha256:1: not found',
    "pull access denied, repository does not exist or may require authorization",
    "unexpected status from HEAD request: 403 Forbidden",
]
MAY_PASS = [
    "toomanyrequests: You have reached your pull rate limit; denied: too many",
    "429 Too Many Requests",
    'dial tcp: lookup registry: no such host: not found "registry"',
    "net/http: TLS handshake timeout",
    "unexpected EOF",
    "connection refused",
]


@pytest.mark.parametrize("message", FOR_GOOD)
def test_a_wrong_reference_fails_at_once(message: str) -> None:
    """An image that is not there, or not for us, is an `ImageError` without waiting for the budget."""
    found = trouble(parse_pod(waiting("ErrImagePull", message)))

    assert found is not None
    assert found.for_good
    assert ImageError is type(create_failure("sb", "image", found))


@pytest.mark.parametrize("message", MAY_PASS)
def test_a_registry_in_trouble_is_waited_for(message: str) -> None:
    """Rate limits and broken connections may pass within the pull's budget."""
    found = trouble(parse_pod(waiting("ErrImagePull", message)))

    assert found is not None
    assert not found.for_good


def test_what_a_back_off_hides_is_in_the_events() -> None:
    """`Back-off pulling image` alone is no reason to give up; the failure noted before it is."""
    pod = parse_pod(waiting("ImagePullBackOff", 'Back-off pulling image "x"'))
    alone = trouble(pod)
    explained = trouble(pod, [PodEvent("Failed", f'Failed to pull image "x": {FOR_GOOD[0]}')])

    assert alone is not None
    assert explained is not None
    assert (False, True) == (alone.for_good, explained.for_good)


def test_a_pod_that_no_node_takes_says_why() -> None:
    """The scheduler's own words are in the error, and waiting may help."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no cpu"}
    found = trouble(parse_pod(raw_pod(phase="Pending", conditions=[condition], containerStatuses=[])))
    assert found is not None
    error = create_failure("sb", "image", found)

    assert not found.for_good
    assert isinstance(error, Unschedulable)
    assert "0/3 nodes: no cpu" in str(error)


def test_an_image_without_bash_is_named_at_once() -> None:
    """The runtime's refusal to start the container is a `CreateError` of the phase `start`."""
    message = 'exec: "bash": executable file not found in $PATH'
    found = trouble(parse_pod(waiting("RunContainerError", message)))
    assert found is not None
    error = create_failure("sb", "image", found)

    assert found.for_good
    assert isinstance(error, CreateError)
    assert "start" == error.phase


def test_a_container_that_never_ran_is_told_in_the_runtimes_words() -> None:
    """Where the node gives the refusal as an end, it is the same error; an end of its own is none."""
    raw = terminated(128, "StartError")
    raw["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = 'exec: "bash": executable file not found'
    never = never_started(parse_pod(raw))

    assert never is not None
    assert 'StartError: exec: "bash": executable file not found' == never.said
    assert CreateError is type(create_failure("sb", "image", never))
    assert never_started(parse_pod(terminated(1, "Error"))) is None


def test_an_early_end_is_a_create_error_with_its_cause_chained() -> None:
    """A sandbox that is killed while it starts is no lost sandbox of the caller's."""
    end = ending(parse_pod(terminated(137, "OOMKilled")), lifetime_s=100)
    assert end is not None
    error = ended_early("sb", "daemon", end)

    assert ("daemon", 137) == (error.phase, error.facts["exit_code"])
    assert OutOfMemory is type(error.__cause__)


def test_the_pull_is_timed_by_the_kubelets_own_words() -> None:
    """Seconds, minutes and milliseconds; None where the image was there."""

    def pulled(words: str) -> list[PodEvent]:
        return [PodEvent("Pulling", "Pulling image"), PodEvent("Pulled", words)]

    assert 4.1 == pytest.approx(pull_seconds(pulled('Successfully pulled image "x" in 4.1s')) or 0)
    assert 62.5 == pytest.approx(pull_seconds(pulled('Successfully pulled image "x" in 1m2.5s (1m2.5s w)')) or 0)
    assert 0.012 == pytest.approx(pull_seconds(pulled('Successfully pulled image "x" in 12.2ms')) or 0, abs=1e-3)
    assert pull_seconds([PodEvent("Pulled", 'Container image "x" already present on machine')]) is None
    assert is_pulling([PodEvent("Scheduled", ""), PodEvent("Pulling", "")])
    assert not is_pulling(pulled("done"))


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({"metadata": JSONS, "spec": JSONS, "status": JSONS}))
def test_nonsense_of_a_server_is_a_value_error_or_a_pod(raw: dict[str, Any]) -> None:
    """No answer of a server breaks the reader."""
    with contextlib.suppress(ValueError):
        assert parse_pod(raw).name


@given(st.sampled_from(["ADDED", "BOOKMARK", "ERROR", "NEW"]), JSONS, st.binary(max_size=3))
def test_nonsense_in_a_watch_a_list_or_events_is_a_value_error(kind: str, thing: Any, tail: bytes) -> None:
    """Whatever a line holds, and wherever it is cut off."""
    line = json.dumps({"type": kind, "object": thing, "items": thing, "metadata": thing}).encode()
    for cut in (line, line[:-1], line + tail):
        with contextlib.suppress(ValueError):
            assert parse_watch_event(cut).kind
        with contextlib.suppress(ValueError):
            parse_list(cut)
        with contextlib.suppress(ValueError):
            parse_events(cut)


def test_metadata_alone_and_what_a_server_leaves_out_make_a_pod_that_waits() -> None:
    """As a create is answered; nulls are what they are where nothing is said yet, and what we do not read is passed
    over."""
    metadata = {"name": "sb", "uid": "u", "labels": {"sandman-grader/nonce": "n"}, "creationTimestamp": None}
    short = parse_pod(json.dumps({"kind": "PartialObjectMetadata", "metadata": metadata}).encode())
    empty = {"conditions": None, "containerStatuses": None, "podIPs": [{"ip": 7}], "phase": None}
    whole = parse_pod({"metadata": {**metadata, "managedFields": [1]}, "spec": None, "status": empty})

    assert ("sb", "u", "n", "Pending", None, None) == (
        short.name,
        short.uid,
        short.nonce,
        short.phase,
        short.node,
        short.running_since,
    )
    assert short == whole


def test_what_is_wrong_with_an_answer_is_told_by_its_place() -> None:
    """Not by its content, which may be long."""
    with pytest.raises(ValueError, match=r"metadata\.uid: Input should be a valid string$"):
        parse_pod({"metadata": {"name": "sb", "uid": 5}})


def test_watch_lines_are_told_apart() -> None:
    """Pods, bookmarks and errors; the version to go on from."""
    added = parse_watch_event({"type": "ADDED", "object": raw_pod()})
    mark = parse_watch_event({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}})
    gone = parse_watch_event({"type": "ERROR", "object": {"kind": "Status", "code": 410}})

    assert added.pod is not None
    assert ("added", "sb", "42") == (added.kind, added.pod.name, added.version)
    assert ("bookmark", None, "7") == (mark.kind, mark.pod, mark.version)
    assert ("error", 410, None) == (gone.kind, gone.code, gone.version)
