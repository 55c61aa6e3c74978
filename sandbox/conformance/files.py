"""Files and trees: every byte, both ways."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sandbox.conformance.subject import ALL_BYTES, Check, Subject, expect, expect_raises, output
from sandbox.errors import FileRefused
from sandbox.manifest import check


async def what_is_written_is_read_back(subject: Subject) -> None:
    """Every byte of small, empty and large files; ranges; parents are made; the mode is set and kept."""
    async with subject.provider.sandbox(subject.spec) as box:
        for data in (b"", ALL_BYTES, ALL_BYTES * 8192):
            await box.write("/tmp/deep/er/file", data)
            expect(True, data == await box.read("/tmp/deep/er/file"), f"{len(data)} bytes read back")
        expect(ALL_BYTES[10:30], await box.read("/tmp/deep/er/file", offset=10, limit=20), "a range")
        await box.write("/tmp/deep/er/file", b"#!/bin/sh\necho ran\n", mode=0o755)
        await box.write("/tmp/deep/er/file", b"#!/bin/sh\necho again\n")
        expect(b"again\n", await output(box, "/tmp/deep/er/file"), "the mode is kept")


async def a_missing_file_is_refused(subject: Subject) -> None:
    """Reading what is not there, or a directory, raises `FileRefused`."""
    async with subject.provider.sandbox(subject.spec) as box:
        for path in ("/no/such/file", "/tmp"):
            with expect_raises(FileRefused, f"reading {path}"):
                await box.read(path)


async def trees_travel_both_ways(subject: Subject) -> None:
    """A tree that is uploaded and downloaded again has the same files, links and modes."""
    with tempfile.TemporaryDirectory() as directory:
        there, back = Path(directory, "there"), Path(directory, "back")
        _make_tree(there)
        async with subject.provider.sandbox(subject.spec) as box:
            await box.upload(there, "/tmp/tree")
            expect(b"inner\n", await output(box, "cat /tmp/tree/sub/link"), "through the link")
            await box.download("/tmp/tree", back)
            await box.upload(there / "run.sh", "/tmp/one")
            expect(b"ran\n", await output(box, "/tmp/one"), "one file, its mode kept")
        expect(_manifest(there), _manifest(back), "the tree")


async def an_edit_changes_one_place(subject: Subject) -> None:
    """A replacement leaves every other byte, mixed line ends included; undo restores them; no match changes nothing."""
    before = b"one\r\ntwo\nthree"
    async with subject.provider.sandbox(subject.spec) as box:
        await box.write("/tmp/text", before)
        await box.edit.replace("/tmp/text", "two", "2")
        expect(b"one\r\n2\nthree", await box.read("/tmp/text"), "the replacement")
        with expect_raises(FileRefused, "replacing what is not there"):
            await box.edit.replace("/tmp/text", "two", "3")
        await box.edit.undo("/tmp/text")
        expect(before, await box.read("/tmp/text"), "undone")
        expect("three", (await box.edit.view("/tmp/text", first=3)).text, "the last line")


async def a_manifest_tells_what_changed(subject: Subject) -> None:
    """Two baselines of a tree differ exactly where a file was changed, made or removed."""
    async with subject.provider.sandbox(subject.spec) as box:
        await output(box, "mkdir /tmp/tree; cd /tmp/tree; echo 1 > kept; echo 2 > changed; echo 3 > removed")
        first = await box.baseline("/tmp/tree")
        await output(box, "cd /tmp/tree; echo 4 > changed; rm removed; echo 5 > made")
        second = await box.baseline("/tmp/tree")
        expect({b"changed", b"removed", b"made"}, set(check(first, second)), "the differences")


def _make_tree(top: Path) -> None:
    (top / "sub").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "sub" / "inner").write_bytes(b"inner\n")
    (top / "sub" / "link").symlink_to("inner")
    (top / "bytes é \n.bin").write_bytes(ALL_BYTES)
    (top / "run.sh").write_bytes(b"#!/bin/sh\necho ran\n")
    (top / "run.sh").chmod(0o755)


def _manifest(top: Path) -> dict[str, object]:
    manifest: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            manifest[name] = ("link", str(path.readlink()))
        else:
            manifest[name] = ("file", path.stat().st_mode & 0o777, path.read_bytes()) if path.is_file() else "directory"
    return manifest


CHECKS: tuple[Check, ...] = (
    what_is_written_is_read_back,
    a_missing_file_is_refused,
    trees_travel_both_ways,
    an_edit_changes_one_place,
    a_manifest_tells_what_changed,
)
