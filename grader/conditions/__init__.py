"""Declared run conditions, what was observed in their place, and how the two compare. Pure."""

from grader.conditions.compare import Comparison, compare
from grader.conditions.observed import UNLIMITED, UNSET, Look, Observed, observed_from
from grader.conditions.promises import Promises
from grader.conditions.spec import declared, environment, spec_for

__all__ = [
    "UNLIMITED",
    "UNSET",
    "Comparison",
    "Look",
    "Observed",
    "Promises",
    "compare",
    "declared",
    "environment",
    "observed_from",
    "spec_for",
]
