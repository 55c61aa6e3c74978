"""Unpacking layers: what they may hold arrives whole, and what would leave the layer is refused by name."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from sandbox.errors import ImageError
from sandbox.local.layers import unpack_layer
from sandbox.local.stack import LayerStack, is_opaque, is_whiteout, merge_layer
from tests.sandbox.local.images_by_hand import entry, folder, hard_link, listing, symlink, tar_of


def unpack(path: Path, *members: object, lower: tuple[Path, ...] = ()) -> Path:
    path.mkdir()
    unpack_layer(io.BytesIO(tar_of(members)), path, name="demo, layer 1 of 1", lower=lower)  # type: ignore[arg-type]
    return path


def test_files_folders_and_links_arrive_with_modes_times_and_bytes(tmp_path: Path) -> None:
    """Content, permission bits (set-user-id too), times, symbolic and hard links are as the layer says."""
    tree = unpack(
        tmp_path / "t",
        folder("bin", mode=0o755),
        entry("bin/su", b"\0\xff", mode=0o4755),
        hard_link("bin/su2", "bin/su"),
        symlink("lib", "usr/lib"),
        symlink("up", "../../../etc/passwd"),
        folder("sealed", mode=0o000, mtime=1_500_000_000),
        entry("sealed/x", b"in"),
    )

    assert listing(tree)["bin/su"] == ("file", 0o4755, b"\0\xff")
    assert (tree / "bin/su").stat().st_ino == (tree / "bin/su2").stat().st_ino
    assert 1_600_000_000 == (tree / "bin/su").stat().st_mtime
    assert "usr/lib" == str((tree / "lib").readlink())
    assert "../../../etc/passwd" == str((tree / "up").readlink())
    assert 1_500_000_000 == (tree / "sealed").stat().st_mtime
    assert b"in" == (tree / "sealed/x").read_bytes()


def test_names_of_every_kind_arrive(tmp_path: Path) -> None:
    """Long paths, 255-byte names, spaces, newlines and bytes that are not UTF-8 are kept."""
    deep = "/".join(["d" * 100] * 60)
    names = [f"{deep}/leaf", "n" * 255, "a b\nc", "caf\udce9", "ünïcode"]
    tree = unpack(tmp_path / "t", *(entry(name, b"1") for name in names))

    fd = os.open(tree, os.O_RDONLY)
    for part in deep.split("/"):
        below = os.open(part, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    assert stat.S_ISREG(os.stat("leaf", dir_fd=fd).st_mode)
    os.close(fd)
    found = {os.fsencode(path.name) for path in tree.iterdir()}
    assert {b"a b\nc", b"caf\xe9", "ünïcode".encode(), b"n" * 255} <= found


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ([entry("/etc/cron.d/x", b"!")], "absolute"),
        ([entry("a/../../x", b"!")], "leaves the layer"),
        ([symlink("a", ".."), entry("a/x", b"!")], "'a'"),
        ([symlink("a", "/"), symlink("b", "a"), entry("b/tmp/x", b"!")], "'b'"),
        ([symlink("a", "/tmp"), folder("a/b")], "'a'"),
        ([hard_link("x", "../../outside")], "leaves the layer"),
        ([hard_link("x", "/etc/passwd")], "absolute"),
        ([symlink("a", ".."), hard_link("x", "a/outside")], "nowhere in the image"),
        ([hard_link("x", "missing")], "nowhere in the image"),
        ([folder("d"), hard_link("x", "d")], "hard link to a directory"),
        ([entry("f", b""), entry("f/x", b"!")], "no directory"),
        ([entry("d/.wh...", b"")], "whiteout"),
        ([entry("n" * 256, b"!")], "cannot be unpacked"),
        ([entry("d/" * 2000 + "x", b"!")], "nested too deep"),
        ([symlink("a", ".."), entry("a/.wh.outside", b"")], "'a'"),
        ([symlink("a", ".."), entry("a/.wh..wh..opq", b"")], "'a'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_member_that_would_leave_the_layer_is_refused(tmp_path: Path, members: list[object], named: str) -> None:
    """Absolute paths, `..`, paths and links through symbolic links end in an ImageError, and nothing lies outside."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"untouched")

    with pytest.raises(ImageError, match=named):
        unpack(tmp_path / "t", *members)

    assert b"untouched" == outside.read_bytes()
    assert {"t", "outside"} == {path.name for path in tmp_path.iterdir()}


