"""Claims about `grader.adapters.mini_swe_agent`, with the real agent and a model that reads from a script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.adapters.mini_swe_agent import RolloutEnvironment, work
from grader.rollout import rollout
from sandbox import SandboxError
from tests.grader.tasks import make_task, toy

pytestmark = pytest.mark.anyio
SETTINGS = {"system_template": "Work in {{cwd}} on {{system}}.", "instance_template": "{{task}}"}


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package's agents and its scripted model."""
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "agent"))
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed: pip install mini-swe-agent")
    from minisweagent.agents import default

    yield default


class Script:
    """A model of the package's protocol that says one command after the other."""

    config: Any = None

    def __init__(self, *commands: str) -> None:
        self.commands = list(commands)
        self.seen: list[str] = []

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": "",
            "extra": {"actions": [{"command": self.commands.pop(0)}], "cost": 0},
        }

    def format_message(self, **parts: Any) -> dict[str, Any]:
        return parts

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: Any = None
    ) -> list[dict[str, Any]]:
        self.seen += [f"{output['returncode']} {output['output']}{output['exception_info']}" for output in outputs]
        return [{"role": "user", "content": self.seen[-1]}]

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return {}

    def serialize(self) -> dict[str, Any]:
        return {}


async def test_the_real_agent_works_in_a_rollout(tmp_path: Path, agents: Any) -> None:
    """The package's own agent edits, submits and ends; the rollout's extraction has its work, exactly."""
    model = Script(
        "cd tests; export X=1; pwd",
        'pwd; echo "<$X>"; exit 3',
        "sed -i 's/result -= number/result += number/' sums.py; printf 'a\\rb' >odd.txt",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff",
    )
    async with toy(tmp_path) as (repo, provider), rollout(make_task(repo), provider) as r:
        ended = await work(r, lambda environment: agents.DefaultAgent(model, environment, **SETTINGS))
        extraction = await r.extract()
    assert "Submitted" == ended["exit_status"]
    assert "+        result += number" in ended["submission"]
    assert ["0 /testbed/tests\n", "3 /testbed\n<>\n", "0 "] == model.seen
    assert extraction.faithful and (b"odd.txt", b"sums.py") == tuple(sorted(extraction.carried))
    assert b"+a\rb" in (extraction.patch or b"")


async def test_a_time_out_and_a_lost_sandbox(tmp_path: Path, agents: Any) -> None:
    """A command over its time is an observation; a sandbox that is gone is an error, never a submission."""
    model = Script("echo begun; sleep 60", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")

    def make(environment: RolloutEnvironment) -> Any:
        return agents.DefaultAgent(model, environment, **SETTINGS)

    async with toy(tmp_path) as (repo, provider):
        async with rollout(make_task(repo), provider) as r:
            await work(r, make, timeout=0.5)
        assert model.seen[0].startswith("-1 begun\n") and model.seen[0].endswith("killed after 0.5 s")
        with pytest.raises(SandboxError):
            await work(r, make)
