"""The room of a cluster, from what the server says of nodes and pods."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import KubernetesConfig
from sandbox.config import Toleration
from sandbox.finding import Asked
from sandbox.kube.capacity import Room, parse_quantity, room
from sandbox.kube.doctor import told_room

REQUEST = {"cpu": "500m", "memory": "1Gi"}
CONFIG = KubernetesConfig()


def node(name: str, *, cpu: str = "4", memory: str = "16Gi", pods: str = "110", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"pool": name}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": pods},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(on: str | None, *containers: dict[str, str], phase: str = "Running", **spec: Any) -> dict[str, Any]:
    asked = [{"resources": {"requests": requests}} for requests in containers]
    return {"spec": {"nodeName": on, "containers": asked, **spec}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("100m", Decimal("0.1")),
        ("1.5Gi", 3 << 29),
        ("2k", 2000),
        ("1e3", 1000),
        ("1E", 10**18),
        ("12345678n", Decimal("0.012345678")),
        ("1Ei", 1 << 60),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, value: object) -> None:
    """Decimal and binary suffixes, fractions, exponents; nothing is rounded."""
    assert value == parse_quantity(text)


@pytest.mark.parametrize("text", ["", "x", "1Q", "1 Gi", "--1", "1.2.3", "1gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """An unknown suffix is never taken for a number without one."""
    with pytest.raises(ValueError, match="no quantity"):
        parse_quantity(text)


@given(st.integers(0, 10**6), st.sampled_from(["Ki", "Mi", "k", "M", ""]))
def test_a_thousandth_is_a_thousandth(number: int, suffix: str) -> None:
    """`1000m` of a number is the number, and suffixes scale it."""
    assert parse_quantity(f"{number}000m") == number
    assert parse_quantity(f"{number}{suffix}") == number * parse_quantity(f"1{suffix}")


def test_whole_sandboxes_are_counted_node_by_node() -> None:
    """What is left over on two nodes makes no sandbox together; the scarcest resource decides."""
    nodes = [node("a", cpu="700m"), node("b", cpu="900m"), node("c", memory="2500Mi"), node("d", pods="3")]

    assert Room(1 + 1 + 2 + 3, 4, 4) == room(nodes, [], REQUEST, CONFIG)


def test_what_runs_or_waits_on_a_node_is_taken_off() -> None:
    """Containers add up, a greater init container counts instead, overhead counts, ended pods do not."""
    pods = [
        pod("a", {"cpu": "500m"}, {"cpu": "500m"}),
        pod("a", {"cpu": "100m"}, initContainers=[{"resources": {"requests": {"cpu": "900m"}}}]),
        pod("a", {}, overhead={"cpu": "100m"}),
        pod("a", {"cpu": "4"}, phase="Succeeded"),
        pod(None, {"cpu": "4"}, phase="Pending"),
    ]

    assert 4 == room([node("a")], pods, REQUEST, CONFIG).sandboxes


def test_nodes_that_take_no_sandbox_are_left_out() -> None:
    """Not ready, cordoned, tainted and not tolerated, not selected."""
    tainted = node("t", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    down = node("d")
    down["status"]["conditions"][0]["status"] = "Unknown"
    nodes = [tainted, down, node("c", unschedulable=True), node("a")]

    def counted(**config: Any) -> int:
        return room(nodes, [], REQUEST, KubernetesConfig(**config)).nodes

    assert 1 == counted()
    assert 2 == counted(tolerations=(Toleration(key="gpu", operator="Equal", value="yes"),))
    assert 1 == counted(tolerations=(Toleration(key="gpu", operator="Equal", value="no"),))
    assert 2 == counted(tolerations=(Toleration(),))
    assert 1 == counted(tolerations=(Toleration(effect="NoExecute"),))
    assert 0 == counted(node_selector={"pool": "t"})


@pytest.mark.parametrize(("free", "level"), [(0, "error"), (3, "warning"), (4, "ok")])
def test_the_room_is_held_against_what_is_asked(free: int, level: str) -> None:
    """None at all is in the way, too little makes some wait."""
    assert level == told_room(Room(free, 1, 1), REQUEST, Asked(sandboxes=4)).level
