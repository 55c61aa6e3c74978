"""Enforces NetworkPolicy on a node whose pods share one bridge: one nftables table, written whole when the outcome
changes. For tests of the guard; needs root, nft and net.bridge.bridge-nf-call-iptables=1.

Ingress and egress; podSelector, namespaceSelector and ipBlock; ports by number, for TCP, UDP and SCTP. What the node
sends to a pod passes, as Kubernetes asks. From and to a pod address that nobody has told of yet no pod may open a
connection, so there is no gap between a pod's start and its policy. Connections that were open before stay open. IPv4
only.

usage: KUBECONFIG=... python policies.py BRIDGE ADDRESS     # ADDRESS: the bridge's, with its prefix: 10.88.0.1/16
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Interface
from typing import Any

from kubernetes import client, config

JSON = Mapping[str, Any]
TABLE = "sandman_policies"
SOURCES = {
    "namespaces": "/api/v1/namespaces",
    "pods": "/api/v1/pods",
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
}


class Cluster:
    """What the API server told, by kind and (namespace, name)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Event()
        self.things: dict[str, dict[tuple[str, str], JSON]] = {kind: {} for kind in SOURCES}

    def follow(self, api: client.ApiClient, kind: str) -> None:
        """List, then watch, for ever; a watch that breaks begins again from a fresh list."""
        while True:
            try:
                self._once(api, kind)
            except Exception as error:
                print(f"{kind}: {error!r}"[:300], flush=True)
                time.sleep(0.5)

    def _once(self, api: client.ApiClient, kind: str) -> None:
        listed = json.loads(_get(api, SOURCES[kind]).data)
        with self.lock:
            self.things[kind] = {_key(item): item for item in listed["items"]}
        self.changed.set()
        version = listed["metadata"]["resourceVersion"]
        path = f"{SOURCES[kind]}?watch=true&resourceVersion={version}&timeoutSeconds=300"
        rest = b""
        for piece in _get(api, path).stream(65536, decode_content=False):
            *lines, rest = (rest + piece).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                with self.lock:
                    if event["type"] == "DELETED":
                        self.things[kind].pop(_key(event["object"]), None)
                    else:
                        self.things[kind][_key(event["object"])] = event["object"]
                self.changed.set()


def _get(api: client.ApiClient, path: str) -> Any:
    headers: dict[str, str] = {"Accept": "application/json"}
    api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
    return api.rest_client.pool_manager.request(
        "GET", api.configuration.host + path, headers=headers, preload_content=False
    )


