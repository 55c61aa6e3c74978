"""Claims about the adapters that need no trainer: the plain function, and the patch in a completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grader.adapters.completion import Completion, patch_in
from grader.adapters.installed import refuse_older
from grader.adapters.plain import reward_function
from grader.advantages import advantages
from grader.errors import UsageError
from grader.scorer import Resample
from grader.syncscorer import SyncScorer
from tests.grader.groups import KILLED, REWARDS, TASK, make_toy

DIFF = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-```diff\n+```\n"


def test_a_plain_function_gives_numbers_and_none(tmp_path: Path) -> None:
    """Six rewards, a mean of six and two requests for another sample, as plain Python values."""
    toy = make_toy(tmp_path)
    asked: list[Resample] = []
    with toy.killing(), SyncScorer(toy.campaign, grounds=toy.grounds) as scorer:
        rewards = reward_function(scorer, on_resample=asked.extend)(TASK, toy.patches())

    assert REWARDS == rewards
    assert 0.5 == advantages(rewards).mean
    assert [(index, TASK) for index in KILLED] == [(again.index, again.task_id) for again in asked]


@pytest.mark.parametrize(
    ("completion", "patch"),
    [
        (f"I mend it.\n\n```diff\n{DIFF}```\nDone.", DIFF),
        (f"First\n```diff\nwrong\n```\nNo:\n~~~patch\n{DIFF}~~~", DIFF),
        (f"```diff\r\n{DIFF}```\r\n", DIFF),
        ("```diff\n```", ""),
        (DIFF, DIFF),
        ("I cannot.", "I cannot."),
        ("```python\nx\n```", "```python\nx\n```"),
        ([{"role": "user", "content": "?"}, {"role": "assistant", "content": f"```diff\n{DIFF}```"}], DIFF),
        ([{"role": "assistant", "content": [{"type": "text", "text": DIFF}, {"type": "image"}]}], DIFF),
        ([{"role": "assistant", "content": None}], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_the_last_diff_that_is_fenced_is_the_patch(completion: Completion, patch: str) -> None:
    """Byte for byte, fences inside it included; without one, the whole text is what is graded."""
    assert patch == patch_in(completion)


@pytest.mark.parametrize("wrong", [b"diff", {"role": "assistant", "content": DIFF}, 7, ["a", "b"]])
def test_what_is_no_completion_is_refused(wrong: Any) -> None:
    """It is the caller's mistake, said in a sentence."""
    with pytest.raises(UsageError, match="give its text, or the messages of a conversation"):
        patch_in(wrong)


def test_a_plain_function_takes_a_list(tmp_path: Path) -> None:
    """One diff is no group of letters."""
    toy = make_toy(tmp_path)
    with (
        SyncScorer(toy.campaign, grounds=toy.grounds) as scorer,
        pytest.raises(UsageError, match="the patches are given as `str`"),
    ):
        reward_function(scorer)(TASK, DIFF)
    assert 0 == toy.made


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        ("1.6", True),
        ("1.6.0rc1", True),
        ("1!0.2.1", False),
        ("2.0b1", True),
        ("1.5.9", False),
        ("0.9", False),
        ("main", False),
    ],
)
def test_a_version_is_read_whatever_its_form(monkeypatch: pytest.MonkeyPatch, version: str, taken: bool) -> None:
    """Pre-releases count as what they lead to; what is older, or cannot be read, is refused with what to install."""
    monkeypatch.setattr("grader.adapters.installed.metadata.version", {"trainer": version}.__getitem__)
    if taken:
        refuse_older("trainer", (1, 6), "takes None for 0")
    else:
        with pytest.raises(UsageError, match=r"takes None for 0; install trainer>=1\.6"):
            refuse_older("trainer", (1, 6), "takes None for 0")
