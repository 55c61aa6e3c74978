"""`grader janitor`: delete what killed runs left behind, once."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from grader.commands.place import Context, Kubeconfig, Namespace, ProviderKind, StateDir, provider_flags
from grader.console import Exit, printable

if TYPE_CHECKING:
    from sandbox import KubernetesConfig, LocalConfig


def janitor(
    *,
    provider: ProviderKind = None,
    state_dir: StateDir = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.")] = False,
) -> int:
    """Delete what killed runs left behind, and nothing else. Every start of a run does the same.

    On a cluster: the pods of runs whose lease has expired. Here: processes, cgroups and directories of providers whose
    process is gone. Exit status 0: done; 4: something could not be deleted, and the next run tries again.
    """
    from grader.campaign import load_place
    from sandbox import KubernetesConfig

    place = load_place(None, {"provider": provider_flags(provider, state_dir, namespace, kubeconfig, context)})
    if isinstance(place.provider, KubernetesConfig):
        return _on_cluster(place.provider, as_json=as_json)
    return _here(place.provider, as_json=as_json)


def _on_cluster(config: KubernetesConfig, *, as_json: bool) -> int:
    from dataclasses import asdict

    import anyio

    from sandbox.kube.sweep import sweep_once

    swept = anyio.run(sweep_once, config)
    if as_json:
        sys.stdout.write(json.dumps(asdict(swept)) + "\n")
    else:
        lines = [f"deleted {name}" for name in swept.deleted] + [f"not deleted {name}" for name in swept.failed]
        lines += [f"removed the expired lease {name}" for name in swept.leases]
        lines.append(f"{len(swept.deleted)} pods deleted, {len(swept.failed)} not, {swept.kept} kept of living runs")
        sys.stdout.write(printable("\n".join(lines) + "\n"))
    return Exit.INFRASTRUCTURE if swept.failed else Exit.DONE


def _here(config: LocalConfig, *, as_json: bool) -> int:
    from dataclasses import asdict

    from sandbox.local.scratch import state_directory
    from sandbox.local.sweep import sweep

    swept = sweep(state_directory(config.state_dir))
    told = f"{swept.sandboxes} sandboxes and {swept.processes} processes of {swept.instances} dead providers removed"
    sys.stdout.write((json.dumps(asdict(swept)) if as_json else told) + "\n")
    return Exit.DONE
