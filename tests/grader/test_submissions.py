from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from grader.errors import UsageError
from grader.submissions import choose, read_predictions
from tasksets.taskset import TaskSet, open_taskset
from tests.grader.rows import task_row

DIFF = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"


def prediction(task_id: str = "demo__one-1", model: str = "m", patch: Any = DIFF) -> dict[str, Any]:
    return {"instance_id": task_id, "model_name_or_path": model, "model_patch": patch}


def jsonl(file: Path, *rows: Any) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@dataclass
class Files:
    directory: Path
    taskset: TaskSet


@pytest.fixture
def files(tmp_path: Path) -> Files:
    rows = [task_row("demo__one-1"), task_row("demo__two-2")]
    return Files(tmp_path, open_taskset(str(jsonl(tmp_path / "tasks.jsonl", *rows))))


def test_reference_and_empty_need_no_file(files: Files) -> None:
    """`reference` is each task's own patch, `empty` is no bytes."""
    reference = choose("reference", files.taskset, []).submissions
    empty = choose("empty", files.taskset, ["demo__two-2"]).submissions

    assert [files.taskset.get(i).reference_patch for i in files.taskset.ids()] == [s.patch for s in reference]
    assert [("demo__two-2", "empty", b"")] == [(s.task_id, s.model_name_or_path, s.patch) for s in empty]


def test_every_model_and_every_patch_is_graded_once(files: Files) -> None:
    """Several models and several patches per task all count; a repeat is graded once, with a note."""
    rows = [prediction(), prediction(model="n"), prediction(patch="other"), prediction()]

    chosen = choose(str(jsonl(files.directory / "p.jsonl", *rows)), files.taskset, [])

    assert [("m", DIFF.encode()), ("n", DIFF.encode()), ("m", b"other")] == [
        (s.model_name_or_path, s.patch) for s in chosen.submissions
    ]
    assert "1 repeated" in chosen.notes[0]


@pytest.mark.parametrize("form", ["jsonl", "list", "dict", "dict without ids"])
def test_the_official_forms_are_read_alike(files: Files, form: str) -> None:
    """JSONL, a JSON list and a JSON object by task id give the same submissions."""
    rows = [prediction(), prediction("demo__two-2", patch=None)]
    file = files.directory / ("p.jsonl" if form == "jsonl" else "p.json")
    if form == "jsonl":
        jsonl(file, *rows)
    elif form == "list":
        file.write_text(json.dumps(rows))
    else:
        left_out = ["instance_id"] if form == "dict without ids" else []
        told = {r["instance_id"]: {k: v for k, v in r.items() if k not in left_out} for r in rows}
        file.write_text(json.dumps(told))

    assert [("demo__one-1", DIFF.encode()), ("demo__two-2", b"")] == [
        (s.task_id, s.patch) for s in read_predictions(file)
    ]


def test_bytes_that_python_escaped_come_back(files: Files) -> None:
    """A patch read with `surrogateescape` and written as JSON is the same bytes here."""
    original = b"--- a/f\n+++ b/f\n+caf\xe9\n"
    file = jsonl(files.directory / "p.jsonl", prediction(patch=original.decode("utf-8", "surrogateescape")))

    assert [original] == [s.patch for s in read_predictions(file)]


def test_only_leaves_other_predictions_alone(files: Files) -> None:
    """A file for a larger set can be graded in part; a task that was asked for and has no prediction is told."""
    file = jsonl(files.directory / "p.jsonl", prediction(), prediction("other__set-1"))

    chosen = choose(str(file), files.taskset, ["demo__one-1", "demo__two-2"])

    assert ["demo__one-1"] == [s.task_id for s in chosen.submissions]
    assert "no prediction for demo__two-2" in chosen.notes[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("{", "p.jsonl:2: is not JSON", id="not JSON"),
        pytest.param("9" * 5_000, "p.jsonl:2: is JSON that cannot be read", id="long number"),
        pytest.param("[1]", "p.jsonl:2: is not an object", id="not an object"),
        pytest.param('{"model_patch": ""}', "p.jsonl:2: has no instance_id", id="no id"),
        pytest.param('{"instance_id": "demo__one-1", "model_patch": ""}', "has no model_name_or_path", id="no model"),
        pytest.param(
            '{"instance_id": "demo__one-1", "model_name_or_path": "m"}', "p.jsonl:2: has no model_patch", id="no patch"
        ),
        pytest.param(json.dumps(prediction(patch=3)), "p.jsonl:2: model_patch is int, not text", id="patch not text"),
        pytest.param(json.dumps(prediction(patch="a\ud800")), "lone surrogate (U+D800)", id="lone surrogate"),
        pytest.param(json.dumps(prediction(model="a\nb")), "must be printable text", id="model with a newline"),
        pytest.param(
            json.dumps(prediction("demo__oen-1")), "p.jsonl:2: 'demo__oen-1' (near: demo__one-1", id="unknown id"
        ),
    ],
)
def test_a_bad_prediction_is_refused_by_file_and_row(files: Files, line: str, said: str) -> None:
    """A prediction that cannot be graded is named, with what to do, before anything starts."""
    file = files.directory / "p.jsonl"
    file.write_text(json.dumps(prediction()) + "\n" + line + "\n")

    with pytest.raises(UsageError) as caught:
        choose(str(file), files.taskset, [])

    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_bytes_that_are_not_text_are_refused_by_row(files: Files) -> None:
    """A line that is not UTF-8 is named by its number."""
    file = files.directory / "p.jsonl"
    file.write_bytes(json.dumps(prediction()).encode() + b'\n{"a": "\xff"}\n')

    with pytest.raises(UsageError, match=r"p\.jsonl:2: is not UTF-8 at byte 8"):
        choose(str(file), files.taskset, [])


@pytest.mark.real
def test_the_published_patches_are_read_whole(real_data: Path) -> None:
    """All 77 published patches are read, byte for byte."""
    rows = [json.loads(line) for line in (real_data / "patches.jsonl").read_text().splitlines()]

    found = list(read_predictions(real_data / "patches.jsonl"))

    assert [row["model_patch"].encode() for row in rows] == [s.patch for s in found]
    assert 77 == len(found)
