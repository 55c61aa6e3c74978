"""Looks at a cluster as the provider will use it, and says what to mend. Makes nothing but its own test sandboxes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from sandbox.config import KubernetesConfig
from sandbox.errors import ImageError, ProviderUnavailable, SandboxError
from sandbox.finding import ONE_SANDBOX, Asked, Finding, Level, first_command, has_failed
from sandbox.kube.api import Api, ApiFailure, open_api
from sandbox.kube.box import KubeSandbox
from sandbox.kube.capacity import Room, room
from sandbox.kube.guard import POLICIES, denies_egress, guards_ingress
from sandbox.kube.lease import list_leases
from sandbox.kube.manifest import image_ref, resources
from sandbox.spec import SandboxSpec

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
PULL_S = 180.0
"""Who looks is not kept waiting as long as a run is for an image: a registry that is in trouble is told."""


async def examine(config: KubernetesConfig, *, asked: Asked = ONE_SANDBOX, image: str | None = None) -> list[Finding]:
    """Everything that is known to go wrong, in the order in which to mend it. `image` is tried out, if it is given."""
    try:
        async with open_api(config) as api:
            findings = await _server(api)
            if has_failed(findings):
                return findings
            findings += await _permissions(api)
            findings += await _policies(api)
            findings += await _leftovers(api)
            findings.append(await _capacity(api, config, asked))
    except SandboxError as error:
        return [Finding("server", _level(error), str(error))]
    if image is None:
        return [*findings, Finding("round trip", "note", "not tried: name an image that the nodes can pull (--image)")]
    return findings + await _tried_out(config, image, asked, mend_first=has_failed(findings))


def _level(error: Exception) -> Level:
    """Whether there is something to mend, or the cluster did not do what it should."""
    if isinstance(error, ApiFailure):
        return "error" if error.status in {401, 403, 404} else "failure"
    return "error" if isinstance(error, ProviderUnavailable | ImageError) else "failure"


async def _server(api: Api) -> list[Finding]:
    try:
        version = await api.call("GET", "/version", timeout_s=10)
    except ApiFailure as failure:
        said = f"{api.server} does not answer as it should: {failure}; see to the kubeconfig and the way there"
        return [Finding("server", _level(failure), said)]
    ahead_s = api.server_time() - time.time()
    if abs(ahead_s) > CLOCK_S:
        clock = Finding("clock", "warning", f"the server's is {ahead_s:+.0f} s from ours; set both by NTP")
    else:
        clock = Finding("clock", "ok", f"the server's is within {max(1.0, abs(ahead_s)):.0f} s of ours")
    said = f"{api.server} is Kubernetes {version.get('gitVersion')}"
    return [
        Finding("server", "ok", said, {"version": version.get("gitVersion")}),
        Finding(clock.check, clock.level, clock.said, {"ahead_s": round(ahead_s, 1)}),
        await namespace_found(api),
    ]


async def namespace_found(api: Api) -> Finding:
    """Whether the namespace is there, as far as the role may know."""
    try:
        await api.call("GET", f"/api/v1/namespaces/{api.namespace}")
    except ApiFailure as failure:
        if failure.status == 404:
            said = f"{api.namespace} is not there; apply sandbox/kube/deploy, or name another with --namespace"
            return Finding("namespace", "error", said)
        if failure.status != 403:
            return Finding("namespace", _level(failure), f"{api.namespace} cannot be looked at: {failure}; ask again")
    return Finding("namespace", "ok", api.namespace)  # who has the role alone may not look at it


def _spec(image: str, asked: Asked) -> SandboxSpec:
    """A sandbox of the size that is asked for."""
    return SandboxSpec(
        image=image,
        cpus=asked.cpus,
        cpu_quota=asked.cpu_quota,
        memory_mib=asked.memory_mib,
        egress="open",
        lifetime_s=900,
    )


# -- permissions -------------------------------------------------------------------------------------------------------


async def _permissions(api: Api) -> list[Finding]:
    wanted = [(group, what, verb, why) for group, what, verbs, why in PERMISSIONS for verb in verbs]
    try:
        allowed = await asyncio.gather(*(_allowed(api, group, what, verb) for group, what, verb, _ in wanted))
    except ApiFailure as failure:
        return [Finding("permissions", "failure", f"cannot be asked for: {failure}; ask again")]
    missing = [
        Finding("permissions", "error", f"may not {verb} {what}: {why}; add to the role: {_rule(group, what, verb)}")
        for (group, what, verb, why), yes in zip(wanted, allowed, strict=True)
        if not yes
    ]
    return missing or [Finding("permissions", "ok", f"all {len(wanted)} are given")]


def _rule(group: str, resource: str, verb: str) -> str:
    return f'{{apiGroups: ["{group}"], resources: [{resource}], verbs: [{verb}]}}'


async def _allowed(api: Api, group: str, resource: str, verb: str) -> bool:
    attributes = {"namespace": api.namespace, "group": group, "resource": resource, "verb": verb}
    review: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool((answer.get("status") or {}).get("allowed"))


# -- what lies in the namespace ----------------------------------------------------------------------------------------


async def _policies(api: Api) -> list[Finding]:
    try:
        policies = (await api.call("GET", api.path("networkpolicies", group=POLICIES))).get("items") or []
    except ApiFailure as failure:
        return [Finding("policies", _level(failure), f"cannot be read: {failure}; see to the permissions first")]
    missing = [
        what
        for what, is_it in (("egress", denies_egress), ("ingress", guards_ingress))
        if not any(is_it(policy) for policy in policies)
    ]
    if missing:
        what = " and ".join(missing)
        said = f"none for sandboxes' {what}; apply sandbox/kube/deploy/network-policies.yaml"
        return [Finding("policies", "error", said)]
    return [Finding("policies", "ok", "they are there; that they are enforced only a try with an image can prove")]


async def _leftovers(api: Api) -> list[Finding]:
    try:
        dead = [lease.name for lease in (await list_leases(api)).values() if lease.expired(api.server_time())]
    except ApiFailure as failure:
        return [Finding("leftovers", "warning", f"leases cannot be listed: {failure}; see to the permissions first")]
    if dead:
        said = f"{len(dead)} runs died; `grader janitor --provider kubernetes` deletes what they left"
        return [Finding("leftovers", "warning", said, {"leases": dead})]
    return [Finding("leftovers", "ok", "no run has died here")]


# -- capacity ----------------------------------------------------------------------------------------------------------


async def _capacity(api: Api, config: KubernetesConfig, asked: Asked) -> Finding:
    request = resources(_spec("any", asked), config)["requests"]
    try:
        nodes = [one async for one in _listed(api, "/api/v1/nodes")]
        pods = [one async for one in _listed(api, "/api/v1/pods")]
    except ApiFailure as failure:
        if failure.status != 403:
            return Finding("capacity", "failure", f"nodes or pods cannot be listed: {failure}; ask again")
        return Finding(
            "capacity",
            "note",
            "not known, since nodes and other namespaces' pods may not be listed; sandboxes do not need it, the doctor "
            "would: a ClusterRole with list on nodes and pods",
        )
    return told_room(room(nodes, pods, request, config), request, asked)


def told_room(free: Room, request: dict[str, str], asked: Asked) -> Finding:
    """What the free room means for what is asked."""
    each = ", ".join(f"{name} {amount}" for name, amount in request.items())
    said = f"room for {free.sandboxes} sandboxes ({each} each) on {free.nodes} of {free.of_nodes} nodes"
    facts = {"room": free.sandboxes, "asked": asked.sandboxes, "nodes": free.nodes}
    if free.sandboxes == 0:
        remedy = "free some, add nodes, or look at node_selector and tolerations"
        return Finding("capacity", "error", f"{said}; {remedy}", facts)
    if free.sandboxes < asked.sandboxes:
        remedy = f"{asked.sandboxes} are asked for at once and the others wait: lower limits.concurrency or add nodes"
        return Finding("capacity", "warning", f"{said}; {remedy}", facts)
    return Finding("capacity", "ok", f"{said}; {asked.sandboxes} asked for at once", facts)


async def _listed(api: Api, path: str) -> AsyncIterator[dict[str, Any]]:
    """All objects of a kind, page by page. Raises `ApiFailure`."""
    query = {"limit": "500"}
    while True:
        page = await api.call("GET", f"{path}?{urlencode(query)}")
        for item in page.get("items") or []:
            yield item
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return
        query["continue"] = str(following)


# -- a try -------------------------------------------------------------------------------------------------------------


async def _tried_out(config: KubernetesConfig, image: str, asked: Asked, *, mend_first: bool) -> list[Finding]:
    """A sandbox, from its create to its first command, and one with egress denied, which proves the guard."""
    from sandbox.kube.provider import KubernetesProvider

    try:
        found = [Finding("image", "ok", f"nodes pull {image_ref(image, config.images).reference}")]
    except ImageError as error:
        return [Finding("image", "error", str(error))]
    if mend_first:
        return [*found, Finding("round trip", "note", "not tried: mend the above first")]
    spec = _spec(image, asked)
    budgets = config.budgets.model_copy(update={"pull_s": min(PULL_S, config.budgets.pull_s)})
    try:
        async with KubernetesProvider(config.model_copy(update={"budgets": budgets})) as provider:
            async with _timed(provider, spec) as (box, took_s):
                began = time.monotonic()
                ran = await box.run("echo well", timeout_s=30)
                command_s = time.monotonic() - began
            found.append(first_command(ran.output, took_s, command_s, box.phases, f" on {box.node}"))
            found.append(await _guard(provider, config, spec, asked))
    except (SandboxError, ApiFailure) as error:
        found.append(Finding("round trip", _level(error), str(error)))
    return found


@asynccontextmanager
async def _timed(provider: Any, spec: SandboxSpec) -> AsyncIterator[tuple[KubeSandbox, float]]:
    began = time.monotonic()
    async with provider.sandbox(spec, acquire_timeout_s=ROUND_TRIP_S) as box:
        yield box, time.monotonic() - began


async def _guard(provider: Any, config: KubernetesConfig, spec: SandboxSpec, asked: Asked) -> Finding:
    if config.guard == "unguarded":
        level: Level = "error" if asked.egress == "denied" else "warning"
        return Finding("guard", level, 'the config says `unguarded`: to deny egress, set guard = "required"')
    began = time.monotonic()
    denied = spec.model_copy(update={"egress": "denied"})
    try:
        async with provider.sandbox(denied, acquire_timeout_s=ROUND_TRIP_S):
            took_s = time.monotonic() - began
    except (SandboxError, ApiFailure) as error:
        return Finding("guard", "warning" if asked.egress == "open" else _level(error), str(error))
    said = f"proved from inside in {took_s:.1f} s: denied sandboxes reach nothing, and no other pod reaches them"
    return Finding("guard", "ok", said, {"proved_s": round(took_s, 3)})
