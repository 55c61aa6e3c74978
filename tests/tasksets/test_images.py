"""Recipes: every fault names file and row, and the hash changes with what decides the image and with nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasksets.errors import TaskSetError
from tasksets.images import Recipe, recipes_by_task, tree_sha256, with_recipe
from tasksets.task import Task, TestPlan

ROW: dict[str, Any] = {
    "instance_id": "demo-1",
    "repo": "demo/demo",
    "python": "3.9.18",
    "source": {"kind": "sdist", "file": "demo-1.0rc1.tar.gz", "sha256": "a" * 64},
    "install": ["python -m pip install -q -e ."],
    "env": {"A": "1"},
    "pins": ["six==1.17.0"],
    "reinstall_after_patch": None,
    "test_cmd": "pytest -rA",
    "fail_to_pass": ["t.py::a"],
    "pass_to_pass": [],
}
TASK = Task(
    task_id="demo-1",
    repo="demo/demo",
    base_commit="0" * 40,
    version="1",
    image=None,
    reference_patch=b"p",
    test_patch=b"t",
    fail_to_pass=("row's",),
    pass_to_pass=("row's too",),
    plan=TestPlan(setup="conda activate x", test_command="tox", parser="parse_log_django"),
    problem_statement="",
    source="here",
    schema="s",
)


def write(folder: Path, *rows: object) -> Path:
    path = folder / "recipes.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def test_a_recipes_file_is_read_by_task(tmp_path: Path) -> None:
    """Blank lines are skipped; each recipe has what its row says, the base being `host` unless named."""
    recipes = recipes_by_task(write(tmp_path, ROW, "", {**ROW, "instance_id": "demo-2", "base": "oci:/base"}))

    assert ["demo-1", "demo-2"] == list(recipes)
    assert ("host", "oci:/base") == (recipes["demo-1"].base, recipes["demo-2"].base)
    assert ("python -m pip install -q -e .",) == recipes["demo-1"].install


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("{", "not JSON"),
        ("3", "the row"),
        ({**ROW, "python": "3.9; rm -rf /"}, "python"),
        ({**ROW, "surprise": 1}, "surprise"),
        ({k: v for k, v in ROW.items() if k != "test_cmd"}, "test_cmd"),
        ({**ROW, "source": {"kind": "git"}}, "source"),
        ({**ROW, "source": {**ROW["source"], "file": "../../x-1.tar.gz"}}, "source.sdist.file"),
        ({**ROW, "source": {**ROW["source"], "sha256": "short"}}, "source.sdist.sha256"),
        ({**ROW, "source": {"kind": "directory", "path": "nowhere"}}, "does not exist"),
        ({**ROW, "pins": ["-e git+https://x"]}, "name==version"),
        ({**ROW, "install": "pip install ."}, "install"),
        ({**ROW, "install": ["echo \ud800"]}, "lone surrogate"),
        ({**ROW, "test_cmd": "pytest \0"}, "NUL"),
        ({**ROW, "env": {"A=B": "x"}}, "'A=B'"),
    ],
    ids=str,
)
def test_a_fault_names_file_row_and_field(tmp_path: Path, row: object, named: str) -> None:
    """Each is one TaskSetError, which commands print in a sentence and end with status 2."""
    path = write(tmp_path, ROW, row)

    with pytest.raises(TaskSetError) as caught:
        recipes_by_task(path)

    assert f"{path}, row 2" in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, "9" * 5_000], ids=["deep", "long number"])
def test_json_that_cannot_be_read_is_a_fault_of_its_row(tmp_path: Path, value: str) -> None:
    """Nesting and numbers beyond what Python reads are no tracebacks."""
    (tmp_path / "recipes.jsonl").write_text(f'{{"instance_id": "a", "env": {value}}}\n')

    with pytest.raises(TaskSetError, match=r"recipes\.jsonl, row 1: is JSON that .*"):
        recipes_by_task(tmp_path / "recipes.jsonl")


def test_a_missing_file_and_a_second_recipe_are_refused(tmp_path: Path) -> None:
    """Two recipes for one task are a fault of the file, not a matter of order."""
    with pytest.raises(TaskSetError, match="nowhere"):
        recipes_by_task(tmp_path / "nowhere")
    with pytest.raises(TaskSetError, match="row 2: a second recipe for demo-1"):
        recipes_by_task(write(tmp_path, ROW, ROW))


@pytest.mark.parametrize(
    "change",
    [
        {"python": "3.9.19"},
        {"base": "sha256:" + "b" * 64},
        {"install": ["true"]},
        {"env": {"A": "2"}},
        {"pins": []},
        {"source": {**ROW["source"], "sha256": "b" * 64}},
    ],
    ids=str,
)
def test_what_decides_the_image_is_in_its_key(change: dict[str, Any]) -> None:
    """Any of them makes another image."""
    assert Recipe.model_validate(ROW).image_key != Recipe.model_validate({**ROW, **change}).image_key


@pytest.mark.parametrize(
    "change",
    [{"test_cmd": "x"}, {"fail_to_pass": []}, {"instance_id": "other"}, {"reinstall_after_patch": "pip install ."}],
    ids=str,
)
def test_how_tests_run_is_not_in_the_images_key(change: dict[str, Any]) -> None:
    """Tasks that differ only in their tests share an image; the recipe's own digest tells them apart."""
    one, other = Recipe.model_validate(ROW), Recipe.model_validate({**ROW, **change})

    assert one.image_key == other.image_key
    assert one.digest != other.digest


