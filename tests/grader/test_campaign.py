from __future__ import annotations

from pathlib import Path

import pytest

from grader.campaign import load
from grader.errors import UsageError

GOOD = """
taskset = "tasks.jsonl"
run = "nightly"
recipes = "recipes.jsonl"
patches = "patches/all.jsonl"
only = ["a", "b"]

[conditions]
egress = "open"
time_zone = "UTC"

[provider]
state_dir = "state"

[limits]
concurrency = 7
"""


def write(directory: Path, text: str | bytes) -> Path:
    file = directory / "campaign.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_paths_in_the_file_are_relative_to_the_file(tmp_path: Path) -> None:
    """A campaign file can be used from any working directory."""
    campaign = load(write(tmp_path, GOOD), {})

    assert str(tmp_path / "tasks.jsonl") == campaign.taskset
    assert tmp_path / "recipes.jsonl" == campaign.recipes
    assert str(tmp_path / "patches/all.jsonl") == campaign.patches
    assert tmp_path / "state" == campaign.provider.state_dir


def test_flags_win_over_the_file_one_by_one(tmp_path: Path) -> None:
    """A flag replaces its own setting and no other."""
    campaign = load(write(tmp_path, GOOD), {"conditions": {"egress": "denied", "locale": None}, "only": ["c"]})

    assert "denied" == campaign.conditions.egress
    assert "UTC" == campaign.conditions.time_zone
    assert campaign.conditions.locale is None
    assert ("c",) == campaign.only
    assert 7 == campaign.limits.concurrency


def test_words_and_hub_ids_are_no_paths(tmp_path: Path) -> None:
    """`reference`, `empty` and the id of a data set on the hub are left as they are."""
    campaign = load(write(tmp_path, 'taskset = "org/name"\nrun = "r"\npatches = "empty"'), {})

    assert ("org/name", "empty") == (campaign.taskset, campaign.patches)


def test_flags_alone_make_a_campaign() -> None:
    """No file is needed, and paths in flags stay relative to the working directory."""
    campaign = load(None, {"taskset": "tasks.jsonl", "run": "r", "provider": {"state_dir": None}})

    assert ("tasks.jsonl", None) == (campaign.taskset, campaign.provider.state_dir)


BASE = 'taskset = "t.jsonl"\nrun = "r"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(BASE + "[conditions]\negres = 'open'", "did you mean `egress`?", id="unknown key"),
        pytest.param(
            BASE + "zzzz = 1", "known here: provider, conditions, limits, taskset", id="unknown key without near one"
        ),
        pytest.param(BASE + "[conditions]\negress = 'no'", "`conditions.egress` is 'no'", id="not a choice"),
        pytest.param(BASE + "[limits]\nconcurrency = 'x'", "`limits.concurrency` is 'x'", id="wrong type"),
        pytest.param(BASE + "[limits]\nconcurrency = 0", "`limits.concurrency` is 0", id="out of range"),
        pytest.param(BASE + "conditions = 3", "`conditions` is 3", id="table expected"),
        pytest.param(BASE + "recipes = 3", "`recipes` is 3", id="path expected"),
        pytest.param('taskset = "t.jsonl"', "`run` is not given; add --run", id="missing"),
        pytest.param('taskset = "t.jsonl"\nrun = "../up"', "`run` is '../up'", id="run is no path"),
        pytest.param("taskset = ", "is not TOML", id="bad TOML"),
        pytest.param(b"run = '\xff'", "is not UTF-8 text (byte 7)", id="not text"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_file_key_and_remedy(tmp_path: Path, text: str | bytes, said: str) -> None:
    """Every mistake in a campaign file is told in the words of the file."""
    file = write(tmp_path, text)

    with pytest.raises(UsageError) as caught:
        load(file, {"conditions": {"time_zone": "UTC"}})

    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


def test_two_mistakes_are_told_together(tmp_path: Path) -> None:
    """A person corrects a file once, not once per mistake."""
    file = write(tmp_path, BASE + "a = 1\nb = 2")

    with pytest.raises(UsageError, match=r"`a` is not a setting.*\n.*`b` is not a setting"):
        load(file, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A campaign file that is not there is named."""
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read"):
        load(tmp_path / "none.toml", {})
