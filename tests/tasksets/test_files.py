"""Files of task sets: lazy, and plain about what is wrong with them."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasksets import TaskSetError, open_taskset
from tests.tasksets.rows import swe_gym, verified_2024, write_jsonl


def numbered(count: int) -> list[dict[str, Any]]:
    return [verified_2024(instance_id=f"lamp__lamp-{number}", version=str(number)) for number in range(count)]


def as_jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    return write_jsonl(folder / "set.jsonl", rows)


def as_json(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "set.json").write_text(json.dumps(rows, indent=1))
    return folder / "set.json"


def as_parquet(folder: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "set.parquet", row_group_size=2)
    return folder / "set.parquet"


@pytest.mark.parametrize("write", [as_jsonl, as_json, as_parquet])
def test_every_kind_of_file_gives_the_same_tasks(
    tmp_path: Path, write: Callable[[Path, list[dict[str, Any]]], Path]
) -> None:
    """Ids in order, length, membership, single rows, a walk, and the file's hash as revision."""
    path = write(tmp_path, numbered(5))

    taskset = open_taskset(str(path))

    assert tuple(f"lamp__lamp-{number}" for number in range(5)) == taskset.ids()
    assert 5 == len(taskset)
    assert "lamp__lamp-4" in taskset
    assert "3" == taskset.get("lamp__lamp-3").version
    assert list("01234") == [task.version for task in taskset]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == taskset.revision


def test_lists_survive_parquet(tmp_path: Path) -> None:
    """A list column gives the ids that were written."""
    path = as_parquet(tmp_path, [swe_gym(FAIL_TO_PASS=["a", "b"], PASS_TO_PASS=["c"])])

    task = open_taskset(str(path)).get("lamp__lamp-1")

    assert (("a", "b"), ("c",)) == (task.fail_to_pass, task.pass_to_pass)


def test_one_object_alone_is_a_set_of_one(tmp_path: Path) -> None:
    """A `.json` file may hold one row, pretty-printed."""
    (tmp_path / "one.json").write_text(json.dumps(verified_2024(), indent=2))

    assert ("lamp__lamp-1",) == open_taskset(str(tmp_path / "one.json")).ids()


def test_json_lines_in_a_json_file_are_read_as_lines(tmp_path: Path) -> None:
    """The content decides where the suffix misleads."""
    path = write_jsonl(tmp_path / "set.json", numbered(2))

    assert 2 == len(open_taskset(str(path)))


def test_byte_order_mark_carriage_returns_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    """A file that passed through a Windows editor gives the same tasks."""
    lines = [json.dumps(row).encode() for row in numbered(3)]
    path = tmp_path / "set.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + b"\r\n\r\n".join(lines) + b"\r\n")

    taskset = open_taskset(str(path))

    assert list("012") == [task.version for task in taskset]
    assert taskset.get("lamp__lamp-1").source.endswith("line 3")


def test_line_ends_of_unicode_do_not_end_a_row(tmp_path: Path) -> None:
    """U+2028, U+0085 and a form feed inside a patch stay inside their row."""
    text = "diff\u2028\u0085\x0c x"
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(verified_2024(patch=text), ensure_ascii=False) + "\n", encoding="utf-8")

    assert text.encode() == open_taskset(str(path)).get("lamp__lamp-1").reference_patch


def test_an_id_inside_another_field_is_not_the_rows_id(tmp_path: Path) -> None:
    """Text that looks like an id key, in a string or a nested object, chooses nothing."""
    row = verified_2024(problem_statement='{"instance_id": "evil"}', meta={"instance_id": "nested"})
    path = write_jsonl(tmp_path / "set.jsonl", [row])

    assert ("lamp__lamp-1",) == open_taskset(str(path)).ids()


def test_a_row_whose_only_id_is_nested_is_refused(tmp_path: Path) -> None:
    """The id must stand at the top of the row."""
    row = {key: value for key, value in verified_2024().items() if key != "instance_id"}
    path = write_jsonl(tmp_path / "set.jsonl", [row | {"meta": {"instance_id": "nested"}}])

    with pytest.raises(TaskSetError, match=r"set\.jsonl, line 1"):
        open_taskset(str(path)).get("nested")


