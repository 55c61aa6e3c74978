"""A campaign: one frozen config that says what is graded, where, and under which declared conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox import LocalConfig


class Conditions(BaseModel):
    """Declared run conditions. What is None is not declared: it is recorded as observed, never compared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    egress: Literal["denied", "open"] | None = "denied"
    """Whether tests may reach any address but loopback."""
    visible_cpus: int | None = Field(default=None, gt=0)
    """CPUs that the tests see (`nproc`)."""
    memory_mib: int | None = Field(default=None, gt=0)
    """Memory limit in MiB that the kernel enforces."""
    test_time_limit_s: float = Field(default=1800.0, gt=0)
    """Seconds that the suite may run. It is the limit the grader sends, and the probe compares the two."""
    hash_seed: int | None = Field(default=None, ge=0, le=4294967295)
    """`PYTHONHASHSEED` for the tests."""
    time_zone: str | None = None
    """`TZ` for the tests, such as `UTC`."""
    locale: str | None = None
    """`LC_ALL` and `LANG` for the tests, such as `C.UTF-8`."""
    user: int | None = Field(default=None, ge=0)
    """Numeric user id that runs the tests."""


class RewardPolicy(BaseModel):
    """From a verdict to a number. No verdict is always None, whatever stands here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    resolved: float = 1.0
    unresolved: float = 0.0
    patch_rejected: float = 0.0
    timed_out: float | None = 0.0
    """None: a suite that outlives its limit leaves the group."""


class Limits(BaseModel):
    """Budgets, in seconds unless the name says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency: int = Field(default=2, gt=0)
    """Gradings in flight at once."""
    attempts: int = Field(default=3, gt=0)
    """Sandboxes per grading: a new one is tried after infrastructure trouble."""
    acquire_timeout_s: float = Field(default=300.0, gt=0)
    """Waiting for a sandbox, all phases of its create included."""
    grading_timeout_s: float = Field(default=3600.0, gt=0)
    """One grading in all: create, probe, apply, suite, stop, every attempt."""
    max_log_mib: int = Field(default=64, gt=0)
    """Beyond this a log loses its middle and says so."""


class Campaign(BaseModel):
    """What `grader grade` runs. A TOML file holds the same names; flags win over it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    taskset: str
    """A JSONL or Parquet file, or the id of a data set on the hub."""
    recipes: Path | None = None
    """JSONL of image recipes. A task with a recipe runs on the recipe's image."""
    patches: str = "reference"
    """`reference`, `empty`, or a JSONL file of `instance_id`, `model_name_or_path`, `model_patch`."""
    only: tuple[str, ...] = ()
    """Task ids to grade; empty means all."""
    run: str
    """Name of the run: its directory holds the ledger and the logs."""
    runs_dir: Path = Path("runs")
    provider: LocalConfig = LocalConfig()
    conditions: Conditions = Conditions()
    rewards: RewardPolicy = RewardPolicy()
    limits: Limits = Limits()
