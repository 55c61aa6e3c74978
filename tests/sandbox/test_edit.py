"""Edits of text files: what changes, and above all what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.client import ExecdClient
from sandbox.errors import FileRefused
from tests.execd.conftest import Running, on_each_python, running
from tests.sandbox.callers import client

__all__ = ["client", "on_each_python", "running"]  # fixtures

pytestmark = pytest.mark.anyio
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\nb\nc\n", "b", "B", b"a\nB\nc\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\nb\n", b"a\r\nx\r\nb\r\nc\r\n"),
        (b"a\r\nb\nc\r\nd\n", "b\nc\n", "b\nnew\nc\n", b"a\r\nb\nnew\nc\r\nd\n"),
        (b"a\r\nb\nc", "c", "c\nd", b"a\r\nb\nc\nd"),
        (BOM + b"a\tb\n", "a\tb", "a\t\tb", BOM + b"a\t\tb\n"),
        (b"no end", "end", "END", b"no END"),
        (b"a\n\n\nb\n", "a\n\n\nb", "a\nb", b"a\nb\n"),
        (b"one\r\ntwo\r\n", "\ntwo", "", b"one\r\n"),
        (b"x\ry\n", "x\ry", "z", b"z\n"),
        (b"lf\n", "lf", "l\r\nf", b"l\r\nf\n"),
        ("caf\xe9 \u2603\n".encode(), "\u2603", "\U0001f600", "caf\xe9 \U0001f600\n".encode()),
    ],
)
async def test_a_replacement_fits_into_its_file(  # noqa: PLR0917
    client: ExecdClient, tmp_path: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    """Line ends, BOM, tabs and a missing final newline are the file's; undo brings every byte back."""
    path = tmp_path / "f"
    path.write_bytes(before)
    await client.edit.replace(str(path), old, new)
    assert after == path.read_bytes()
    await client.edit.undo(str(path))
    assert before == path.read_bytes()


@pytest.mark.parametrize(
    ("before", "line", "text", "after"),
    [
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\r\nb\r\n", 1, "x\ny\n", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"a\nb", 2, "x\n", b"a\nb\nx"),
        (b"a", 1, "x\ny", b"a\nx\ny"),
        (b"", 0, "x\n", b"x\n"),
        (BOM + b"a\r\n", 0, "x\n", BOM + b"x\r\na\r\n"),
    ],
)
async def test_whole_lines_are_inserted(  # noqa: PLR0917
    client: ExecdClient, tmp_path: Path, before: bytes, line: int, text: str, after: bytes
) -> None:
    """What is inserted has the ends of its neighbours; a file without a final newline goes on without one."""
    path = tmp_path / "f"
    path.write_bytes(before)
    await client.edit.insert(str(path), line, text)
    assert after == path.read_bytes()
    await client.edit.undo(str(path))
    assert before == path.read_bytes()


@pytest.mark.parametrize(
    ("before", "old", "code"),
    [
        (b"a\nb\n", "c", "no_match"),
        (b"a\nb\na\n", "a", "many_matches"),
        (b"aaa", "aa", "many_matches"),
        (b"a\0b", "a", "not_text"),
        (b"caf\xe9", "c", "not_text"),
        ("a".encode("utf-16"), "a", "not_text"),
        (b"a", "", "bad_argument"),
    ],
)
async def test_what_cannot_be_edited_stays(
    client: ExecdClient, tmp_path: Path, before: bytes, old: str, code: str
) -> None:
    """A refused edit changes nothing and says why."""
    path = tmp_path / "f"
    path.write_bytes(before)
    with pytest.raises(Exception, match=r".") as caught:
        await client.edit.replace(str(path), old, "x")
    assert code == getattr(caught.value, "code", None)
    assert before == path.read_bytes()


async def test_the_shell_is_named_where_an_edit_cannot_be_had(client: ExecdClient, tmp_path: Path) -> None:
    """A file that is no text is refused with the advice to use the shell, and a second match by its lines."""
    path = tmp_path / "f"
    path.write_bytes(b"\xff\xfe\0")
    with pytest.raises(FileRefused, match="shell"):
        await client.edit.view(str(path))
    path.write_bytes(b"x\ny\nx\n")
    with pytest.raises(FileRefused, match="lines 1, 3"):
        await client.edit.replace(str(path), "x", "z")


