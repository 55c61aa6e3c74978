"""Recipes: how the image of a task is built where no registry has it. Parsing and values; nothing is built here.

A recipes file is JSON lines, one recipe per task. What decides the image (base, Python, source, install commands,
environment, pins) has a hash of its own, so that tasks which share it share one image. A recipe also says how the tests
run on that image and which ids count, since a release archive is near the base commit and not equal to it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tasksets.errors import TaskSetError
from tasksets.jsontext import JsonFault, load
from tasksets.task import Task, TestPlan


class RecipeError(TaskSetError):
    """A recipes file or a row of it cannot be used. The message names the file and the row."""


class SdistSource(BaseModel):
    """A release archive, fetched by name and version from the package registry that this machine uses."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sdist"]
    file: str = Field(
        pattern=r"^[A-Za-z0-9._]+(-[A-Za-z0-9._]+)*-[A-Za-z0-9._+!]+\.(tar\.gz|tgz|tar\.bz2|tar\.xz|zip)$"
    )
    """The archive's file name, `<name>-<version>.<suffix>`."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class DirectorySource(BaseModel):
    """A directory on this machine. `sha256` is over its content and is computed when the recipe is read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["directory"]
    path: str
    """Relative to the recipes file, or absolute."""
    sha256: str = ""


class Recipe(BaseModel):
    """One task's recipe, as its row says it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    instance_id: str = Field(min_length=1)
    repo: str = ""
    base: str = "host"
    """`host`, or an image reference as a sandbox spec takes it."""
    python: str = Field(pattern=r"^[0-9]+(\.[0-9]+){0,2}$")
    """`3.9.18`, or less of it where any release of that line does."""
    source: Annotated[SdistSource | DirectorySource, Field(discriminator="kind")]
    install: tuple[str, ...]
    """Shell commands, run in order in the source directory with the environment active."""
    env: Mapping[str, str] = Field(default_factory=dict)
    pins: tuple[str, ...] = ()
    """`name==version` of every package that the install commands are to give."""
    reinstall_after_patch: str | None = None
    """Shell command that makes a patched source take effect. None: the installation is editable."""
    test_cmd: str = Field(min_length=1)
    fail_to_pass: tuple[str, ...] | None = None
    """Overrides the task's ids. None: the task's own hold."""
    pass_to_pass: tuple[str, ...] | None = None
    parser: str | None = None
    """Name of the log parser where the task's row names none."""
    seconds_with_reference: float | None = None
    """How long the tests took where the recipe was made."""
    expected: Mapping[str, str] | None = None
    """Verdicts seen where the recipe was made, by kind of patch; for checks of the recipe itself."""

    @field_validator("pins")
    @classmethod
    def _pins_name_versions(cls, pins: tuple[str, ...]) -> tuple[str, ...]:
        for pin in pins:
            if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9._+!-]+", pin) is None:
                raise ValueError(f"pin {pin!r} is not name==version; remove it or spell it so")
        return pins

    @field_validator("env")
    @classmethod
    def _env_has_names(cls, env: Mapping[str, str]) -> Mapping[str, str]:
        refuse_no_name(env)
        return env

    @field_validator("install", "env", "reinstall_after_patch", "test_cmd")
    @classmethod
    def _is_text_for_a_shell(cls, value: tuple[str, ...] | Mapping[str, str] | str | None) -> object:
        refuse_no_text(
            (value,) if isinstance(value, str) else value.values() if isinstance(value, Mapping) else value or ()
        )
        return value

    @property
    def image_key(self) -> str:
        """SHA-256 (hex) of what decides the image. Recipes with one key share an image."""
        shape = {
            "base": self.base,
            "python": self.python,
            "source": self.source.model_dump(exclude={"path"}),
            "install": self.install,
            "env": dict(self.env),
            "pins": self.pins,
        }
        return _hash_json(shape)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the whole recipe."""
        return _hash_json(self.model_dump(mode="json", exclude={"source": {"path"}}))


def recipes_by_task(path: Path) -> dict[str, Recipe]:
    """The recipes of a JSON lines file, by task id. Raises `RecipeError`, naming the row."""
    recipes: dict[str, Recipe] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}; give a JSON lines file of recipes") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        recipe = _parse_row(line, f"{path}, row {number}", path.parent)
        if recipe.instance_id in recipes:
            raise RecipeError(f"{path}, row {number}: a second recipe for {recipe.instance_id}; keep one")
        recipes[recipe.instance_id] = recipe
    if not recipes:
        raise RecipeError(f"{path}: holds no recipe; give a JSON lines file with one per task")
    return recipes


_OWN_NETWORK = re.compile(r"\bunshare -n\s")
_NO_NETWORK_NEEDS_NO_UNSHARE = """\
unshare() {
  if [ "$1" = -n ] && [ -z "$(sed '1,2d; /^ *lo:/d' /proc/net/dev)" ]; then shift; "$@"; else command unshare "$@"; fi
}"""
"""Recipes that were made on a bare host cut the network with `unshare -n`, which no sandbox may call. A sandbox with
egress denied has no network to cut; where there is one the command fails as it would have."""


def with_recipe(task: Task, recipe: Recipe, image: str) -> Task:
    """`task` as `recipe` runs it, on the built `image`: its test command, its set-up, its ids.

    The log parser is the recipe's, else the task's own, else pytest's.
    """
    parser = recipe.parser or (task.plan.parser if task.plan else "parse_log_pytest")
    setup = recipe.reinstall_after_patch or ""
    if _OWN_NETWORK.search(recipe.test_cmd):
        setup = f"{_NO_NETWORK_NEEDS_NO_UNSHARE}\n{setup}"
    plan = TestPlan(setup, recipe.test_cmd, parser, reference_s=recipe.seconds_with_reference)
    if task.plan is not None:
        plan = dataclasses.replace(plan, test_files=task.plan.test_files, eval_type=task.plan.eval_type)
    return dataclasses.replace(
        task,
        image=image,
        plan=plan,
        fail_to_pass=task.fail_to_pass if recipe.fail_to_pass is None else recipe.fail_to_pass,
        pass_to_pass=task.pass_to_pass if recipe.pass_to_pass is None else recipe.pass_to_pass,
    )


def _parse_row(line: bytes, where: str, folder: Path) -> Recipe:
    try:
        recipe = Recipe.model_validate(load(line))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the row"
        raise RecipeError(f"{where}: {place}: {first['msg']} ({error.error_count()} fault(s) in this row)") from error
    except JsonFault as fault:
        raise RecipeError(f"{where}: {fault}") from fault
    if isinstance(recipe.source, SdistSource):
        return recipe
    path = (folder / recipe.source.path).absolute()
    found = tree_sha256(path) if path.is_dir() else None
    if found is None:
        raise RecipeError(f"{where}: source directory {path} does not exist; paths are relative to the recipes file")
    if recipe.source.sha256 not in {"", found}:
        raise RecipeError(f"{where}: {path} has the content hash {found}, not {recipe.source.sha256}")
    return recipe.model_copy(update={"source": DirectorySource(kind="directory", path=str(path), sha256=found)})


def tree_sha256(root: Path) -> str:
    """SHA-256 (hex) over the paths, types, executable bits and bytes under `root`, less `.git` and byte code."""
    total = hashlib.sha256()
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in {".git", "__pycache__"})
        for name in sorted(files + [name for name in names if Path(folder, name).is_symlink()]):
            path = Path(folder, name)
            status = path.lstat()
            if path.is_symlink():
                kind, content = b"l", os.fsencode(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                kind, content = b"x" if status.st_mode & 0o100 else b"f", path.read_bytes()
            else:
                continue
            relative = os.fsencode(path.relative_to(root))
            total.update(b"%d %s%s %d " % (len(relative), kind, relative, len(content)))
            total.update(content)
    return total.hexdigest()


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def refuse_no_name(env: Iterable[str]) -> None:
    """Raise `ValueError` for a name that is none of an environment variable."""
    for name in env:
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            raise ValueError(f"{name!r} is no name of an environment variable; correct it")


def refuse_no_text(texts: Iterable[str]) -> None:
    """Raise `ValueError` for a command, or the value of a variable, that a shell cannot take."""
    for text in texts:
        if re.search("[\0\ud800-\udfff]", text):
            raise ValueError("a command or variable holds a NUL or a lone surrogate, which no shell takes; remove it")
