"""The rules by which the test cluster enforces policies, as text; what they do is tried in test_guard.py."""

from __future__ import annotations

from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.policies import Rules

BRIDGE = IPv4Interface("10.88.0.1/16")


def pre(pods: list[dict[str, Any]]) -> list[str]:
    """The lines of the chain that every packet from the bridge goes through."""
    things = {"namespaces": {}, "policies": {}, "pods": {("here", str(index)): pod for index, pod in enumerate(pods)}}
    chain = Rules(things, "br0", BRIDGE).text().partition("chain pre {\n")[2]
    return [line.strip() for line in chain.splitlines()]


def a_pod(address: str | None, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "here", "name": "pod"},
        "spec": {},
        "status": {"phase": phase} | ({"podIP": address} if address else {}),
    }


def test_a_pod_that_nobody_has_told_of_neither_opens_connections_nor_is_reached() -> None:
    """Only pods with a known address may talk, to each other, to the node, and to what is outside the pods' network."""
    lines = pre([a_pod("10.88.0.7"), a_pod(None, "Pending"), a_pod("10.88.0.8", "Succeeded"), a_pod("10.88.0.9")])
    established = lines.index("ct state established,related accept")
    assert [
        "ip saddr != { 10.88.0.7, 10.88.0.9 } counter drop",
        "ip daddr 10.88.0.0/16 ip daddr != { 10.88.0.1, 10.88.0.7, 10.88.0.9 } counter drop",
    ] == lines[established + 1 : established + 3]


def test_where_no_pod_is_known_none_opens_a_connection() -> None:
    """Nothing new passes from the bridge before the first pod has been told of."""
    lines = pre([])
    assert "counter drop" == lines[lines.index("ct state established,related accept") + 1]


@pytest.mark.cluster
def test_the_bridge_keeps_its_hardware_address_whatever_pods_come_and_go(kubeconfig: Path) -> None:
    """It was set. One that a bridge takes over from its ports changes under connections that are open."""
    kind = Path("/sys/class/net/cni-ci0/addr_assign_type")
    if not kind.is_file():
        pytest.skip(f"the cluster of {kubeconfig} is not ours: it has no bridge cni-ci0 here")
    was_set = 3  # NET_ADDR_SET
    assert was_set == int(kind.read_text())
