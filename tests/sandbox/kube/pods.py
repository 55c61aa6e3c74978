"""Pods as servers describe them, for tests."""

from __future__ import annotations

from typing import Any


def raw_pod(name: str = "sb", uid: str = "uid-1", **changes: Any) -> dict[str, Any]:
    """A running pod of ours; `changes` replace parts of its status, or of metadata where they are named so."""
    metadata = {
        "name": name,
        "uid": uid,
        "resourceVersion": "42",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"sandman-grader/nonce": "n1", "sandman-grader/run": "r1"},
        **changes.pop("metadata", {}),
    }
    status = {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
            {"type": "Ready", "status": "True"},
        ],
        "containerStatuses": [container(running={"startedAt": "2026-01-01T00:00:03Z"})],
        **changes,
    }
    return {"metadata": metadata, "spec": {"nodeName": "node1"}, "status": status}


def container(**state: Any) -> dict[str, Any]:
    return {"name": "sandbox", "state": state, "imageID": "sha256:beef"}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return raw_pod(
        phase="Pending", podIP=None, containerStatuses=[container(waiting={"reason": reason, "message": message})]
    )


def terminated(exit_code: int, why: str, /, *, ran_s: int = 10, **changes: Any) -> dict[str, Any]:
    state = {
        "exitCode": exit_code,
        "reason": why,
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": f"2026-01-01T00:{ran_s // 60:02}:{ran_s % 60:02}Z",
    }
    return raw_pod(**{"phase": "Failed", "containerStatuses": [container(terminated=state)], **changes})
