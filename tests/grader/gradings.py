"""Gradings as tests need them: real records, with what a test does not care about filled in."""

from __future__ import annotations

import hashlib

from grader.record import Evidence, Grading
from grader.verdict import Cause, Outcome


def grading(
    task_id: str = "demo__one-1",
    outcome: Outcome = Outcome.RESOLVED,
    *,
    model: str = "m",
    patch: bytes = b"p",
    cause: Cause | None = None,
    seconds: float = 1.5,
    reasons: tuple[str, ...] = (),
) -> Grading:
    if outcome is Outcome.NO_VERDICT:
        cause = cause or Cause.INFRASTRUCTURE
    return Grading(
        task_id=task_id,
        model_name_or_path=model,
        outcome=outcome,
        cause=cause,
        reward={Outcome.RESOLVED: 1.0, Outcome.NO_VERDICT: None}.get(outcome, 0.0),
        seconds=seconds,
        reasons=reasons,
        fail_to_pass={"success": ("t::a",), "failure": ()},
        pass_to_pass={"success": (), "failure": ()},
        statuses={"t::a": "PASSED"},
        evidence=Evidence(patch_sha256=hashlib.sha256(patch).hexdigest(), task_digest="d1"),
        started_at="2026-01-01T00:00:00Z",
    )
