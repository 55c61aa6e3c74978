"""Claims about `grader.rollout`: an agent at work, its patch, and the grading of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.campaign import Conditions, Limits, RewardPolicy
from grader.grade import grade_one
from grader.rollout import TaskUnfit, rollout
from grader.tools import anthropic_tools, openai_tools
from grader.verdict import Outcome
from sandbox import SandboxError
from tests.grader.tasks import make_task, toy

pytestmark = pytest.mark.anyio


async def test_from_a_task_to_a_verdict_on_what_the_agent_did(tmp_path: Path) -> None:
    """An agent's edits, by its tools, become a patch that a grading in another sandbox resolves."""
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo)
        async with rollout(task, provider) as r:
            seen = await r.call("edit", {"command": "view", "path": "/testbed/sums.py"})
            assert "result -= number" in seen.text
            arguments = {"path": "/testbed/sums.py", "old": "result -= number", "text": "result += number"}
            assert not (await r.call("edit", {"command": "replace", **arguments})).is_error
            ran = await r.call("bash", {"command": "python3 -B -c 'import sums; print(sums.total([3, 4]))'"})
            assert ran.text == "7\n[exit code 0]"
            extraction = await r.extract()
        assert extraction.faithful and extraction.carried == (b"sums.py",)
        graded = await grade_one(
            task,
            extraction.submission(task.task_id, "an agent"),
            provider=provider,
            conditions=Conditions(),
            limits=Limits(),
            rewards=RewardPolicy(),
            logs_dir=None,
            canary=None,
            code_revision="",
        )
    assert graded.outcome is Outcome.RESOLVED, graded.reasons
    assert graded.evidence.never_used is not None


async def test_an_agent_that_does_nothing_gives_the_empty_patch(tmp_path: Path) -> None:
    """What the sandbox's own start and the scrub do is no change of the agent's."""
    async with toy(tmp_path) as (repo, provider), rollout(make_task(repo), provider) as r:
        extraction = await r.extract()
    assert (b"", True, (), ()) == (
        extraction.patch,
        extraction.faithful,
        extraction.differences,
        extraction.excluded,
    )


async def test_an_extraction_may_be_had_at_any_time(tmp_path: Path) -> None:
    """The sandbox goes on after an extraction, and the next one has what came since."""
    async with toy(tmp_path) as (repo, provider), rollout(make_task(repo), provider) as r:
        for name in ("one", "two"):
            await r.call("bash", {"command": f"echo {name} >{name}.txt"})
            last = await r.extract()
    assert (b"one.txt", b"two.txt") == last.carried


async def test_a_task_that_cannot_be_rolled_out_is_refused(tmp_path: Path) -> None:
    """A repository nested in the tree keeps its history: the task is refused, or taken as it is and reported."""
    async with toy(tmp_path) as (repo, provider):
        task = make_task(repo)
        (repo.path / "nested/.git").mkdir(parents=True)
        with pytest.raises(TaskUnfit, match="not scrubbed"):
            async with rollout(task, provider):
                pass
        async with rollout(task, provider, leaks="report") as r:
            assert ("nested/.git: a repository of its own, not scrubbed",) == r.scrubs[0].left


async def test_a_sandbox_that_ends_is_infrastructure(tmp_path: Path) -> None:
    """An extraction from a sandbox that is gone raises; it is never an empty patch."""
    async with toy(tmp_path) as (repo, provider), rollout(make_task(repo), provider) as r:
        box = r
    with pytest.raises(SandboxError):
        await box.extract()


async def test_a_models_mistakes_are_answers(tmp_path: Path) -> None:
    """Unknown tools, wrong arguments and edits that do not fit are told to the model."""
    async with toy(tmp_path) as (repo, provider), rollout(make_task(repo), provider) as r:
        for name, arguments, told in (
            ("python", {}, "there is no tool"),
            ("bash", {}, "command"),
            ("bash", {"command": "true", "timeout_s": "soon"}, "timeout_s"),
            ("edit", {"command": "view", "path": "sums.py"}, "path"),
            ("edit", {"command": "replace", "path": "/testbed/sums.py", "old": "no such text", "text": ""}, "not in"),
            ("edit", {"command": "undo", "path": "/testbed/sums.py"}, "no edit"),
        ):
            reply = await r.call(name, arguments)
            assert reply.is_error and told in reply.text, reply
        slow = await r.call("bash", {"command": "echo begun; sleep 60", "timeout_s": 0.5})
        assert slow.text.startswith("begun\n") and "killed after 0.5 s" in slow.text and not slow.is_error
        much = await r.call("bash", {"command": "seq 100000"})
        assert "bytes left out" in much.text and len(much.text) < 40_000


def test_the_schemas_are_those_of_the_apis() -> None:
    """Both forms hold the same JSON schema: an object that names its required properties and takes no others."""
    for ours, theirs in zip(openai_tools(), anthropic_tools(), strict=True):
        assert "function" == ours["type"]
        function = ours["function"]
        assert (function["name"], function["description"]) == (theirs["name"], theirs["description"])
        schema = function["parameters"]
        assert schema == theirs["input_schema"]
        assert ("object", False) == (schema["type"], schema["additionalProperties"])
        assert {"command"} <= set(schema["required"]) <= set(schema["properties"])
        assert all("description" in about for about in schema["properties"].values())
