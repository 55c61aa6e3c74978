"""Which provider to open, as a frozen config, and the one function that opens it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from sandbox.provider import Provider


class LocalConfig(BaseModel):
    """Sandboxes on this machine, by bubblewrap and user namespaces. No root needed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["local"] = "local"
    state_dir: Path | None = None
    """Holds the image store and the sandboxes' scratch. None: `sandman-grader` under `$XDG_CACHE_HOME`, else under
    `~/.cache`."""
    max_live: int = Field(default=64, gt=0)
    """Sandboxes alive at once; a further acquire waits in the queue phase."""
    host_python: Path | None = None
    """Which Python of this machine runs execd in the image `host`, 3.6 or newer. None: `/usr/bin/python3`, else our
    own. Every other image brings its own."""


class PacingConfig(BaseModel):
    """What a run may ask of the API server. One pacer holds all creates of the run; deletes are never paced."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    creates_per_s: float = Field(default=10.0, gt=0)
    """Creates a second in the long run. The server's refusals lower it for a while, by themselves."""
    burst: int = Field(default=20, gt=0)
    """Creates that may go at once after a quiet while."""
    max_in_flight: int = Field(default=200, gt=0)
    """Creates that are asked for and neither ready nor failed."""
    max_live: int = Field(default=1000, gt=0)
    """Sandboxes that exist at once."""
    max_requests: int = Field(default=64, gt=0)
    """Requests for single pods under way at once, deletes included. A server that others use too is spared by fewer."""


class PhaseBudgets(BaseModel):
    """How long each phase of a create may take, in seconds. Each is its own budget: a pull eats no other's."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schedule_s: float = Field(default=300.0, gt=0)
    """Until a node is found."""
    pull_s: float = Field(default=900.0, gt=0)
    """Until the image is on the node."""
    start_s: float = Field(default=120.0, gt=0)
    """Until the container runs, the pull not counted."""
    daemon_s: float = Field(default=30.0, gt=0)
    """Until execd answers."""


class Toleration(BaseModel):
    """As in a pod's `tolerations`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesConfig(BaseModel):
    """Sandboxes as plain pods of a cluster. docs/kubernetes.md says what the cluster must have."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    type: Literal["kubernetes"] = "kubernetes"
    kubeconfig: Path | None = None
    """None: the pod's own service account when inside a cluster, else `$KUBECONFIG`, else `~/.kube/config`."""
    context: str | None = None
    """Of the kubeconfig. None: its current one."""
    namespace: str | None = None
    """Where the pods go. None: the context's namespace, or the pod's own."""
    images: Mapping[str, str] = Field(default_factory=dict)
    """From an image as a spec names it to the `name@sha256:<hex>` under which the nodes have or pull it."""
    pythons: tuple[str, ...] = (
        "python3",
        "/usr/bin/python3",
        "/usr/local/bin/python3",
        "/opt/miniconda3/bin/python3",
        "/opt/conda/bin/python3",
        "/opt/python/bin/python3",
    )
    """Which Python of the image runs execd: the first that is there. 3.6 or newer; names without `/` are looked up."""
    port: int = Field(default=18080, gt=1023, lt=65536)
    """On which execd listens in the pod. The network policies name it too."""
    pacing: PacingConfig = PacingConfig()
    budgets: PhaseBudgets = PhaseBudgets()
    guard: Literal["required", "unguarded"] = "required"
    """`required`: a sandbox with egress denied is refused until the network policies were proved from inside this
    cluster. `unguarded`: no policy is looked for, and only specs with egress open are accepted."""
    canary: tuple[str, int] | None = None
    """An address that pods with open egress reach, to prove that denied ones do not. None: the API server's."""
    lease_s: float = Field(default=60.0, ge=5)
    """A run that has not renewed its lease for so long is dead: its pods are the janitor's."""
    grace_s: int = Field(default=1, ge=0, le=30)
    """Between the request to end and the kill, at a delete."""
    default_cpu_request: float = Field(default=0.1, gt=0)
    """CPUs requested for a spec that names none."""
    default_memory_request_mib: int = Field(default=256, gt=0)
    """Memory requested for a spec that names none."""
    ephemeral_storage_mib: int | None = Field(default=None, gt=0)
    """Disk that a sandbox may write. None: no limit of ours."""
    node_selector: Mapping[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    """Names of secrets in the namespace, for the registry."""
    runtime_class: str | None = None
    priority_class: str | None = None
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Added to every pod, for the cluster's own bookkeeping."""
    annotations: Mapping[str, str] = Field(default_factory=dict)
    """Added to every pod."""


def _type_of(config: object) -> str:
    if isinstance(config, Mapping):
        return str(config.get("type", "local"))
    return str(getattr(config, "type", "local"))


ProviderConfig = Annotated[
    Annotated[LocalConfig, Tag("local")] | Annotated[KubernetesConfig, Tag("kubernetes")], Discriminator(_type_of)
]
"""The union of provider configs, discriminated on `type`, which is `local` where it is not given."""


def open_provider(config: LocalConfig | KubernetesConfig) -> AbstractAsyncContextManager[Provider]:
    """Open the provider that `config` describes. Leaving the context deletes every sandbox that it still owns.

    Raises `ProviderUnavailable` when this machine or cluster lacks what the provider needs.
    """
    if isinstance(config, KubernetesConfig):
        from sandbox.kube.provider import KubernetesProvider

        return KubernetesProvider(config)
    from sandbox.local.provider import LocalProvider

    return LocalProvider(config)
