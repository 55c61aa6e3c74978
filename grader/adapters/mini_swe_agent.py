"""mini-swe-agent (version 2) at work in a rollout: its `Environment` protocol over our sandbox.

    async with rollout(task, provider) as r:
        ended = await work(r, lambda environment: DefaultAgent(model, environment, **settings))
        extraction = await r.extract()

The agent runs in a thread of its own. What it submits (a diff that it types itself) is in `ended`, and is not the
patch: that is what `Rollout.extract` gives. As in the agent's own environments, each command runs in a new shell, and
trouble with the sandbox is raised. Nothing of the package is imported before a command ends the task.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from grader.rollout import Rollout
from sandbox import ExecResult

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command whose output begins with this line ends the task."""


class EnvironmentConfig(BaseModel):
    """How commands run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cwd: str
    """Where each command starts."""
    timeout: float = 60.0
    """Seconds that a command may take."""
    max_output_bytes: int = 1 << 20
    """Output beyond this loses its middle."""


class Agent(Protocol):
    """What `work` needs of an agent."""

    def run(self, task: str) -> dict[str, Any]: ...


async def work(rollout: Rollout, make_agent: Callable[[RolloutEnvironment], Agent], **config: Any) -> dict[str, Any]:
    """Let an agent work on the rollout's task; how it says that it ended. `config` goes to `EnvironmentConfig`."""
    environment = RolloutEnvironment(rollout, asyncio.get_running_loop(), **config)
    agent = make_agent(environment)
    return await asyncio.to_thread(agent.run, rollout.task.problem_statement)


class RolloutEnvironment:
    """mini-swe-agent's `Environment`. Its methods wait, and may be called from any thread but the loop's own."""

    def __init__(self, rollout: Rollout, loop: asyncio.AbstractEventLoop, **config: Any) -> None:
        self.config = EnvironmentConfig(**{"cwd": rollout.baseline.root, **config})
        self._rollout = rollout
        self._loop = loop
        self._uname: dict[str, str] | None = None

    def execute(self, action: Mapping[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run `action["command"]`. Raises minisweagent's `Submitted` when it ends the task, or `SandboxError`."""
        ended = self._run(str(action.get("command", "")), cwd or self.config.cwd, timeout or self.config.timeout)
        output = ended.output.decode("utf-8", "replace")
        first, _, rest = output.lstrip().partition("\n")
        if first.strip() == SUBMIT and ended.exit_code == 0:
            from minisweagent.exceptions import Submitted

            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        if ended.timed_out:
            return {
                "output": output,
                "returncode": -1,
                "exception_info": f"killed after {timeout or self.config.timeout:g} s",
            }
        return {"output": output, "returncode": ended.exit_code, "exception_info": ""}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """What the agent's prompts may name: the settings, and the sandbox's `uname`. Nothing of this host."""
        if self._uname is None:
            said = self._run("uname -s; uname -n; uname -r; uname -v; uname -m", "/", 30.0).output.decode(
                "utf-8", "replace"
            )
            self._uname = dict(
                zip(("system", "node", "release", "version", "machine"), said.splitlines(), strict=False)
            )
        return {**self.config.model_dump(), **self._uname, **kwargs}

    def serialize(self) -> dict[str, Any]:
        """What the agent stores of its environment."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def _run(self, command: str, cwd: str, timeout_s: float) -> ExecResult:
        running = self._rollout.box.run(
            f"cd {shlex.quote(cwd)} && bash -c {shlex.quote(command)}",
            timeout_s=timeout_s,
            max_output_bytes=self.config.max_output_bytes,
        )
        return asyncio.run_coroutine_threadsafe(running, self._loop).result()
