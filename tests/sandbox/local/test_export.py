"""Exporting: what comes back from the archive is the image that was stored, and one image gives one archive."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from sandbox.errors import ImageError
from sandbox.local.export import export_image, export_images
from sandbox.local.stack import is_opaque
from sandbox.local.store import ImageStore
from tests.sandbox.local.images_by_hand import entry, folder, hard_link, listing, symlink, tar_of, write_layout

LOW = tar_of(
    [
        folder("bin", mode=0o711),
        entry("bin/su", b"\0\xff" * 100, mode=0o4755),
        hard_link("bin/su2", "bin/su"),
        symlink("lib", "usr/lib"),
        entry("caf\udce9 x\n", b"bytes in a name"),
        entry("d" * 90 + "/" + "n" * 200, b"long"),
        entry("old", b"1"),
        folder("o"),
    ]
)
HIGH = tar_of([entry(".wh.old", b""), entry("o/.wh..wh..opq", b""), entry("o/new", b"2")])


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    store = ImageStore(tmp_path / "store")
    write_layout(tmp_path / "layout", [LOW, HIGH], env=["PATH=/bin", "A=b=c"])
    store.resolve(f"oci:{tmp_path / 'layout'}")
    return store


def test_an_exported_image_comes_back_the_same(store: ImageStore, tmp_path: Path) -> None:
    """Every layer's entries, modes, times, links and whiteouts; environment and directory."""
    stored = store.list()[0]

    exported = export_image(store, stored.digest, tmp_path / "image.tar")
    again = ImageStore(tmp_path / "other").resolve(f"oci:{tmp_path / 'image.tar'}")

    original = store.stored(stored)
    assert exported.digest == again.digest
    assert (original.env, original.workdir, original.python) == (again.env, again.workdir, again.python)
    assert [listing(layer) for layer in original.layers] == [listing(layer) for layer in again.layers]
    low, high = again.layers
    assert is_opaque(high / "o")
    assert (low / "bin/su").stat().st_ino == (low / "bin/su2").stat().st_ino
    assert 1_600_000_000 == (low / "bin/su").stat().st_mtime


def test_an_archive_is_the_same_each_time(store: ImageStore, tmp_path: Path) -> None:
    """Byte for byte: no clock, no order of the disk, no owner of this machine."""
    digest = store.list()[0].digest

    export_image(store, digest, tmp_path / "one.tar")
    export_image(store, digest, tmp_path / "two.tar")

    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_an_archive_is_what_a_cluster_loads(store: ImageStore, tmp_path: Path) -> None:
    """OCI 1.0 layout: every blob is named by its digest, the index names the reference, files belong to 0:0."""
    archive = tmp_path / "image.tar"
    exported = export_image(store, store.list()[0].digest, archive, name="registry.example/demo:1")

    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert {"imageLayoutVersion": "1.0.0"} == json.loads(files["oci-layout"])
    (entry_,) = json.loads(files["index.json"])["manifests"]
    assert exported.digest == entry_["digest"]
    assert "registry.example/demo:1" == entry_["annotations"]["org.opencontainers.image.ref.name"]
    blobs = {name.rpartition("/")[2]: data for name, data in files.items() if name.startswith("blobs/")}
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in blobs.items())
    manifest = json.loads(blobs[exported.digest[7:]])
    config = json.loads(blobs[manifest["config"]["digest"][7:]])
    assert 2 == len(manifest["layers"]) == len(config["rootfs"]["diff_ids"])
    with tarfile.open(fileobj=io.BytesIO(blobs[manifest["layers"][1]["digest"][7:]])) as layer:
        assert {".wh.old", "o", "o/.wh..wh..opq", "o/new"} == set(layer.getnames())
        assert {(0, 0)} == {(member.uid, member.gid) for member in layer}


def test_a_failed_export_leaves_no_file(store: ImageStore, tmp_path: Path) -> None:
    """An unknown image, and a folder that is not there, are said; nothing half-written lies about."""
    with pytest.raises(ImageError, match="not in the store"):
        export_image(store, "sha256:" + "0" * 64, tmp_path / "x.tar")
    with pytest.raises(ImageError, match="no such directory"):
        export_image(store, store.list()[0].digest, tmp_path / "nowhere/x.tar")

    assert {"store", "layout"} == {path.name for path in tmp_path.iterdir()}


def test_an_archive_takes_no_place_but_a_files(store: ImageStore, tmp_path: Path) -> None:
    """What a link leads to is replaced and the link stays; a pipe, a device or a directory is left as it is."""
    digest = store.list()[0].digest
    link, file, pipe = tmp_path / "link", tmp_path / "file", tmp_path / "pipe"
    file.write_text("old")
    link.symlink_to(file)
    os.mkfifo(pipe)

    assert link == export_image(store, digest, link).path
    assert link.is_symlink()
    assert tarfile.is_tarfile(file)
    for taken in (pipe, tmp_path):
        with pytest.raises(ImageError, match="no regular file"):
            export_image(store, digest, taken)
    assert pipe.is_fifo()


def test_an_image_without_a_tag_is_loaded_under_its_digest(store: ImageStore, tmp_path: Path) -> None:
    """What the archive calls the image is what a pod has to say; a registry's port is no tag."""
    digest = store.list()[0].digest
    loaded: dict[str | None, str] = {}
    for name in (None, "registry.example:5000/team/task", "registry.example:5000/team/task:2"):
        exported = export_image(store, digest, tmp_path / "image.tar", name=name)
        with tarfile.open(exported.path) as tar:
            index = json.loads(tar.extractfile("index.json").read())  # type: ignore[union-attr]
        loaded[name] = index["manifests"][0]["annotations"]["io.containerd.image.name"]
        assert f"{name or 'localhost/sandman-grader'}".removesuffix(":2") + f"@{exported.digest}" == exported.reference

    assert f"localhost/sandman-grader@{exported.digest}" == loaded[None]
    assert f"registry.example:5000/team/task@{exported.digest}" == loaded["registry.example:5000/team/task"]
    assert "registry.example:5000/team/task:2" == loaded["registry.example:5000/team/task:2"]


def test_a_shared_layer_is_packed_once_and_is_the_same_in_both(store: ImageStore, tmp_path: Path) -> None:
    """Images that are exported together name a common layer by one digest, so that a node stores it once."""
    write_layout(tmp_path / "second", [LOW], env=["PATH=/bin"])
    store.resolve(f"oci:{tmp_path / 'second'}")
    archives = {image.digest: tmp_path / f"{number}.tar" for number, image in enumerate(store.list())}

    exported = export_images(store, archives, name="registry.example/tasks")

    layers: list[set[str]] = []
    for one in exported.values():
        with tarfile.open(one.path) as tar:
            manifest = json.loads(tar.extractfile(f"blobs/sha256/{one.digest[7:]}").read())  # type: ignore[union-attr]
        layers.append({layer["digest"] for layer in manifest["layers"]})
    assert 1 == len(set.intersection(*layers))
    assert {1, 2} == {len(each) for each in layers}
