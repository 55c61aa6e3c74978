from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.patch import Patch, parse
from grader.preflight.mutants import mutants
from tests.grader.tasks import git

BASE = "".join(f"line {n}\n" for n in range(1, 41))


def diff(folder: Path, old: dict[str, str], new: dict[str, str]) -> bytes:
    """git's own patch from `old` to `new`; the repository in `folder` is then at `old`."""
    git(folder, "init", "--quiet")
    _write(folder, old)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "base", "--allow-empty")
    for name in old:
        (folder / name).unlink()
    _write(folder, new)
    git(folder, "add", "--all")
    patch = git(folder, "diff", "--cached", "HEAD")
    git(folder, "reset", "--quiet", "--hard")
    return patch


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())


def applied(folder: Path, patch: bytes) -> dict[str, bytes]:
    """The tree with `patch` on it. Fails where git does not take it whole."""
    subprocess.run(["git", "apply", "--verbose"], input=patch, cwd=folder, check=True, capture_output=True)
    files = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file() and ".git" not in p.parts}
    git(folder, "reset", "--quiet", "--hard")
    git(folder, "clean", "-qfdx")
    return files


def edited(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_each_part_is_taken_out_by_itself(tmp_path: Path) -> None:
    """Two hunks, the second of two runs: the runs each, and that hunk whole."""
    new = edited(BASE, ("line 5\n", "five\n"), ("line 30\n", "thirty\n"), ("line 33\n", ""))
    patch = diff(tmp_path, {"a.py": BASE}, {"a.py": new})

    found = mutants(patch, 10)

    assert ["a.py:5", "a.py:30-32", "a.py:30", "a.py:33"] == [mutant.name for mutant in found]
    expected = [
        edited(BASE, ("line 30\n", "thirty\n"), ("line 33\n", "")),
        edited(BASE, ("line 5\n", "five\n")),
        edited(BASE, ("line 5\n", "five\n"), ("line 33\n", "")),
        edited(BASE, ("line 5\n", "five\n"), ("line 30\n", "thirty\n")),
    ]
    assert [{"a.py": text.encode()} for text in expected] == [applied(tmp_path, mutant.patch) for mutant in found]


def test_a_patch_of_one_part_has_no_mutant(tmp_path: Path) -> None:
    """Without its only part it would be the empty patch, which preflight tries anyway."""
    assert () == mutants(diff(tmp_path, {"a.py": BASE}, {"a.py": edited(BASE, ("line 5\n", "five\n"))}), 10)


def test_what_no_test_can_see_is_left_alone(tmp_path: Path) -> None:
    """Documentation, comments and blank lines make no mutants."""
    new = edited(BASE, ("line 5\n", "five\n"), ("line 20\n", "line 20\n# a comment\n\n"), ("line 38\n", "more\n"))
    texts = {"docs/a.py": BASE, "CHANGES": BASE, "README.md": BASE}
    changed = {name: edited(BASE, ("line 5\n", "five\n")) for name in texts}
    patch = diff(tmp_path, {"a.py": BASE, **texts}, {"a.py": new, **changed})

    assert ["a.py:5", "a.py:40"] == [mutant.name for mutant in mutants(patch, 10)]


def test_no_more_than_asked_for_and_spread_over_the_patch(tmp_path: Path) -> None:
    """A bound takes mutants from the whole patch, not only from its beginning."""
    new = BASE
    for n in (3, 13, 23, 33):
        new = edited(new, (f"line {n}\n", f"number {n}\n"))
    patch = diff(tmp_path, {"a.py": BASE}, {"a.py": new})

    assert ["a.py:3", "a.py:23"] == [mutant.name for mutant in mutants(patch, 2)]
    assert () == mutants(patch, 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a.py": "one\ntwo"}, {"a.py": "1\ntwo\nthree", "b.py": "x\n"}),
        ({"a.py": "one\n" + BASE + "end"}, {"a.py": "ONE\n" + BASE + "END"}),
        ({"gone.py": "x\n", "a.py": BASE}, {"a.py": edited(BASE, ("line 5\n", "five\n"))}),
        ({"a b.py": BASE}, {"a b.py": edited(BASE, ("line 5\n", "five\n"), ("line 30\n", "thirty\n"))}),
        (
            {"a.py": BASE.replace("\n", "\r\n")},
            {"a.py": BASE.replace("\n", "\r\n").replace("line 5\r\n", "").replace("30", "x")},
        ),
    ],
    ids=["no final newline", "ends changed", "a file goes", "a space in the name", "CRLF"],
)
def test_git_takes_every_mutant(tmp_path: Path, old: dict[str, str], new: dict[str, str]) -> None:
    """Also where a file has no final newline, comes, goes, has a space in its name, or CRLF."""
    patch = diff(tmp_path, old, new)
    whole = applied(tmp_path, patch)

    found = mutants(patch, 10)

    assert len(found) >= 2
    assert all(applied(tmp_path, mutant.patch) != whole for mutant in found)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    old=st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=30),
    new=st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=30),
)
def test_every_mutant_of_any_change_applies_and_undoes_something(
    tmp_path_factory: pytest.TempPathFactory, old: list[str], new: list[str]
) -> None:
    """git takes each mutant whole, our own parser too, and the tree that results is never the whole patch's."""
    folder = tmp_path_factory.mktemp("repo")
    patch = diff(folder, {"a.py": "".join(old)}, {"a.py": "".join(new)})
    whole = applied(folder, patch) if patch else {}

    for mutant in mutants(patch, 50):
        assert isinstance(parse(mutant.patch), Patch)
        assert applied(folder, mutant.patch) != whole
