"""A recipe's `unshare -n` in the local provider's sandboxes, which may not unshare anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox import LocalConfig, SandboxSpec, open_provider
from sandbox.spec import Egress
from tasksets.images import Recipe, with_recipe
from tasksets.task import Task

RECIPE = {
    "instance_id": "a-1",
    "repo": "a/a",
    "python": "3",
    "source": {"kind": "sdist", "file": "a-1.tar.gz", "sha256": "0" * 64},
    "install": [],
    "test_cmd": "NAME=value unshare -n printenv NAME",
}
TASK = Task("a-1", "a/a", "0" * 40, "1", None, b"", b"", ("t",), (), None, "", "here", "swebench-2026")


@pytest.mark.anyio
@pytest.mark.parametrize(("egress", "expected"), [("denied", (0, b"value\n")), ("open", (1, None))])
async def test_no_network_is_had_or_the_command_fails(
    tmp_path: Path, egress: Egress, expected: tuple[int, bytes | None]
) -> None:
    """Without a network the command runs as it is; with one it fails, and is never run on the network."""
    plan = with_recipe(TASK, Recipe.model_validate(RECIPE), "host").plan
    assert plan is not None
    async with (
        open_provider(LocalConfig(state_dir=tmp_path)) as provider,
        provider.sandbox(SandboxSpec(image="host", egress=egress)) as box,
    ):
        await box.run(f"set -o pipefail\n{plan.setup}", timeout_s=10)
        result = await box.run(plan.test_command, timeout_s=10)
    assert expected[0] == result.exit_code
    assert b"value" not in result.output if expected[1] is None else expected[1] == result.output
