"""Looks at a cluster as the provider will use it, and says what to mend. Makes nothing but its own test sandboxes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal

from sandbox.config import KubernetesConfig
from sandbox.errors import SandboxError
from sandbox.kube.api import Api, ApiFailure, open_api
from sandbox.kube.guard import POLICIES, denies_egress, guards_ingress
from sandbox.kube.lease import list_leases
from sandbox.kube.manifest import image_ref
from sandbox.spec import Egress, SandboxSpec

PERMISSIONS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("", "pods", ("create", "get", "list", "watch", "delete"), "nothing works without it"),
    ("", "events", ("list",), "why a pod does not start, or is gone, stays unknown"),
    ("", "configmaps", ("create",), "execd cannot be put into the namespace"),
    ("coordination.k8s.io", "leases", ("create", "get", "list", "patch", "delete"), "no run can prove that it lives"),
    ("networking.k8s.io", "networkpolicies", ("list",), "egress cannot be denied"),
)
"""API group, resource, verbs, and what is missed without them."""

CLOCK_S = 30.0
ROUND_TRIP_S = 600.0

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: Level
    said: str
    """What was seen and, unless it is well, what to do."""


async def examine(config: KubernetesConfig, *, image: str | None = None) -> list[Finding]:
    """Everything that is known to go wrong, in the order in which to mend it. `image` is tried out, if it is given."""
    try:
        async with open_api(config) as api:
            findings = [await _server(api)]
            if findings[0].level == "error":
                return findings
            findings += await _permissions(api)
            findings += await _policies(api)
            findings += await _leftovers(api)
    except SandboxError as error:
        return [Finding("server", "error", str(error))]
    if image is not None:
        findings += await _tried_out(config, image, guarded=not any(one.level == "error" for one in findings))
    return findings


async def _server(api: Api) -> Finding:
    try:
        version = await api.call("GET", "/version", timeout_s=10)
    except ApiFailure as failure:
        return Finding(
            "server", "error", f"{api.server} does not answer as it should: {failure}; see to the kubeconfig"
        )
    ahead_s = api.server_time() - time.time()
    if abs(ahead_s) > CLOCK_S:
        return Finding("server", "warning", f"its clock is {ahead_s:+.0f} s from ours; set both by NTP")
    return Finding("server", "ok", f"{api.server} is Kubernetes {version.get('gitVersion')}, namespace {api.namespace}")


async def _permissions(api: Api) -> list[Finding]:
    asked = [(group, what, verb, why) for group, what, verbs, why in PERMISSIONS for verb in verbs]
    allowed = await asyncio.gather(*(_allowed(api, group, what, verb) for group, what, verb, _ in asked))
    missing = [
        Finding("permissions", "error", f"may not {verb} {what}: {why}; add it to the role (deploy/access.yaml)")
        for (_, what, verb, why), yes in zip(asked, allowed, strict=True)
        if not yes
    ]
    return missing or [Finding("permissions", "ok", f"all {len(asked)} are given")]


async def _allowed(api: Api, group: str, resource: str, verb: str) -> bool:
    attributes = {"namespace": api.namespace, "group": group, "resource": resource, "verb": verb}
    review: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    try:
        answer = await api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    except ApiFailure:
        return False
    return bool((answer.get("status") or {}).get("allowed"))


async def _policies(api: Api) -> list[Finding]:
    try:
        policies = (await api.call("GET", api.path("networkpolicies", group=POLICIES))).get("items") or []
    except ApiFailure as failure:
        return [Finding("policies", "error", f"cannot be read: {failure}")]
    missing = [
        what
        for what, is_it in (("egress", denies_egress), ("ingress", guards_ingress))
        if not any(is_it(policy) for policy in policies)
    ]
    if missing:
        what = " and ".join(missing)
        return [Finding("policies", "error", f"none for sandboxes' {what}; apply deploy/network-policies.yaml")]
    return [Finding("policies", "ok", "they are there; that they are enforced only a try with an image can prove")]


async def _leftovers(api: Api) -> list[Finding]:
    try:
        dead = [lease.name for lease in (await list_leases(api)).values() if lease.expired(api.server_time())]
    except ApiFailure as failure:
        return [Finding("leftovers", "warning", f"leases cannot be listed: {failure}")]
    if dead:
        return [
            Finding("leftovers", "warning", f"{len(dead)} runs died; run the janitor (`python -m sandbox.kube.sweep`)")
        ]
    return [Finding("leftovers", "ok", "no run has died here")]


async def _tried_out(config: KubernetesConfig, image: str, *, guarded: bool) -> list[Finding]:
    """A sandbox, from its create to its first command; with egress denied, which proves the guard, where it can be."""
    from sandbox.kube.provider import KubernetesProvider

    egress: Egress = "denied" if guarded and config.guard == "required" else "open"
    try:
        image_ref(image, config.images)
        async with KubernetesProvider(config) as provider:
            spec = SandboxSpec(image=image, egress="open", lifetime_s=900)
            began = time.monotonic()
            async with provider.sandbox(spec, acquire_timeout_s=ROUND_TRIP_S) as box:
                ran = await box.run("echo well", timeout_s=30)
                took_s = time.monotonic() - began
            found = [_first_command(ran.output, took_s, box.node)]
            if egress == "denied":
                denied = spec.model_copy(update={"egress": "denied"})
                async with provider.sandbox(denied, acquire_timeout_s=ROUND_TRIP_S):
                    found.append(Finding("guard", "ok", "proved from inside: denied sandboxes reach nothing"))
    except (SandboxError, ApiFailure) as error:
        return [Finding("round trip", "error", str(error))]
    return found


def _first_command(output: bytes, took_s: float, node: str) -> Finding:
    if output != b"well\n":
        return Finding("round trip", "error", f"`echo well` wrote {output[:80]!r}; look at the image's bash")
    return Finding("round trip", "ok", f"create to first command in {took_s:.2f} s on {node}")
