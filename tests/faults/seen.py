"""What each row of the matrix saw, for the table: `$FAULTS_SEEN` names a file that gets a JSON line for each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from grader.record import Grading


def note(request: pytest.FixtureRequest, provider: str, rows: Sequence[Grading], *, then: str = "") -> None:
    """Keep what became of the patches. `then` says after what, where the fault had passed by then."""
    if not (file := os.environ.get("FAULTS_SEEN")):
        return
    told = {
        "test": request.node.name,
        "provider": provider,
        "then": then,
        "patches": {
            row.model_name_or_path: {
                "outcome": str(row.outcome),
                "reward": row.reward,
                "attempts": row.evidence.attempts,
                "seconds": round(row.seconds, 1),
                "causes": list(row.evidence.failures) or list(row.reasons if row.cause else ()),
            }
            for row in rows
        },
    }
    with Path(file).open("a") as out:
        out.write(json.dumps(told) + "\n")