@pytest.mark.parametrize("write", [as_jsonl, as_json, as_parquet])
def test_an_id_given_twice_names_both_rows(tmp_path: Path, write: Callable[[Path, list[dict[str, Any]]], Path]) -> None:
    """One id is one task."""
    path = write(tmp_path, [*numbered(2), verified_2024(instance_id="lamp__lamp-0")])

    with pytest.raises(TaskSetError, match=r"(line|row) 3: instance_id 'lamp__lamp-0' is already (on line|in row) 1"):
        open_taskset(str(path))


GOOD = json.dumps(verified_2024()).encode()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("empty.jsonl", b"", "holds no rows"),
        ("blank.jsonl", b"\n \r\n\n", "holds no rows"),
        ("bom.jsonl", codecs.BOM_UTF8, "holds no rows"),
        ("cut.jsonl", GOOD + b"\n" + GOOD[:50] + b"\n", "line 2: is not JSON"),
        ("list.jsonl", b"[1]\n", "line 1: is JSON, but not an object"),
        ("noid.jsonl", b'{"repo": "x"}\n', "line 1: has no instance_id"),
        ("idtype.jsonl", b'{"instance_id": 5}\n', "line 1: has no instance_id"),
        ("binary.jsonl", b"\x7fELF\0\0\0", "is a binary file"),
        ("packed.jsonl", b"\x1f\x8b\x08", "is a binary file"),
        ("utf16.jsonl", "{}".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
        ("latin.jsonl", b'{"repo": "\xe9"}\n', "line 1: is not UTF-8 at byte 11"),
        ("deep.jsonl", b'{"a":' * 200_000 + b"\n", "line 1: is "),
        ("digits.jsonl", b'{"a": ' + b"1" * 5000 + b"}\n", "line 1: is JSON that cannot be read"),
        ("empty.json", b" \n", "holds no rows"),
        ("none.json", b"[]", "holds no rows"),
        ("scalar.json", b"3", "row 1: is not an object"),
        ("broken.json", b'[\n{"a": 1},\n{"b" 2}\n]', "at line 3, column 6"),
        ("deep.json", b"[" * 200_000, "nested too deeply"),
        ("empty.parquet", b"", "is not a Parquet file"),
        ("text.parquet", GOOD, "is not a Parquet file"),
    ],
)
def test_a_bad_file_is_refused_at_once_by_name(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    """The sentence begins with the file, and names the line where there is one."""
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(TaskSetError) as caught:
        open_taskset(str(path))

    assert str(caught.value).startswith(str(path))
    assert complaint in str(caught.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    suffix=st.sampled_from(["jsonl", "json", "parquet"]),
    pieces=st.lists(
        st.one_of(
            st.sampled_from(
                [GOOD, b"\n", b"\r\n", b"{", b"}", b"[", b",", b'"instance_id": "a"', b"\xff", codecs.BOM_UTF8]
            ),
            st.binary(max_size=5),
        )
    ),
)
def test_any_bytes_open_or_are_refused(tmp_path: Path, suffix: str, pieces: list[bytes]) -> None:
    """No content of a file raises anything but TaskSetError, neither on opening nor on reading every row."""
    path = tmp_path / f"any.{suffix}"
    path.write_bytes(b"".join(pieces))

    try:
        taskset = open_taskset(str(path))
        tasks = list(taskset)
    except TaskSetError as error:
        assert str(path) in str(error)
    else:
        assert len(taskset) == len(tasks) == len(set(taskset.ids()))


def test_a_fault_inside_a_row_is_told_when_the_row_is_read(tmp_path: Path) -> None:
    """Opening stays cheap; the other rows of the file can be used."""
    path = tmp_path / "set.jsonl"
    path.write_bytes(GOOD + b'\n{"instance_id": "lamp__lamp-2", "repo": tru}\n')

    taskset = open_taskset(str(path))

    assert "lamp__lamp-1" == taskset.get("lamp__lamp-1").task_id
    with pytest.raises(TaskSetError, match=r"set\.jsonl, line 2: is not JSON: Expecting value at column 41"):
        taskset.get("lamp__lamp-2")


def test_a_file_that_changes_underneath_is_refused(tmp_path: Path) -> None:
    """A row is never read out of another revision than the one that was opened."""
    path = as_jsonl(tmp_path, numbered(2))
    taskset = open_taskset(str(path))
    write_jsonl(path, numbered(3))

    with pytest.raises(TaskSetError, match="has changed since it was opened"):
        taskset.get("lamp__lamp-1")


def test_a_file_that_goes_away_is_named(tmp_path: Path) -> None:
    """The row that cannot be read says which file is gone."""
    path = as_jsonl(tmp_path, numbered(1))
    taskset = open_taskset(str(path))
    path.unlink()

    with pytest.raises(TaskSetError, match=r"set\.jsonl: cannot be read: No such file"):
        taskset.get("lamp__lamp-0")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any file")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    """What may not be read is said, with the reason."""
    path = as_jsonl(tmp_path, numbered(1))
    path.chmod(0)

    with pytest.raises(TaskSetError, match="cannot be read: Permission denied"):
        open_taskset(str(path))


def test_a_parquet_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """A table without ids is no task set."""
    path = as_parquet(tmp_path, [{"text": "x"}])

    with pytest.raises(TaskSetError, match="has no column instance_id"):
        open_taskset(str(path))


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("nowhere.jsonl", "nowhere.jsonl: there is no such file"),
        ("no/such.parquet", "no/such.parquet: there is no such file"),
        ("/abs/olute", "/abs/olute: there is no such file"),
        (".", ".: is a directory; name one"),
        ("", "is a directory"),
        ("/dev/zero", "/dev/zero: is no plain file"),
        ("x" * 300, "cannot be looked up: File name too long"),
        ("nul\0", "there is no such file"),
        ("a b", "a b: there is no such file"),
        ("nope", "nope: there is no such file; check the path, or name a data set of the hub as OWNER/NAME"),
    ],
)
def test_a_source_that_is_no_file_is_refused(
    source: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing files and directories are told apart, and nothing is looked up elsewhere."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(TaskSetError) as caught:
        open_taskset(source)

    assert complaint in str(caught.value)


def test_a_file_has_no_splits(tmp_path: Path) -> None:
    """A split is asked of the hub only."""
    with pytest.raises(TaskSetError, match="a file has no split 'dev'"):
        open_taskset(str(as_jsonl(tmp_path, numbered(1))), split="dev")


def test_an_unknown_id_lists_near_ones(tmp_path: Path) -> None:
    """A slip of the pen is answered with what was likely meant; nonsense with how to list."""
    taskset = open_taskset(str(as_jsonl(tmp_path, numbered(12))))

    with pytest.raises(TaskSetError, match=r"has no task 'lamp_lamp-11'; near ones are lamp__lamp-11, "):
        taskset.get("lamp_lamp-11")
    with pytest.raises(TaskSetError, match=r"has no task '€'; `grader tasks list` shows them all"):
        taskset.get("€")
    with pytest.raises(TaskSetError, match="has no task 'x'"):
        taskset.require(["lamp__lamp-1", "x"])
    with pytest.raises(TaskSetError, match="no task id was given"):
        taskset.require([])


def test_opening_imports_nothing_heavy_and_types_no_row(tmp_path: Path) -> None:
    """`datasets`, pyarrow and unidiff stay out of a process that reads JSON lines; a bad row does not matter yet."""
    path = write_jsonl(tmp_path / "set.jsonl", [{"instance_id": "lamp__lamp-9", "nothing": "else"}])
    program = (
        "import sys, tasksets\n"
        f"assert len(tasksets.open_taskset({str(path)!r})) == 1\n"
        "print(sorted({'datasets', 'pyarrow', 'unidiff', 'pydantic', 'swebench'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout
