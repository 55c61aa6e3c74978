"""`grader doctor`: look at this machine or a cluster as a campaign will use it, and say what to mend."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from grader.commands.place import Context, Kubeconfig, Namespace, ProviderKind, StateDir, provider_flags
from grader.console import Exit, printable

if TYPE_CHECKING:
    from grader.campaign import Place
    from sandbox.finding import Finding


def doctor(
    campaign: Annotated[
        Path | None,
        Parameter(help="TOML file of a campaign: what it asks for is tried in a sandbox of its first task. Flags win."),
    ] = None,
    /,
    *,
    image: Annotated[
        str | None, Parameter(help="Try this image in sandboxes of its own; on a cluster, also proves the guard.")
    ] = None,
    provider: ProviderKind = None,
    state_dir: StateDir = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object per finding.")] = False,
) -> int:
    """Look at a provider, and say what is well, what is not, and what to do. `grader.cli` holds the help text."""
    import anyio

    from grader.campaign import load_place

    flags = {"provider": provider_flags(provider, state_dir, namespace, kubeconfig, context)}
    if image is not None:
        sys.stderr.write(printable(f"trying {image} in sandboxes: seconds, and minutes where it must be pulled\n"))
    findings = anyio.run(_examine, load_place(campaign, flags), image)
    for one in findings:
        sys.stdout.write(json.dumps(vars(one)) + "\n" if as_json else _line(one))
    return exit_status(findings)


async def _examine(place: Place, image: str | None) -> Sequence[Finding]:
    from grader.campaign import Campaign
    from sandbox.finding import Finding, has_failed

    findings = [*await _of_the_place(place, image)]
    if not isinstance(place, Campaign):
        return findings
    if has_failed(findings):
        return [*findings, Finding("conditions", "note", "not tried: mend the above first")]
    from grader import doctor as of_campaign

    return [*findings, *await of_campaign.examine(place, image=image)]


async def _of_the_place(place: Place, image: str | None) -> Sequence[Finding]:
    from sandbox import KubernetesConfig
    from sandbox.finding import Asked

    declared = place.conditions
    asked = Asked(
        sandboxes=place.limits.concurrency,
        cpus=declared.visible_cpus,
        cpu_quota=declared.cpu_quota,
        memory_mib=declared.memory_mib,
        egress=declared.egress or "denied",
    )
    if isinstance(place.provider, KubernetesConfig):
        from sandbox.kube import doctor as of_cluster

        return await of_cluster.examine(place.provider, asked=asked, image=image)
    from sandbox.local import doctor as of_machine

    return await of_machine.examine(place.provider, asked=asked, image=image)


def _line(finding: Finding) -> str:
    return printable(f"{finding.level:<8} {finding.check}: {finding.said}\n")


def exit_status(findings: Sequence[Finding]) -> int:
    """What is to be mended goes before what may pass by itself."""
    levels = {one.level for one in findings}
    if "error" in levels:
        return Exit.USAGE
    return Exit.INFRASTRUCTURE if "failure" in levels else Exit.DONE