async def test_a_view_says_what_the_file_is(client: ExecdClient, tmp_path: Path) -> None:
    """Lines keep their ends, the BOM is told apart, and the hash may be given with the next edit."""
    path = tmp_path / "f"
    path.write_bytes(BOM + b"1\r\n2\n3")
    seen = await client.edit.view(str(path), first=2)
    assert ("2\n3", 2, 3, 3) == (seen.text, seen.first, seen.last, seen.lines)
    assert ("mixed", True, False) == (seen.ends, seen.bom, seen.final_newline)
    path.write_bytes(b"another\n")
    with pytest.raises(FileRefused) as caught:
        await client.edit.replace(str(path), "another", "x", expect_sha256=seen.sha256)
    assert "changed" == caught.value.code
    now = await client.edit.view(str(path))
    edited = await client.edit.replace(str(path), "another", "x\ny", expect_sha256=now.sha256)
    assert (1, 2) == (edited.first_line, edited.last_line)
    assert (await client.edit.view(str(path))).sha256 == edited.sha256


async def test_undo_goes_back_step_by_step_and_stops_at_a_change(client: ExecdClient, tmp_path: Path) -> None:
    """Undo takes the latest edit first, takes a creation away, and refuses a file that was changed otherwise."""
    path = tmp_path / "new/f"
    await client.edit.create(str(path), "a\n")
    with pytest.raises(FileRefused) as caught:
        await client.edit.create(str(path), "b\n")
    assert "exists" == caught.value.code
    path.chmod(0o751)
    await client.edit.insert(str(path), 1, "b\n")
    await client.edit.replace(str(path), "a\nb", "c")
    assert 0o751 == path.stat().st_mode & 0o777
    await client.edit.undo(str(path))
    assert b"a\nb\n" == path.read_bytes()
    path.write_bytes(b"mine\n")
    with pytest.raises(FileRefused) as caught:
        await client.edit.undo(str(path))
    assert ("changed", b"mine\n") == (caught.value.code, path.read_bytes())
    path.write_bytes(b"a\nb\n")
    await client.edit.undo(str(path))
    await client.edit.undo(str(path))
    assert not path.exists()
    with pytest.raises(FileRefused) as caught:
        await client.edit.undo(str(path))
    assert "nothing_to_undo" == caught.value.code


async def test_edits_work_on_every_python(on_each_python: Running, tmp_path: Path) -> None:
    """View, create, replace, insert and undo on each Python found."""
    path = tmp_path / "f"
    async with on_each_python.client() as client:
        await client.edit.create(str(path), "a\r\nb\r\n")
        await client.edit.insert(str(path), 2, "c")
        await client.edit.replace(str(path), "a\nb", "x\ny\nz")
        assert "x\r\ny\r\nz\r\nc\r\n" == (await client.edit.view(str(path))).text
        await client.edit.undo(str(path))
        assert b"a\r\nb\r\nc\r\n" == path.read_bytes()


LINES = st.lists(st.sampled_from(["", "a", "b", "\t", "\u00e9", " x "]), min_size=1, max_size=8)
ENDS = st.lists(st.sampled_from(["\n", "\r\n"]), min_size=8, max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=LINES, ends=ENDS, after=LINES, new=LINES, bom=st.booleans())
async def test_any_edit_leaves_every_other_byte(  # noqa: PLR0917
    client: ExecdClient, tmp_path: Path, before: list[str], ends: list[str], after: list[str], new: list[str], bom: bool
) -> None:
    """Whatever surrounds a replaced text stays byte for byte, and undo restores the whole."""
    head = (BOM if bom else b"") + "".join(map("".join, zip(before, ends, strict=False))).encode()
    tail = "".join(map("".join, zip(ends, after, strict=False))).encode()
    path = tmp_path / "f"
    path.write_bytes(head + b"<unique>" + tail)
    await client.edit.replace(str(path), "<unique>", "\n".join(new))
    data = path.read_bytes()
    assert data.startswith(head)
    assert data[len(head) :].endswith(tail)
    middle = data[len(head) : len(data) - len(tail)]
    assert "\n".join(new).encode() == middle.replace(b"\r\n", b"\n")
    await client.edit.undo(str(path))
    assert head + b"<unique>" + tail == path.read_bytes()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=LINES, ends=ENDS, line=st.integers(0, 8), new=LINES)
async def test_any_insertion_leaves_every_other_byte(  # noqa: PLR0917
    client: ExecdClient, tmp_path: Path, before: list[str], ends: list[str], line: int, new: list[str]
) -> None:
    """An insertion only adds: the file without the new bytes is the old one."""
    data = "".join(map("".join, zip(before, ends, strict=False))).encode()
    line = min(line, data.count(b"\n"))
    path = tmp_path / "f"
    path.write_bytes(data)
    if not "\n".join(new):
        return
    await client.edit.insert(str(path), line, "\n".join(new))
    offset = sum(map(len, data.splitlines(keepends=True)[:line])) if data else 0
    result = path.read_bytes()
    assert data[:offset] == result[:offset]
    assert data[offset:] == result[len(result) - len(data) + offset :]