def test_a_link_as_a_member_replaces_and_is_not_written_through(tmp_path: Path) -> None:
    """A file whose name is a symbolic link of the same layer replaces the link; its target stays as it was."""
    target = tmp_path / "target"
    target.write_bytes(b"mine")

    tree = unpack(tmp_path / "t", symlink("x", str(target)), entry("x", b"layer's"))

    assert b"mine" == target.read_bytes()
    assert b"layer's" == (tree / "x").read_bytes()
    assert not (tree / "x").is_symlink()


def test_devices_and_fifos_are_skipped_and_counted(tmp_path: Path) -> None:
    """What an ordinary user may not make is left out, and the count says so."""
    members = [entry("dev/sda", type=tarfile.BLKTYPE), entry("dev/null", type=tarfile.CHRTYPE)]
    members += [entry("pipe", type=tarfile.FIFOTYPE), entry("kept", b"1")]
    (tmp_path / "t").mkdir()

    stats = unpack_layer(io.BytesIO(tar_of(members)), tmp_path / "t", name="demo")

    assert {"device": 2, "fifo": 1} == stats.skipped
    assert ["kept"] == [path.name for path in (tmp_path / "t").iterdir()]


def test_whiteouts_become_what_overlayfs_reads(tmp_path: Path) -> None:
    """`.wh.x` becomes a character device 0:0, `.wh..wh..opq` an opaque directory; no marker file stays."""
    tree = unpack(
        tmp_path / "t",
        folder("d"),
        entry("d/.wh.gone", b""),
        entry("o/.wh..wh..opq", b""),
        entry("o/new", b"1"),
        entry(".wh.again", b""),
        entry("again/x", b"2"),
        entry("own/x", b"3"),
        entry(".wh.own", b""),
    )

    assert is_whiteout(tree / "d/gone")
    assert is_opaque(tree / "o")
    assert not is_opaque(tree / "d")
    assert is_opaque(tree / "again"), "removed below, then made anew: what lies below stays hidden"
    assert is_opaque(tree / "own"), "a whiteout hides the layers below, not the layer's own files"
    assert b"3" == (tree / "own/x").read_bytes()
    assert not [path for path in tree.rglob("*") if path.name.startswith(".wh.")]


def test_a_stack_of_layers_is_looked_up_as_the_overlay_shows_it(tmp_path: Path) -> None:
    """Whiteouts, opaque directories, and links that point from one layer into another are honoured."""
    low = unpack(
        tmp_path / "low",
        entry("usr/bin/python3.11", b"py"),
        entry("d/old", b"1"),
        entry("o/old", b"1"),
        symlink("bin", "usr/bin"),
        symlink("loop", "loop"),
    )
    high = unpack(
        tmp_path / "high",
        symlink("usr/bin/python3", "/bin/python3.11"),
        entry("d/.wh.old", b""),
        entry("o/.wh..wh..opq", b""),
        entry("d/new", b"2"),
    )
    stack = LayerStack([low, high])

    assert low / "usr/bin/python3.11" == stack.find("/bin/python3")
    assert high / "d/new" == stack.find("/d/./new")
    assert stack.find("/d/old") is None
    assert stack.find("/o/old") is None
    assert stack.find("/loop") is None
    assert low / "usr/bin/python3.11" == stack.find("/../../usr/bin/python3.11")


def test_merging_gives_the_tree_that_the_overlay_would_show(tmp_path: Path) -> None:
    """Flattened layers hold what is visible: removals done, opaque directories emptied first, kinds replaced."""
    low = unpack(tmp_path / "low", entry("a/x", b"1"), entry("o/old", b"1"), entry("f", b"1"), entry("gone/x", b"1"))
    high = unpack(
        tmp_path / "high",
        entry("a/y", b"2"),
        entry("o/.wh..wh..opq", b""),
        entry("o/new", b"2"),
        entry("f/now-a-folder", b"2"),
        entry(".wh.gone", b""),
        entry("n/.wh.nothing", b""),
    )
    whole = tmp_path / "whole"
    whole.mkdir()

    merge_layer(low, whole)
    merge_layer(high, whole)

    files = {path: told[2] for path, told in listing(whole).items() if told[0] != "directory"}
    assert {"a/x": b"1", "a/y": b"2", "o/new": b"2", "f/now-a-folder": b"2"} == files
    assert not is_opaque(whole / "o")