def test_a_directory_is_known_by_its_content(tmp_path: Path) -> None:
    """Bytes, names and executable bits count; times, byte code and `.git` do not, nor where it lies."""
    for name in ("one", "two"):
        (tmp_path / name / "pkg").mkdir(parents=True)
        (tmp_path / name / "pkg/m.py").write_text("x = 1\n")
        (tmp_path / name / "link").symlink_to("pkg")
    (tmp_path / "two/.git").mkdir()
    (tmp_path / "two/.git/HEAD").write_text("x")
    (tmp_path / "two/pkg/__pycache__").mkdir()
    (tmp_path / "two/pkg/__pycache__/m.pyc").write_text("x")
    rows = [{**ROW, "instance_id": name, "source": {"kind": "directory", "path": name}} for name in ("one", "two")]
    recipes = recipes_by_task(write(tmp_path, *rows))

    assert recipes["one"].image_key == recipes["two"].image_key
    before = tree_sha256(tmp_path / "one")
    (tmp_path / "one/pkg/m.py").chmod(0o755)
    changed = tree_sha256(tmp_path / "one")
    (tmp_path / "one/pkg/m.py").rename(tmp_path / "one/pkg/n.py")

    assert 3 == len({before, changed, tree_sha256(tmp_path / "one")})


def test_a_directory_that_changed_is_refused(tmp_path: Path) -> None:
    """A row may pin the content's hash; another content is an error that shows both."""
    (tmp_path / "src").mkdir()
    row = {**ROW, "source": {"kind": "directory", "path": "src", "sha256": "c" * 64}}

    with pytest.raises(TaskSetError, match="content hash"):
        recipes_by_task(write(tmp_path, row))


def test_a_recipe_decides_how_its_task_runs() -> None:
    """Image, command, set-up and ids are the recipe's; the parser is the row's unless the recipe names one."""
    recipe = Recipe.model_validate({**ROW, "reinstall_after_patch": "python -m pip install -q ."})

    task = with_recipe(TASK, recipe, "sha256:" + "d" * 64)

    plan = TestPlan("python -m pip install -q .", "pytest -rA", "parse_log_django", "/testbed")
    assert ("sha256:" + "d" * 64, plan) == (task.image, task.plan)
    assert (("t.py::a",), ()) == (task.fail_to_pass, task.pass_to_pass)
    assert b"p" == task.reference_patch


def test_a_recipe_without_ids_keeps_the_tasks() -> None:
    """None means that the row's ids hold; an empty list is an empty list."""
    recipe = Recipe.model_validate({k: v for k, v in ROW.items() if not k.endswith("_to_pass")})

    task = with_recipe(TASK, recipe, "host")

    assert (("row's",), ("row's too",)) == (task.fail_to_pass, task.pass_to_pass)


@pytest.mark.real
def test_the_real_recipes_are_all_read(real_data: Path) -> None:
    """63 recipes, which need 28 images."""
    recipes = recipes_by_task(real_data / "recipes.jsonl")

    assert 63 == len(recipes)
    assert 28 == len({recipe.image_key for recipe in recipes.values()})
    assert all(recipe.fail_to_pass for recipe in recipes.values())
