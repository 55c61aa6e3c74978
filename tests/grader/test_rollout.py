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


async def test_lines_are_counted_as_edits_count_them(tmp_path: Path) -> None:
    """A form feed, a lone carriage return and Unicode's line ends are text: numbers shown are those that edits take."""
    text = "a\fb\nc\u2028d\re\x1cf\r\nlast\n\n"
    async with toy(tmp_path) as (repo, provider), rollout(make_task(repo), provider) as r:
        await r.box.write("/testbed/odd.txt", text.encode())
        shown = await r.call("edit", {"command": "view", "path": "/testbed/odd.txt"})
        assert "     1\ta\fb\n     2\tc\u2028d\re\x1cf\n     3\tlast\n     4\t\n[4 lines]" == shown.text
        await r.call("edit", {"command": "insert", "path": "/testbed/odd.txt", "after_line": 3, "text": "new\n"})
        third = {"command": "view", "path": "/testbed/odd.txt", "first_line": 3, "last_line": 4}
        assert "     3\tlast\n     4\tnew\n[5 lines]" == (await r.call("edit", third)).text


async def test_no_reply_floods_the_model(tmp_path: Path) -> None:
    """A view of more than is shown says how to ask for less; what is left out of an output is said where it was."""
    async with toy(tmp_path) as (repo, provider), rollout(make_task(repo), provider) as r:
        await r.box.write("/testbed/long.txt", b"line\n" * 100_000)
        refused = await r.call("edit", {"command": "view", "path": "/testbed/long.txt"})
        assert refused.is_error and "first_line" in refused.text and len(refused.text) < 1000
        part = {"command": "view", "path": "/testbed/long.txt", "first_line": 99_999}
        assert " 99999\tline\n100000\tline\n[100000 lines]" == (await r.call("edit", part)).text
        mixed = "printf 'a%.0s' $(seq 20000); printf '\u00e9%.0s' $(seq 20000)"
        head, _, tail = (await r.call("bash", {"command": mixed})).text.partition("\n[30000 bytes left out]\n")
        assert {"a"} == set(head) and "\u00e9" * 7000 in tail and "a" not in tail.partition("[")[0]


async def test_arguments_that_no_system_takes_are_answers(tmp_path: Path) -> None:
    """Zero bytes and lone surrogates, which a model's JSON may hold, are told to the model."""
    async with toy(tmp_path) as (repo, provider), rollout(make_task(repo), provider) as r:
        for odd in ("\0", "\ud800"):
            for name, arguments in (
                ("bash", {"command": f"echo {odd}"}),
                ("edit", {"command": "view", "path": f"/{odd}"}),
                ("edit", {"command": "create", "path": f"/testbed/{odd}", "text": ""}),
                ("edit", {"command": "replace", "path": "/testbed/sums.py", "old": odd, "text": ""}),
            ):
                assert (await r.call(name, arguments)).is_error, (name, arguments)


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
