"""The flags that several commands share: where sandboxes are made, and which tasks are meant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from grader.errors import UsageError

_WHERE = Group("Where sandboxes are made (all other settings of a provider stand in a campaign file)", sort_key=3)

ProviderKind = Annotated[
    Literal["local", "kubernetes"] | None, Parameter(group=_WHERE, name="--provider", help="`local` by default.")
]
StateDir = Annotated[
    Path | None,
    Parameter(group=_WHERE, help="local: images and scratch; sandman-grader in the user's cache by default."),
]
Namespace = Annotated[
    str | None, Parameter(group=_WHERE, help="kubernetes: where the pods go; the context's by default.")
]
Kubeconfig = Annotated[
    Path | None, Parameter(group=_WHERE, help="kubernetes: the way to the cluster; as kubectl finds it by default.")
]
Context = Annotated[str | None, Parameter(group=_WHERE, help="kubernetes: of the kubeconfig; its current by default.")]


def provider_flags(
    provider: str | None, state_dir: Path | None, namespace: str | None, kubeconfig: Path | None, context: str | None
) -> dict[str, object]:
    """The flags under the names of the provider's settings."""
    return {
        "type": provider,
        "state_dir": state_dir,
        "namespace": namespace,
        "kubeconfig": kubeconfig,
        "context": context,
    }


def task_ids(only: Sequence[str] | None) -> list[str] | None:
    """The ids of `--only`. Naming none is a mistake (an empty variable in a script), not a wish for all."""
    if only is None:
        return None
    ids = [task_id.strip() for text in only for task_id in text.split(",") if task_id.strip()]
    if not ids:
        raise UsageError("--only names no task; give ids, or leave the flag out for all tasks")
    return ids