def _key(thing: JSON) -> tuple[str, str]:
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def matches(selector: JSON, labels: JSON) -> bool:
    """Whether a label selector, which an empty one always does, takes these labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for one in selector.get("matchExpressions") or []:
        have, values = labels.get(one["key"]), one.get("values") or []
        verdicts = {
            "In": have in values,
            "NotIn": have not in values,
            "Exists": have is not None,
            "DoesNotExist": have is None,
        }
        if not verdicts[one["operator"]]:
            return False
    return True


class Rules:
    """The nftables text for one state of the cluster."""

    def __init__(
        self, things: Mapping[str, Mapping[tuple[str, str], JSON]], bridge: str, address: IPv4Interface
    ) -> None:
        self.bridge = bridge
        self.address = address
        self.namespaces = {
            name: {"kubernetes.io/metadata.name": name, **(thing["metadata"].get("labels") or {})}
            for (_, name), thing in things["namespaces"].items()
        }
        self.policies = list(things["policies"].values())
        self.pods = [
            pod
            for pod in things["pods"].values()
            if pod["status"].get("podIP")
            and not pod["spec"].get("hostNetwork")
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def text(self) -> str:
        """The whole table, replacing the one that is there."""
        chains: list[str] = []
        jumps: dict[str, list[str]] = {"egress": [], "ingress": []}
        for pod in self.pods:
            for direction, mine in jumps.items():
                on = [one for one in self._policies_of(pod) if direction.capitalize() in one["spec"]["policyTypes"]]
                if on:
                    address = pod["status"]["podIP"]
                    name = f"{direction}_{address.replace('.', '_')}"
                    body = "".join(f"  {line}\n" for line in dict.fromkeys(self._lines(direction, on)))
                    chains.append(f"chain {name} {{\n{body}  counter drop\n}}\n")
                    mine.append(f"{address} : jump {name}")
        return (
            f"table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n{''.join(sorted(chains))}"
            "chain pre {\n  type filter hook prerouting priority filter; policy accept;\n"
            f'  iifname != "{self.bridge}" return\n  ct state established,related accept\n{self._unknown()}'
            f"{_map('saddr', jumps['egress'])}{_map('daddr', jumps['ingress'])}}}\n}}\n"
        )

    def _unknown(self) -> str:
        """What pods that nobody has told of send, and what is sent to them."""
        known = sorted({pod["status"]["podIP"] for pod in self.pods})
        if not known:
            return "  counter drop\n"
        pods, all_there = ", ".join(known), ", ".join([str(self.address.ip), *known])
        return (
            f"  ip saddr != {{ {pods} }} counter drop\n"
            f"  ip daddr {self.address.network} ip daddr != {{ {all_there} }} counter drop\n"
        )

    def _policies_of(self, pod: JSON) -> list[JSON]:
        return [
            one
            for one in self.policies
            if one["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and matches(one["spec"].get("podSelector") or {}, pod["metadata"].get("labels") or {})
        ]

    def _lines(self, direction: str, policies: list[JSON]) -> Iterator[str]:
        side, peers_name = ("daddr", "to") if direction == "egress" else ("saddr", "from")
        for policy in policies:
            for rule in policy["spec"].get(direction) or []:
                for address in self._addresses(rule.get(peers_name), side, policy["metadata"]["namespace"]):
                    for port in _ports(rule.get("ports")):
                        yield f"{address}{port}return"

    def _addresses(self, peers: list[JSON] | None, side: str, namespace: str) -> Iterator[str]:
        if not peers:
            yield ""
        for peer in peers or []:
            block = peer.get("ipBlock")
            if block:
                but = ", ".join(block.get("except") or [])
                yield f"ip {side} {block['cidr']} " + (f"ip {side} != {{ {but} }} " if but else "")
                continue
            for pod in self.pods:
                if self._is_peer(peer, pod, namespace):
                    yield f"ip {side} {pod['status']['podIP']} "

    def _is_peer(self, peer: JSON, pod: JSON, namespace: str) -> bool:
        there = pod["metadata"]["namespace"]
        if peer.get("namespaceSelector") is not None:
            if not matches(peer["namespaceSelector"], self.namespaces.get(there, {})):
                return False
        elif there != namespace:
            return False
        return matches(peer.get("podSelector") or {}, pod["metadata"].get("labels") or {})


def _ports(ports: list[JSON] | None) -> Iterator[str]:
    if not ports:
        yield ""
    for port in ports or []:
        protocol = str(port.get("protocol") or "TCP").lower()
        yield f"{protocol} dport {port['port']} " if port.get("port") else f"meta l4proto {protocol} "


def _map(side: str, jumps: list[str]) -> str:
    return f"  ip {side} vmap {{ {', '.join(sorted(jumps))} }}\n" if jumps else ""


def main(bridge: str, address: IPv4Interface) -> None:
    """Enforce until killed."""
    config.load_kube_config()
    api, cluster = client.ApiClient(), Cluster()
    for kind in SOURCES:
        threading.Thread(target=cluster.follow, args=(api, kind), daemon=True).start()
    last = ""
    while True:
        cluster.changed.wait()
        cluster.changed.clear()
        time.sleep(0.02)
        with cluster.lock:
            text = Rules(cluster.things, bridge, address).text()
        if text != last:
            done = subprocess.run(["nft", "-f", "-"], input=text, text=True, capture_output=True, check=False)
            last = text if done.returncode == 0 else ""
            print(time.strftime("%T"), text.count("chain ") - 1, "chains", done.stderr.strip()[:500], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], IPv4Interface(sys.argv[2]))
