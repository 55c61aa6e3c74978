"""Rows of a little task set, as a file would hold them."""

from __future__ import annotations

from typing import Any


def task_row(task_id: str) -> dict[str, Any]:
    """A row of the 2024 schema whose patches parse; nothing in it is ever run."""
    patch = "diff --git a/f.py b/f.py\n--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n-a\n+b\n"
    return {
        "instance_id": task_id,
        "repo": "pytest-dev/pytest",
        "base_commit": "0" * 40,
        "version": "8.0",
        "patch": patch,
        "test_patch": patch.replace("f.py", "test_f.py"),
        "problem_statement": "a is not b",
        "hints_text": "",
        "created_at": "2024-01-01T00:00:00Z",
        "environment_setup_commit": "0" * 40,
        "FAIL_TO_PASS": '["test_f.py::test_b"]',
        "PASS_TO_PASS": "[]",
    }
