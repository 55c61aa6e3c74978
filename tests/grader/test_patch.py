"""Claims about `grader.patch`: what is read from a patch, and what is refused by name."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unidiff import PatchSet

from grader.patch import MAX_BYTES, ChangeKind, Patch, Rejected, RejectReason, parse

MODIFY = b"diff --git a/src/a.py b/src/a.py\n--- a/src/a.py\n+++ b/src/a.py\n@@ -1,2 +1,2 @@\n x\n-y\n+z\n"


def patch_of(data: bytes) -> Patch:
    parsed = parse(data)
    assert isinstance(parsed, Patch), parsed
    return parsed


def reason_of(data: bytes) -> RejectReason:
    parsed = parse(data)
    assert isinstance(parsed, Rejected), parsed
    return parsed.reason


def changes_of(data: bytes) -> list[tuple[bytes | None, bytes | None, ChangeKind]]:
    return [(change.old_path, change.new_path, change.kind) for change in patch_of(data).changes]


@pytest.mark.parametrize("data", [b"", b"\n", b" \n\t\r\n"])
def test_white_space_is_the_empty_patch(data: bytes) -> None:
    """A patch of white space only has no changes and is not refused."""
    assert patch_of(data).changes == ()


def test_bytes_are_kept() -> None:
    """A patch carries exactly the bytes that were submitted, whatever their encoding and line ends."""
    data = MODIFY.replace(b"+z", b"+\xff\xfe\r")
    assert data == patch_of(data).data


def test_final_newline_may_be_missing() -> None:
    """A patch whose last newline was stripped is a patch still."""
    assert changes_of(MODIFY) == changes_of(MODIFY[:-1])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (MODIFY, (b"src/a.py", b"src/a.py", ChangeKind.MODIFY)),
        (MODIFY.split(b"\n", 1)[1], (b"src/a.py", b"src/a.py", ChangeKind.MODIFY)),
        (b"--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n", (None, b"n", ChangeKind.ADD)),
        (b"--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", (b"n", None, ChangeKind.DELETE)),
        (b"diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n", (None, b"e", ChangeKind.ADD)),
        (b"diff --git a/e b/e\ndeleted file mode 100644\nindex e69de29..0000000\n", (b"e", None, ChangeKind.DELETE)),
        (b"diff --git a/s b/s\nold mode 100644\nnew mode 100755\n", (b"s", b"s", ChangeKind.MODE)),
        (
            b"diff --git a/a b.py b/c d.py\nsimilarity index 100%\nrename from a b.py\nrename to c d.py\n",
            (b"a b.py", b"c d.py", ChangeKind.RENAME),
        ),
        (b"diff --git a/x y b/x y\nold mode 100644\nnew mode 100755\n", (b"x y", b"x y", ChangeKind.MODE)),
        (
            b'diff --git "a/\\303\\244\\t\\"" "b/\\303\\244\\t\\""\nnew file mode 100644\n',
            (None, b'\xc3\xa4\t"', ChangeKind.ADD),
        ),
        (b"--- a/x y\t\n+++ b/x y\t\n@@ -1 +1 @@\n-1\n+2\n", (b"x y", b"x y", ChangeKind.MODIFY)),
        (b"--- a/f\t2020-01-01\n+++ b/f\t2020-01-02\n@@ -1 +1 @@\n-1\n+2\n", (b"f", b"f", ChangeKind.MODIFY)),
        (b"--- a/f\r\n+++ b/f\r\n@@ -1,2 +1,2 @@\r\n \r\n-1\r\n+2\r\n", (b"f", b"f", ChangeKind.MODIFY)),
        (
            b"diff --git a/i b/i\nindex 1..2 100644\nGIT binary patch\nliteral 3\nKcmZQz\n\nliteral 0\nHcmV?d\n\n",
            (b"i", b"i", ChangeKind.BINARY),
        ),
    ],
)
def test_one_change(data: bytes, expected: tuple[bytes | None, bytes | None, ChangeKind]) -> None:
    """Each kind of file section gives its paths, unquoted and without the a/ and b/, and its kind."""
    assert [expected] == changes_of(data)


def test_touched_paths_of_many_sections() -> None:
    """All sections of a patch are found, prose between them is skipped, and each path is listed once."""
    rename = b"diff --git a/o b/n\nsimilarity index 90%\nrename from o\nrename to n\n"
    data = b"From: me\nSubject: x\n\n---\n f | 1 +\n" + MODIFY + b"prose\n" + rename + MODIFY + b"-- \n2.39\n"
    assert patch_of(data).touched == (b"src/a.py", b"o", b"n")


def test_lines_of_a_hunk_are_no_headers() -> None:
    """Removed and added lines that look like file headers belong to their hunk."""
    data = (
        b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n--- a/../../x\n+++ b/../../y\n-Binary files a and b differ\n+@@ -1 +1 @@\n"
    )
    assert changes_of(data) == [(b"f", b"f", ChangeKind.MODIFY)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"I changed the file as you asked.\n", RejectReason.NOT_A_DIFF),
        (b"@@ -1 +1 @@\n-1\n+2\n", RejectReason.NOT_A_DIFF),
        (b"--- a/f\n+++ b/f\n", RejectReason.NOT_A_DIFF),
        (b"\x89PNG\0\0", RejectReason.NOT_TEXT),
        (MODIFY.replace(b"+z", b"+\0"), RejectReason.NOT_TEXT),
        (MODIFY.replace(b"src/a.py", b"../a.py"), RejectReason.PATH_ESCAPES),
        (MODIFY.replace(b"b/src/a.py", b"b//etc/passwd"), RejectReason.PATH_ESCAPES),
        (MODIFY.replace(b"+++ b/src/a.py", b"+++ /etc/passwd"), RejectReason.PATH_ESCAPES),
        (MODIFY.replace(b"src/a.py", b".git/hooks/pre-commit"), RejectReason.PATH_ESCAPES),
        (MODIFY.replace(b"src/a.py", b"sub/.GIT/config"), RejectReason.PATH_ESCAPES),
        (MODIFY.replace(b"+++ b/src/a.py", b'+++ "b/\\056\\056/x"'), RejectReason.PATH_ESCAPES),
        (b"diff --git a/o b/n\nrename from o\nrename to ../n\n", RejectReason.PATH_ESCAPES),
        (MODIFY[: -len(b"+z\n")], RejectReason.TRUNCATED_HUNK),
        (MODIFY.replace(b"-y", b"~y"), RejectReason.TRUNCATED_HUNK),
        (MODIFY.replace(b"-1,2 +1,2", b"-1,9 +1,9"), RejectReason.TRUNCATED_HUNK),
        (MODIFY.replace(b"-1,2 +1,2", b"-1,1 +1,3"), RejectReason.TRUNCATED_HUNK),
    ],
)
def test_refused_by_name(data: bytes, reason: RejectReason) -> None:
    """Each kind of unusable patch is refused under its own name."""
    assert reason == reason_of(data)


@pytest.mark.parametrize(
    "data",
    [
        b"diff --git a/i b/i\nnew file mode 100644\nindex 0..1\nBinary files /dev/null and b/i differ\n",
        b"diff --git a/i b/i\nindex 1..2 100644\nBinary files a/i and b/i differ\n",
        b"diff --git a/i b/i\nindex 0..1\nGIT binary patch\n",
    ],
)
def test_binary_changes_without_data_are_noted(data: bytes) -> None:
    """A binary change that carries no data is left to the apply ladder, and its line is told."""
    parsed = patch_of(MODIFY + data)
    assert (MODIFY.count(b"\n") + data.count(b"\n"),) == parsed.without_data
    assert b"i" in parsed.touched


@pytest.mark.parametrize("size", [b"268435457", b"9" * 5000])
def test_a_patch_that_inflates_without_bound_is_refused(size: bytes) -> None:
    """A small patch whose binary hunks claim more than a sandbox should unpack is refused by name."""
    block = b"literal %s\nKcmZQz\n\n" % size
    assert RejectReason.TOO_LARGE == reason_of(b"diff --git a/i b/i\nindex 1..2 100644\nGIT binary patch\n" + block)


def test_a_huge_patch_is_refused_whole() -> None:
    """A patch beyond the limit is refused by name; one at the limit is read."""
    assert reason_of(MODIFY + b"x" * (MAX_BYTES + 1 - len(MODIFY))) == RejectReason.TOO_LARGE
    assert changes_of(MODIFY) == changes_of(MODIFY + b"x" * (MAX_BYTES - len(MODIFY)))


@given(st.binary(max_size=300), st.integers(0, len(MODIFY)))
def test_any_bytes_get_an_answer(noise: bytes, at: int) -> None:
    """No bytes make the parser raise, and no path that it lets through leaves the tree."""
    parsed = parse(MODIFY[:at] + noise + MODIFY[at:])
    if isinstance(parsed, Patch):
        for path in parsed.touched:
            assert not path.startswith(b"/")
            assert b".." not in path.split(b"/")


names = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="/\0"), min_size=1, max_size=12
).filter(lambda name: name not in {".", ".."} and name.lower() != ".git")


@pytest.mark.slow
@given(st.sets(names, min_size=1, max_size=3), st.binary(max_size=60))
def test_git_and_the_parser_agree_on_paths(
    tmp_path_factory: pytest.TempPathFactory, files: set[str], body: bytes
) -> None:
    """What git writes for files of any name and content is read back with the same paths."""
    root = tmp_path_factory.mktemp("repo")
    subprocess.run(["git", "init", "-q", root], check=True)
    for name in files:
        (root / name).write_bytes(body)
    git = ["git", "-C", root, "-c", "core.autocrlf=false"]
    subprocess.run([*git, "add", "-A"], check=True, capture_output=True)
    shown = subprocess.run([*git, "diff", "--cached", "--binary", "--text" if b"\0" not in body else "--binary"],
                           check=True, capture_output=True)  # fmt: skip
    assert {name.encode() for name in files} == set(patch_of(shown.stdout).touched)


@pytest.mark.real
def test_real_patches_are_read(real_data: Path) -> None:
    """Every agents' patch and every row's two patches parse, and touch the files that unidiff finds."""
    rows = [json.loads(line) for line in (real_data / "swebench_verified.jsonl").read_bytes().splitlines()]
    texts = [text for row in rows for text in (row["patch"], row["test_patch"])]
    texts += [json.loads(line)["model_patch"] for line in (real_data / "patches.jsonl").read_bytes().splitlines()]
    assert len(texts) == 1077
    for text in texts:
        parsed = patch_of(text.encode())
        expected = {file.path.encode() for file in PatchSet(text)}
        found = {path for change in parsed.changes for path in [change.new_path or change.old_path]}
        assert expected == found
        stripped = patch_of(text.encode().rstrip(b"\n"))
        assert parsed.touched == stripped.touched


@pytest.mark.real
def test_patches_of_published_runs_are_read(real_data: Path) -> None:
    """The patch of every published log is read."""
    patches = sorted((real_data / "logs").rglob("patch.diff"))
    assert patches
    for path in patches:
        parsed = parse(path.read_bytes())
        assert isinstance(parsed, Patch), path
