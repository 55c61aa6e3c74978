"""What goes into a grading and what comes out: `Submission`, `Grading` and its `Evidence`. Frozen, JSON-ready."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from grader.verdict import Cause, Outcome


@dataclass(frozen=True)
class Submission:
    """One patch for one task, by one model. `patch` is bytes as submitted; empty bytes is the empty patch."""

    task_id: str
    model_name_or_path: str
    patch: bytes
    source: str
    """Where it came from (file and line, `reference`, `empty`); for messages."""

    @property
    def patch_sha256(self) -> str:
        return hashlib.sha256(self.patch).hexdigest()


class AsSubmitted(BaseModel):
    """How the patch fared as it was submitted, where the verdict is on the patch without its tampering."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: Outcome
    cause: Cause | None = None
    reasons: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    sandbox_id: str | None = None
    never_used: bool | None = None
    suite_exit_code: int | None = None
    log_sha256: str | None = None
    log_path: str | None = None
    channel: str | None = None


class Evidence(BaseModel):
    """All that a reader needs to believe a verdict, or to see why there is none.

    None: the grading did not get there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    patch_sha256: str
    task_digest: str
    image_ref: str | None = None
    image_digest: str | None = None
    sandbox_id: str | None = None
    boot_id: str | None = None
    never_used: bool | None = None
    """True: no command had run in the sandbox, and nobody had held it, before this grading."""
    execs_before: int | None = None
    handovers: int | None = None
    declared: dict[str, object] = {}
    """Declared conditions, by name."""
    observed: dict[str, object] = {}
    """Conditions as the probe read them, by name."""
    agreed: tuple[str, ...] = ()
    contradicted: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    unenforced: tuple[str, ...] = ()
    """Limits of the spec that the provider could not enforce."""
    apply_rung: str | None = None
    """Which rung of the apply ladder took the patch."""
    restored_files: tuple[str, ...] = ()
    """The task's own test files, whose hashes were asserted after the test patch."""
    suite_exit_code: int | None = None
    suite_timed_out: bool | None = None
    log_sha256: str | None = None
    log_bytes: int | None = None
    log_truncated: bool | None = None
    log_path: str | None = None
    """Where the full log lies, relative to the run's directory."""
    results_from: str | None = None
    """`channel` or `log`: where the results come from that official rules were applied to."""
    channel: str | None = None
    """State of the grader's own result channel: `absent`, `silent`, `broken`, `unended` or `complete`."""
    channel_sha256: str | None = None
    channel_path: str | None = None
    """Where all that the channel brought lies, relative to the run's directory."""
    channel_agreement: dict[str, int] | None = None
    """How many tests have the `same` result in channel and log, an `other` one, or are in one of them alone."""
    outcome_on_log: Outcome | None = None
    """What official rules make of the log alone."""
    tampering: tuple[str, ...] = ()
    """The submission's changes to tests, configuration, start-up files and runner: kind and path."""
    stripped: tuple[str, ...] = ()
    """Paths of the submission that were left out of what was graded."""
    as_submitted: AsSubmitted | None = None
    """The second grading, of the whole submission, where anything was stripped."""
    phases_s: dict[str, float] = {}
    """Seconds per phase: the create's own, then probe, apply, suite, judge, in order."""
    attempts: int = 1
    """Sandboxes that it took; more than one only after infrastructure trouble."""
    failures: tuple[str, ...] = ()
    """What ended the earlier attempts, one line each."""
    code_revision: str = ""
    """Version and commit of the grader that gave the verdict."""


class Grading(BaseModel):
    """One grading as it ended: a row of the ledger and a line of `--json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    model_name_or_path: str
    outcome: Outcome
    cause: Cause | None = None
    """Set when, and only when, the outcome is `no_verdict`."""
    reward: float | None
    """None leaves the group before the mean."""
    seconds: float
    """Wall time of the grading, from its first queueing for a sandbox to its end."""
    reasons: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    fail_to_pass: dict[str, tuple[str, ...]] = {}
    """`success` and `failure`, as in the official report. Empty without a verdict."""
    pass_to_pass: dict[str, tuple[str, ...]] = {}
    statuses: dict[str, str] = {}
    """Every test that the log or the channel told of, with its status."""
    evidence: Evidence
    started_at: str
    """UTC, ISO 8601."""
