"""How many more sandboxes a cluster's nodes have room for: allocatable minus requested, node by node. Pure.

It counts as the scheduler does, but for affinity and ports: whole sandboxes per node, on nodes that are ready and that
the pod's selector and tolerations admit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from sandbox.config import KubernetesConfig, Toleration

JSON = Mapping[str, Any]

_SUFFIXES = {
    **{name: Decimal(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{name: Decimal(1000) ** power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)")


def parse_quantity(text: str) -> Decimal:
    """A Kubernetes quantity, such as `100m`, `1.5Gi` or `1e3`, as a number. Raises ValueError."""
    match = _QUANTITY.fullmatch(text)
    try:
        if match is None:
            raise KeyError(text)
        return Decimal(match[1]) * _SUFFIXES[match[2]]
    except (KeyError, InvalidOperation) as error:
        raise ValueError(f"{text!r} is no quantity as Kubernetes writes them") from error


@dataclass(frozen=True)
class Room:
    """What is free."""

    sandboxes: int
    """That fit beside what runs and waits now."""
    nodes: int
    """That may take sandboxes."""
    of_nodes: int
    """In the cluster."""


def room(nodes: Sequence[JSON], pods: Iterable[JSON], request: Mapping[str, str], config: KubernetesConfig) -> Room:
    """How many pods with `request` fit on the nodes, given all pods of the cluster that have not ended."""
    wanted = {name: parse_quantity(text) for name, text in request.items()} | {"pods": Decimal(1)}
    used: dict[str, Counter[str]] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
            used.setdefault(node, Counter()).update(_requested(pod))
    fitting = [node for node in nodes if _admits(node, config)]
    fit = [_fit(node, used.get(node["metadata"]["name"], Counter()), wanted) for node in fitting]
    return Room(sum(fit), len(fitting), len(nodes))


def _fit(node: JSON, used: Mapping[str, Any], wanted: Mapping[str, Decimal]) -> int:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    free = {name: parse_quantity(str(allocatable.get(name, "0"))) - used.get(name, 0) for name in wanted}
    return max(0, min(int(free[name] // amount) for name, amount in wanted.items() if amount > 0))


def _requested(pod: JSON) -> dict[str, Decimal]:
    """What the scheduler counts for a pod: its containers together, or one greater init container, and the overhead."""
    spec = pod.get("spec") or {}
    together: Counter[str] = Counter()
    for container in spec.get("containers") or []:
        together.update(_requests(container))
    total: dict[str, Any] = dict(together)
    for container in spec.get("initContainers") or []:
        for name, amount in _requests(container).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    for name, text in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, Decimal(0)) + parse_quantity(str(text))
    return {**total, "pods": Decimal(1)}


def _requests(container: JSON) -> dict[str, Decimal]:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: parse_quantity(str(text)) for name, text in requests.items()}


def _admits(node: JSON, config: KubernetesConfig) -> bool:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    labels = node["metadata"].get("labels") or {}
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
    selected = all(labels.get(name) == value for name, value in config.node_selector.items())
    taints = [one for one in spec.get("taints") or [] if one.get("effect") in {"NoSchedule", "NoExecute"}]
    tolerated = all(any(_tolerates(one, taint) for one in config.tolerations) for taint in taints)
    return ready and selected and tolerated and not spec.get("unschedulable")


def _tolerates(toleration: Toleration, taint: JSON) -> bool:
    if toleration.effect not in {None, taint.get("effect")} or toleration.key not in {None, taint.get("key")}:
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == (taint.get("value") or "")
