"""Rows of our own writing, one maker for each schema, so that tests need no data of others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"

PATCH = """\
diff --git a/lamp/switch.py b/lamp/switch.py
--- a/lamp/switch.py
+++ b/lamp/switch.py
@@ -1,2 +1,2 @@
 def lit(presses):
-    return presses > 1
+    return presses % 2 == 1
"""

TEST_PATCH = """\
diff --git a/tests/test_switch.py b/tests/test_switch.py
--- a/tests/test_switch.py
+++ b/tests/test_switch.py
@@ -1,3 +1,6 @@
 from lamp.switch import lit
 def test_off():
     assert not lit(0)
+
+def test_on():
+    assert lit(1)
"""

SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen
export LANG=en_US.UTF-8
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff {COMMIT}
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .
make translations
git checkout {COMMIT} tests/test_switch.py 'tests/two words.py'
git apply -v - <<'EOF_1'
{TEST_PATCH}
EOF_1
: '>>>>> Start Test Output'
cd sub && true
pytest -rA tests/test_switch.py
: '>>>>> End Test Output'
git checkout {COMMIT} tests/test_switch.py 'tests/two words.py'
"""


def verified_2024(**changes: Any) -> dict[str, Any]:
    """A row as SWE-bench published them in 2024: ids as JSON in a string, no image, no script."""
    row = {
        "repo": "lamp/lamp",
        "instance_id": "lamp__lamp-1",
        "base_commit": COMMIT,
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "problem_statement": "The lamp does not light at the first press.",
        "hints_text": "",
        "created_at": "2026-01-02T03:04:05Z",
        "version": "1.2",
        "FAIL_TO_PASS": json.dumps(["tests/test_switch.py::test_on"]),
        "PASS_TO_PASS": json.dumps(["tests/test_switch.py::test_off"]),
        "environment_setup_commit": COMMIT,
    }
    return row | changes


def verified_2026(**changes: Any) -> dict[str, Any]:
    """A row as SWE-bench publishes them since 2026: with script, parser and image."""
    added = {
        "eval_script": SCRIPT,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "image": "lamps/lamp-1:latest",
    }
    return verified_2024() | added | changes


def multilingual(**changes: Any) -> dict[str, Any]:
    """As 2026, but the ids are lists."""
    ids = {"FAIL_TO_PASS": ["lamp.SwitchTest#on"], "PASS_TO_PASS": ["lamp.SwitchTest#off"]}
    return verified_2026() | ids | changes


def swe_gym(**changes: Any) -> dict[str, Any]:
    """SWE-Gym: 2024 without its set-up commit."""
    row = verified_2024() | {"FAIL_TO_PASS": ["tests/test_switch.py::test_on"], "PASS_TO_PASS": []}
    del row["environment_setup_commit"]
    return row | changes


def swe_gym_scripts() -> dict[str, str]:
    """The scripts that some rows of SWE-Gym carry."""
    head = "#!/bin/bash\nsource /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed\n"
    setup = f"{head}echo x >> reqs; pip install .; hash -r\ngit checkout {COMMIT} tests/test_switch.py\n"
    patch = f"git apply -v - <<'EOF_1'\n{TEST_PATCH}\nEOF_1\n"
    return {"setup_script": setup + patch, "test_script": f"{head}pytest -rA tests/test_switch.py"}


def swe_smith(**changes: Any) -> dict[str, Any]:
    """SWE-smith: `patch` makes the bug, there is no test patch and no version."""
    row = {
        "instance_id": "lamp__lamp.01234567.combine_1",
        "repo": "swesmith/lamp__lamp.01234567",
        "patch": PATCH,
        "FAIL_TO_PASS": ["tests/test_switch.py::test_on"],
        "PASS_TO_PASS": ["tests/test_switch.py::test_off"],
        "created_at": "2026-01-02",
        "image_name": "swesmith.x86_64.lamp__lamp.01234567",
        "base_commit": COMMIT,
        "problem_statement": "The lamp stays dark.",
    }
    return row | changes


def rebench_v2(**changes: Any) -> dict[str, Any]:
    """SWE-rebench V2: an install_config that says how to test."""
    config = {"install": ["make"], "test_cmd": ["make tests", "make check"], "log_parser": "parse_log_make"}
    row = {
        "instance_id": "lamp__lamp-1",
        "repo": "Lamps/lamp-c",
        "base_commit": COMMIT,
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "problem_statement": "Dark.",
        "language": "c",
        "FAIL_TO_PASS": ["on"],
        "PASS_TO_PASS": ["off"],
        "install_config": config,
        "image_name": "lamps/lamp-c:1",
    }
    return row | changes


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