def test_a_hard_link_to_a_lower_layers_file_is_a_copy(tmp_path: Path) -> None:
    """Overlayfs cannot link across layers; the content and mode arrive all the same."""
    low = unpack(tmp_path / "low", entry("bin/tool", b"tool", mode=0o755))

    high = unpack(tmp_path / "high", hard_link("bin/alias", "bin/tool"), lower=(low,))

    assert {"bin/alias": ("file", 0o755, b"tool")} == {k: v for k, v in listing(high).items() if k != "bin"}


def test_sparse_files_stay_sparse(tmp_path: Path) -> None:
    """A GNU sparse member gets its holes back, and takes no room for them."""
    source = tmp_path / "source"
    with source.open("wb") as out:
        out.write(b"head")
        out.seek(64 << 20)
        out.write(b"tail")
    archive = tmp_path / "sparse.tar"
    status = os.spawnlp(os.P_WAIT, "tar", "tar", "-C", str(tmp_path), "--sparse", "-cf", str(archive), "source")
    assert 0 == status
    (tmp_path / "t").mkdir()

    with archive.open("rb") as stream:
        unpack_layer(stream, tmp_path / "t", name="demo")

    found = tmp_path / "t/source"
    assert source.read_bytes() == found.read_bytes()
    assert found.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("cut", [100, 700, 1500], ids=["in a header", "in a file", "between"])
def test_a_cut_layer_is_an_error(tmp_path: Path, cut: int) -> None:
    """A layer that ends early is never taken for a whole one."""
    data = tar_of([entry("a", b"x" * 1000), entry("b", b"y" * 1000)])
    (tmp_path / "t").mkdir()

    with pytest.raises(ImageError):
        unpack_layer(io.BytesIO(data[:cut]), tmp_path / "t", name="demo")


def test_a_broken_header_in_the_middle_is_not_the_end(tmp_path: Path) -> None:
    """tarfile alone would stop there without a word."""
    data = bytearray(tar_of([entry("a", b"x" * 512), entry("b", b"y" * 512)]))
    data[1024:1034] = b"garbage..."
    (tmp_path / "t").mkdir()

    with pytest.raises(ImageError, match="broken tar header"):
        unpack_layer(io.BytesIO(bytes(data)), tmp_path / "t", name="demo")


def test_a_huge_extended_header_is_not_read_into_memory(tmp_path: Path) -> None:
    """A pax header of gigabytes is refused by its size field, before a byte of it is read."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 8 << 30
    (tmp_path / "t").mkdir()

    with pytest.raises(ImageError, match="extended tar header"):
        unpack_layer(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT)), tmp_path / "t", name="demo")


def test_no_extended_attribute_of_a_layer_reaches_the_overlay(tmp_path: Path) -> None:
    """A layer cannot forge overlay marks by extended attributes; they are skipped and counted."""
    info, _ = folder("d")
    info.pax_headers = {"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.user.note": "n"}
    (tmp_path / "t").mkdir()

    stats = unpack_layer(io.BytesIO(tar_of([(info, None)])), tmp_path / "t", name="demo")

    assert [] == os.listxattr(tmp_path / "t/d")
    assert {"extended attributes": 1} == stats.skipped


def test_a_later_member_replaces_an_earlier_one(tmp_path: Path) -> None:
    """Of two members with one name the last counts, whatever kinds they are."""
    tree = unpack(
        tmp_path / "t",
        entry("x/deep/file", b"1"),
        folder("x/deep", mode=0o700),
        entry("x", b"now a file"),
        entry("y", b"1"),
        folder("y", mode=0o750),
        entry("y/z", b"2"),
    )

    assert b"now a file" == (tree / "x").read_bytes()
    assert stat.S_ISDIR((tree / "y").stat().st_mode)
    assert b"2" == (tree / "y/z").read_bytes()
