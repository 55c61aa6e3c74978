"""What the grader itself promises of a grading: conditions of its own, declared and compared like any other. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from grader.campaign import Conditions, Limits


@dataclass(frozen=True)
class Promises:
    """One value for a whole grading. The probe compares it, and grader/hold.py lets the tests start under nothing
    else."""

    test_time_limit_s: float
    attempts: int

    @classmethod
    def of(cls, conditions: Conditions, limits: Limits) -> Promises:
        """What will really be done: a grading's own budget may cut the tests' time."""
        return cls(min(conditions.test_time_limit_s, limits.grading_timeout_s), limits.attempts)
