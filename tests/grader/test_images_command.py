"""`grader images`: what a person sees, with `--json` what a program reads, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grader.cli import main
from tests.sandbox.local.images_by_hand import entry, tar_of, write_layout


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    write_layout(tmp_path / "layout", [tar_of([entry("bin/python3", b"#!", mode=0o755)])], env=["PATH=/bin"])
    return tmp_path / "layout"


def images(tmp_path: Path, *words: str) -> int:
    return main(["images", *words, "--state-dir", str(tmp_path / "state")])


def test_an_image_is_imported_listed_exported_and_removed(
    tmp_path: Path, layout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command prints one JSON object per image; the digest's beginning is enough to name one."""
    assert 0 == images(tmp_path, "import", str(layout), "--json")
    imported = json.loads(capsys.readouterr().out)
    assert 0 == images(tmp_path, "list", "--json")
    assert imported == json.loads(capsys.readouterr().out)
    short = imported["digest"][:19]

    assert 0 == images(tmp_path, "export", short, str(tmp_path / "image.tar"), "--json")
    exported = json.loads(capsys.readouterr().out)
    assert (tmp_path / "image.tar").stat().st_size == exported["size_bytes"]

    assert 0 == images(tmp_path, "list")
    assert short in capsys.readouterr().out
    assert 0 == images(tmp_path, "remove", short)
    capsys.readouterr()
    assert 0 == images(tmp_path, "list", "--json")
    assert "" == capsys.readouterr().out


def test_what_cannot_be_done_is_one_sentence_and_a_code(
    tmp_path: Path, layout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 for what was typed or written wrongly, 4 for an image that is not there; no traceback."""
    recipes = tmp_path / "recipes.jsonl"
    recipes.write_text('{"instance_id": "x"}\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    cases = [
        (2, ("build", str(tmp_path / "empty.jsonl")), "empty.jsonl: holds no recipe"),
        (2, ("build", str(tmp_path / "nowhere.jsonl")), "nowhere.jsonl"),
        (2, ("build", str(recipes)), "row 1"),
        (2, ("remove", "0123456789"), "unknown"),
        (2, ("export", "0123456789", "x.tar"), "unknown"),
        (2, ("import", str(tmp_path / "nowhere")), "nowhere"),
    ]
    for code, words, named in cases:
        assert code == images(tmp_path, *words), words
        told = capsys.readouterr()
        assert named in told.err
        assert "" == told.out
        assert "Traceback" not in told.err


def test_an_unknown_task_lists_near_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is built before every id is found."""
    row = {
        "instance_id": "demo-1",
        "python": "3",
        "source": {"kind": "sdist", "file": "a-1.tar.gz", "sha256": "0" * 64},
        "install": [],
        "test_cmd": "true",
    }
    (tmp_path / "recipes.jsonl").write_text(json.dumps(row))

    assert 2 == images(tmp_path, "build", str(tmp_path / "recipes.jsonl"), "--only", "demo-2")

    assert "did you mean: demo-1?" in capsys.readouterr().err


@pytest.mark.slow
def test_recipes_are_built_and_a_failure_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line per recipe, with the image or the error; exit status 2 when one failed, 0 when all have theirs."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/f").write_text("x")
    row = {
        "python": "3",
        "source": {"kind": "directory", "path": "src"},
        "install": ["true"],
        "test_cmd": "true",
    }
    recipes = tmp_path / "recipes.jsonl"
    rows = [{**row, "instance_id": "bad", "install": ["echo broken; false"]}, {**row, "instance_id": "good"}]
    recipes.write_text("\n".join(map(json.dumps, rows)))

    assert 2 == images(tmp_path, "build", str(recipes), "--json")
    lines = {line["task_id"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert lines["bad"]["image"] is None
    assert "broken" in lines["bad"]["error"]
    assert lines["good"]["image"].startswith("sha256:")
    assert lines["good"]["error"] is None

    assert 0 == images(tmp_path, "build", str(recipes), "--only", "good", "--json")
    assert lines["good"]["image"] == json.loads(capsys.readouterr().out)["image"]


def test_what_cannot_be_exported_is_refused_before_it_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recipes on the host's programs, and a name with a tag, which several images would share."""
    source = {"kind": "sdist", "file": "a-1.tar.gz", "sha256": "0" * 64}
    row = {"instance_id": "demo-1", "python": "3", "source": source, "install": [], "test_cmd": "true"}
    recipes = tmp_path / "recipes.jsonl"
    recipes.write_text(json.dumps(row))
    export = ("build", str(recipes), "--export", str(tmp_path / "out"))

    assert 2 == images(tmp_path, *export)
    assert "demo-1 first, and cannot be exported; make a base" in capsys.readouterr().err
    assert 2 == images(tmp_path, *export, "--base", "sha256:" + "0" * 64, "--name", "registry.example:5000/a:1")
    assert "leave tag and digest out" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
