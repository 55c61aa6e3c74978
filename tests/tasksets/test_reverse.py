"""A patch turned around undoes the patch: git is the judge."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasksets.errors import TaskSetError
from tasksets.reverse import reverse_patch
from tests.tasksets.rows import PATCH

GIT = ("git", "-c", "core.autocrlf=false", "-c", "user.name=t", "-c", "user.email=t@example.org")


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run([*GIT, *arguments], cwd=folder, input=stdin, capture_output=True, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def commit(folder: Path, files: dict[str, bytes]) -> bytes:
    """Make `files` all there is in the repository, and give the id of the tree."""
    git(folder, "rm", "-rfq", "--ignore-unmatch", ".")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD^{tree}").strip()


def assert_undoes(folder: Path, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    git(folder, "init", "-q")
    tree = commit(folder, before)
    commit(folder, after)
    patch = git(folder, "diff", "-M", "HEAD~1", "HEAD")
    reversed_patch = reverse_patch(patch, "row")
    if reversed_patch:
        git(folder, "apply", "--index", "-", stdin=reversed_patch)
    assert tree == git(folder, "write-tree").strip()
    assert patch == reverse_patch(reversed_patch, "row") or b"rename" in patch


FILES = st.dictionaries(
    st.sampled_from(["a.py", "b.txt", "dir/c"]),
    st.lists(st.sampled_from([b"one\n", b"two\n", b"-- three\n", b"++ four\r\n", b"\n", b"@@ -1 +1 @@\n", b"end"])).map(
        b"".join
    ),
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=FILES, after=FILES)
def test_the_reverse_takes_the_tree_back(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    """Additions, deletions, edits, missing final newlines, CRLF and lines that look like headers are all undone."""
    assert_undoes(tmp_path_factory.mktemp("repo"), before, after)


def test_a_rename_with_an_edit_is_taken_back(tmp_path: Path) -> None:
    """Old and new names change places."""
    text = b"".join(b"line %d\n" % number for number in range(30))

    assert_undoes(tmp_path, {"a.py": text}, {"b.py": text.replace(b"line 7\n", b"seven\n")})


def test_what_cannot_be_turned_around_names_the_row() -> None:
    """Binary hunks carry one direction only where a row's text is concerned; a short hunk is no patch."""
    binary = b"diff --git a/x b/x\nindex 0..1 100644\nGIT binary patch\nliteral 0\n"

    with pytest.raises(TaskSetError, match=r"^my row: its patch holds b'GIT binary patch"):
        reverse_patch(binary, "my row")
    with pytest.raises(TaskSetError, match=r"^my row: line 3 of its patch opens a hunk"):
        reverse_patch(b"--- a/x\n+++ b/x\n@@ -1,5 +1 @@\n-a\n", "my row")


def test_turning_twice_gives_the_patch_again() -> None:
    """The plain case is its own inverse."""
    assert PATCH.encode() == reverse_patch(reverse_patch(PATCH.encode(), "row"), "row")
