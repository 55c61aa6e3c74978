"""Claims about `grader.patchtext`: the same bytes from memory and from a file, and what becomes of the file."""

from __future__ import annotations

import gc
import os
import pickle
import tempfile
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader import patchtext
from grader.extraction.host import HostFailed
from grader.patch import Patch, parse, without
from grader.patchtext import PIECE, PatchText

LINES = st.lists(
    st.sampled_from(
        [
            *(
                b"diff --git a/x b/x",
                b"diff --git a/y b/y",
                b"new file mode 100644",
                b"--- a/x",
                b"+++ b/x",
                b"+++ b/y",
            ),
            *(b"@@ -1 +1 @@", b"@@ -0,0 +1,2 @@", b"-a", b"+b", b" c", b"", b"\r", b"\\ No newline at end of file"),
            *(b"GIT binary patch", b"literal 5", b"Mc$_", b"Binary files a/x and b/x differ", b"prose", b"+" * 50),
        ]
    ),
    max_size=30,
).map(b"\n".join)


def nameless(data: bytes, folder: Path | None = None) -> IO[bytes]:
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - a text becomes its owner
    file.write(data)
    file.flush()
    return file


def in_a_file(data: bytes) -> PatchText:
    return PatchText(nameless(data))


def files_open() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@given(data=st.one_of(LINES, st.binary(max_size=300)), size=st.integers(1, 100), start=st.integers(0, 320))
def test_a_file_reads_as_memory_does(data: bytes, size: int, start: int) -> None:
    """Pieces of any size, from anywhere, and lines are those of the bytes; equal texts are equal wherever they lie."""
    for text in (PatchText(data), in_a_file(data)):
        assert (len(data), data) == (text.size, text.read())
        assert data[start:] == b"".join(text.pieces(start, size=size))
        assert data[: start // 2] == b"".join(text.pieces(0, start // 2, size=size))
        assert data.removesuffix(b"\n").split(b"\n") == (list(text.lines()) or [b""])
        assert PatchText(data) == text and hash(PatchText(data)) == hash(text)
        assert PatchText(data + b"x") != text and text != data


@given(data=LINES, size=st.integers(1, 40), drop=st.sampled_from([b"x", b"y"]))
def test_a_patch_is_read_the_same_wherever_its_pieces_end(data: bytes, size: int, drop: bytes) -> None:
    """What a patch is parsed to, and what is left of it without a path, does not depend on how its bytes come."""
    expected = parse(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patchtext, "_LINES_OF", size)
        found = parse(in_a_file(data))
        assert expected == found
        if isinstance(expected, Patch) and isinstance(found, Patch):
            assert without(expected, {drop}) == without(found, {drop})


def test_only_a_large_patch_keeps_a_file_and_it_has_no_name(tmp_path: Path) -> None:
    """Extractions can be kept by the thousand: few bytes hold no file; many hold one until the last reader is gone."""
    before = files_open()
    texts = [PatchText.written(nameless(b"x" * size, tmp_path)) for size in (0, PIECE, PIECE + 1)]
    assert (before + 1, []) == (files_open(), list(tmp_path.iterdir()))
    assert [b"x" * size for size in (0, PIECE, PIECE + 1)] == [text.read() for text in texts]
    del texts
    assert before == files_open()


def test_another_process_gets_the_bytes() -> None:
    """A pickled text is the same text, without the file."""
    text = in_a_file(b"some\nlines\n")
    assert text == pickle.loads(pickle.dumps(text))


def test_a_disk_that_loses_bytes_is_trouble_of_ours(tmp_path: Path) -> None:
    """A patch is whole or it is an error, never a shorter one."""
    file = (tmp_path / "patch").open("w+b")
    file.write(b"x" * 100)
    file.flush()
    text = PatchText(file)
    os.truncate(tmp_path / "patch", 50)
    with pytest.raises(HostFailed, match="lost bytes"):
        text.read()
