"""The values that cross the sandbox boundary: what a caller asks for and what it gets back. All are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Egress = Literal["denied", "open"]

# What a kernel can be asked for, and a daemon and a Python can start under.
Cpus = Annotated[int, Field(gt=0, le=8192)]
CpuQuota = Annotated[float, Field(ge=0.01, le=8192)]
MemoryMib = Annotated[int, Field(ge=16, le=1 << 32)]
Processes = Annotated[int, Field(ge=16, le=4194304)]
OpenFiles = Annotated[int, Field(ge=256, le=1 << 40)]
ShmMib = Annotated[int, Field(gt=0, le=1 << 32)]
UserId = Annotated[int, Field(ge=0, le=4294967294)]


class SandboxSpec(BaseModel):
    """What one sandbox is to be. A provider enforces what it can and reports the rest as not enforced."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    image: str
    """`host`, `sha256:<hex>` (an image in the local store), `oci:<path>` (layout directory or archive), or
    `registry/name@sha256:<hex>`."""
    cpus: Cpus | None = None
    """Whole CPUs that the sandbox sees and may use. None: all that the provider has."""
    memory_mib: MemoryMib | None = None
    """Memory limit in MiB. None: no limit of our own."""
    cpu_quota: CpuQuota | None = None
    """CPU seconds per second that it may use. None: as many as it sees CPUs."""
    processes: Processes | None = None
    """Processes and threads that may exist at once, the daemon's own few included. None: the provider's default."""
    open_files: OpenFiles | None = None
    """Descriptors that one process may have open (RLIMIT_NOFILE). None: the provider's default."""
    shm_mib: ShmMib | None = None
    """Size of `/dev/shm` in MiB. None: `memory_mib`, else 64."""
    user: UserId | None = None
    """Numeric id of the user, and group, that everything inside runs as. None: the image's own, or root."""
    umask: int = Field(default=0o022, ge=0, le=0o777)
    """Of everything that runs inside."""
    seccomp: Literal["filtered", "unconfined"] | None = None
    """Whether system calls are filtered. None: as the provider does by default."""
    workdir: str | None = None
    """Directory in which the first shell starts. None: the image's own, else `/`."""
    egress: Egress = "denied"
    """`denied`: no address but loopback can be reached. `open`: the provider's network."""
    env: Mapping[str, str] = Field(default_factory=dict)
    """Variables added to the image's own environment."""
    lifetime_s: float = Field(default=4 * 3600.0, gt=0)
    """The sandbox ends by itself after this many seconds, whoever has forgotten it."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Free-form facts for listings (run, task). They choose nothing."""


@dataclass(frozen=True)
class ExecResult:
    """How one command ended. Bytes as the command wrote them, stdout and stderr in one order."""

    exit_code: int
    """0-255, or 128+N when signal N ended it."""
    output: bytes
    """Head and tail when `truncated`."""
    truncated: bool
    timed_out: bool
    """The time-out ended it: its process tree was killed and `output` is what it had written."""
    shell_restarted: bool
    """The shell itself ended (`exit`, `exec`, a kill) and was replaced, its directory and environment kept."""
    duration_s: float
    output_bytes: int
    """How much the command wrote in all; `truncated` is `output_bytes > len(output)`."""
    silent_s: float = 0.0
    """The longest time in which nothing was heard of the daemon, which says something every 5 s while a command runs:
    the sandbox stood still, or the way to it was cut. Of `run` alone."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a streaming command's output. `offset` is its place in the whole output."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Facts:
    """What execd read about the place where it runs. None means that it could not be read.

    `raw` is the daemon's whole answer; the named fields are the ones that conditions compare.
    """

    visible_cpus: int | None
    cpu_quota: float | None
    memory_limit_mib: int | None
    """The tightest limit that the kernel enforces. None: none is enforced, or it cannot be read."""
    user_id: int | None
    interfaces: tuple[str, ...] | None
    canary: Literal["reached", "unreachable"] | None
    """Whether a TCP connection to the caller's canary address was made. None: no canary was given."""
    python_version: str | None
    architecture: str | None
    kernel: str | None
    raw: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Identity:
    """Who this sandbox is, and the proof that it was never used before it was handed out."""

    sandbox_id: str
    """Chosen by the provider before the sandbox existed; unique."""
    provider: str
    boot_id: str
    """Chosen by the daemon when it started. A different value is a different sandbox."""
    image_ref: str
    image_digest: str
    created_at: str
    """UTC, ISO 8601."""
    execs_before: int
    """Commands that the daemon had run when the sandbox was handed over. 0 is the proof of never used."""
    handovers: int
    """How many times it was handed to a caller, this one included. 1 is the proof of never used."""
    runtime: str | None = None
    """What runs it: `bubblewrap`, or a cluster's runtime class, `default` where none was asked for. None: not known."""

    @property
    def never_used(self) -> bool:
        return self.execs_before == 0 and self.handovers == 1


@dataclass(frozen=True)
class PhaseTimes:
    """Seconds that each phase of a create took. None: the provider has no such phase, did not get there, or does not
    know it apart: a pull that is not known is part of the start."""

    queue_s: float | None = None
    schedule_s: float | None = None
    pull_s: float | None = None
    start_s: float | None = None
    daemon_s: float | None = None
