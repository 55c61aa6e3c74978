"""The image store: what it takes in is verified and whole, whoever else is using it, and what goes is really gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox.errors import ImageError
from sandbox.local.stack import is_opaque, is_whiteout
from sandbox.local.store import ImageRecord, ImageStore, LayerRecord, now
from tests.sandbox.local.images_by_hand import (
    GZIP,
    PLAIN,
    entry,
    folder,
    hard_link,
    listing,
    pack,
    sha256,
    symlink,
    tar_of,
    write_docker_save,
    write_layout,
)

LOW = tar_of([folder("usr"), entry("usr/bin/python3.11", b"#!", mode=0o755), entry("etc/old", b"1"), folder("o")])
HIGH = tar_of(
    [
        symlink("usr/bin/python3", "python3.11"),
        entry("etc/.wh.old", b""),
        entry("o/.wh..wh..opq", b""),
        hard_link("usr/bin/py", "usr/bin/python3.11"),
    ]
)
OTHER = tar_of([entry("other", b"2")])


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


@pytest.mark.parametrize("media_type", [GZIP, PLAIN])
def test_a_layout_directory_is_taken_in(store: ImageStore, tmp_path: Path, media_type: str) -> None:
    """Layers lie lowest first in overlayfs form; digest, environment, directory and Python are the image's own."""
    digest = write_layout(tmp_path / "layout", [LOW, HIGH], media_type=media_type, env=["PATH=/usr/bin", "A=b=c"])

    image = store.resolve(f"oci:{tmp_path / 'layout'}")

    assert digest == image.digest
    assert {"PATH": "/usr/bin", "A": "b=c"} == image.env
    assert ("/work", "/usr/bin/python3", False) == (image.workdir, image.python, image.host_programs)
    low, high = image.layers
    assert b"#!" == (low / "usr/bin/python3.11").read_bytes()
    assert is_whiteout(high / "etc/old")
    assert is_opaque(high / "o")
    assert ("file", 0o755, b"#!") == listing(high)["usr/bin/py"], "a hard link across layers is copied"


def test_archives_give_the_same_image(store: ImageStore, tmp_path: Path) -> None:
    """An OCI archive has the digest and layers of its layout; `docker save` the digest of its config."""
    digest = write_layout(tmp_path / "layout", [LOW, HIGH])
    archive = pack(tmp_path / "layout", tmp_path / "image.tar")
    saved = write_docker_save(tmp_path / "saved.tar", [LOW, HIGH])

    assert digest == store.resolve(f"oci:{archive}").digest
    image = store.resolve(f"oci:{tmp_path / 'saved.tar'}")
    assert saved == image.digest
    assert store.resolve(digest).layers == image.layers, "layers with one diff id are kept once"


def test_an_imported_image_is_known_by_its_digest(store: ImageStore, tmp_path: Path) -> None:
    """Bare digests and registry references find it; what was never imported is an error that says how."""
    digest = write_layout(tmp_path / "layout", [LOW])
    with pytest.raises(ImageError, match="grader images import"):
        store.resolve(f"registry.example/team/app@{digest}")

    store.resolve(f"oci:{tmp_path / 'layout'}")

    assert digest == store.resolve(digest).digest
    assert f"registry.example/team/app@{digest}" == store.resolve(f"registry.example/team/app@{digest}").reference


@pytest.mark.parametrize(
    "reference", ["ubuntu", "ubuntu:22.04", "sha256:12", "a@sha256:zz", "", "oci:/nowhere", "oci:"]
)
def test_a_reference_that_names_nothing_is_an_image_error(store: ImageStore, reference: str) -> None:
    """Tags, short digests and missing paths are refused in one sentence, never by a traceback of another kind."""
    with pytest.raises(ImageError):
        store.resolve(reference)


def test_an_unchanged_path_is_read_once_and_a_changed_one_again(store: ImageStore, tmp_path: Path) -> None:
    """The second resolve of a layout does not touch its blobs; another image at the same path is seen."""
    first = write_layout(tmp_path / "layout", [LOW])
    store.resolve(f"oci:{tmp_path / 'layout'}")
    for blob in (tmp_path / "layout/blobs/sha256").iterdir():
        blob.unlink()
    assert first == store.resolve(f"oci:{tmp_path / 'layout'}").digest

    (tmp_path / "layout/index.json").unlink()
    second = write_layout(tmp_path / "layout", [OTHER])

    assert second == store.resolve(f"oci:{tmp_path / 'layout'}").digest


def test_one_of_several_images_is_chosen_by_architecture_or_digest(store: ImageStore, tmp_path: Path) -> None:
    """The machine's architecture is taken; two for it are an error that shows how to choose."""
    layout = tmp_path / "layout"
    other = write_layout(layout, [OTHER], architecture="s390x")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    own = write_layout(layout, [LOW], architecture=machine)
    assert own == store.resolve(f"oci:{layout}").digest
    assert other == store.resolve(f"oci:{layout}@{other}").digest

    second = write_layout(layout, [LOW, HIGH], architecture=machine)

    with pytest.raises(ImageError, match="several images"):
        store.resolve(f"oci:{layout}")
    assert second == store.resolve(f"oci:{layout}@{second}").digest


@pytest.mark.parametrize("part", ["layer", "config", "manifest"])
def test_changed_bytes_are_refused(store: ImageStore, tmp_path: Path, part: str) -> None:
    """A blob that is not what its digest says ends in an ImageError, and nothing of the image is kept."""
    digest = write_layout(tmp_path / "layout", [LOW], media_type=PLAIN)
    blobs = tmp_path / "layout/blobs/sha256"
    sizes = sorted(blobs.iterdir(), key=lambda path: path.stat().st_size)
    layer = blobs / sha256(LOW)[7:]
    manifest = blobs / digest[7:]
    config = next(path for path in sizes if path not in {layer, manifest})
    blob = {"layer": layer, "config": config, "manifest": manifest}[part]
    data = blob.read_bytes()
    blob.write_bytes(data.replace(b"#!", b"!#") if part == "layer" else data + b" ")

    with pytest.raises(ImageError, match="digest"):
        store.resolve(f"oci:{tmp_path / 'layout'}")

    assert () == store.list()
    assert [] == list((store.root / "layers").iterdir())
    assert [] == [path for path in (store.root / "staging").iterdir() if path.is_dir()]


def test_a_wrong_diff_id_is_refused(store: ImageStore, tmp_path: Path) -> None:
    """The uncompressed tar is verified as well as the blob."""
    write_layout(tmp_path / "layout", [LOW], diff_ids=[sha256(HIGH)])

    with pytest.raises(ImageError, match="diff id"):
        store.resolve(f"oci:{tmp_path / 'layout'}")


def test_unsupported_layers_are_named(store: ImageStore, tmp_path: Path) -> None:
    """zstd is said to be unsupported, with what to do."""
    write_layout(tmp_path / "layout", [LOW], media_type="application/vnd.oci.image.layer.v1.tar+zstd")

    with pytest.raises(ImageError, match="zstd layers are not supported"):
        store.resolve(f"oci:{tmp_path / 'layout'}")


@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x8b\x08garbage", b"not a tar at all" * 100], ids=["empty", "gzip", "text"]
)
def test_a_file_that_is_no_archive_is_an_image_error(store: ImageStore, tmp_path: Path, content: bytes) -> None:
    """Whatever lies at the path, the message says what to give instead."""
    (tmp_path / "image.tar").write_bytes(content)

    with pytest.raises(ImageError, match=r"OCI layout|no image"):
        store.resolve(f"oci:{tmp_path / 'image.tar'}")


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "{}",
        "not json",
        '{"manifests": [{"digest": "sha256:../../x"}]}',
        '{"manifests": [3]}',
        '{"manifests": []}',
    ],
)
def test_a_malformed_index_is_an_image_error(store: ImageStore, tmp_path: Path, index: str) -> None:
    """Nothing that an index says chooses a path or raises an error of another kind."""
    (tmp_path / "index.json").write_text(index)

    with pytest.raises(ImageError):
        store.resolve(f"oci:{tmp_path}")


def test_removing_keeps_the_layers_that_others_use(store: ImageStore, tmp_path: Path) -> None:
    """A shared layer stays until its last image goes; then nothing is left but empty folders."""
    one = write_layout(tmp_path / "one", [LOW])
    two = write_layout(tmp_path / "two", [LOW, HIGH])
    shared = store.resolve(f"oci:{tmp_path / 'one'}").layers[0]
    store.resolve(f"oci:{tmp_path / 'two'}")

    store.remove(two)
    assert shared.is_dir()
    assert [one] == [record.digest for record in store.list()]

    store.remove(one)
    assert [] == [path for folder_ in ("layers", "images") for path in (store.root / folder_).iterdir()]
    with pytest.raises(ImageError, match="not in the store"):
        store.remove(one)


def test_an_image_in_use_is_not_removed(store: ImageStore, tmp_path: Path) -> None:
    """`hold` keeps an image, against another opener of the store as well."""
    digest = write_layout(tmp_path / "one", [LOW])
    store.resolve(f"oci:{tmp_path / 'one'}")

    with store.hold(digest), pytest.raises(ImageError, match="in use"):
        ImageStore(store.root).remove(digest)

    ImageStore(store.root).remove(digest)
    assert () == store.list()


def test_images_are_found_by_the_beginning_of_their_digest(store: ImageStore, tmp_path: Path) -> None:
    """Six digits suffice where they are unambiguous; fewer, or unknown ones, are refused."""
    digest = write_layout(tmp_path / "one", [LOW])
    store.resolve(f"oci:{tmp_path / 'one'}")

    assert digest == store.find(digest[:14]).digest
    assert digest == store.find(digest[7:13]).digest
    for bad in ("", "sha256:", digest[7:10], "f" * 64):
        with pytest.raises(ImageError, match="grader images list"):
            store.find(bad)


def test_only_the_owner_can_enter_the_store(store: ImageStore) -> None:
    """Layers hold set-user-id programs of other systems."""
    assert 0o700 == stat.S_IMODE(store.root.stat().st_mode)


def test_many_layers_are_flattened_to_fit_the_mount_options(store: ImageStore, tmp_path: Path) -> None:
    """An image of 127 layers becomes one directory that holds what the overlay would show."""
    layers = [tar_of([entry(f"f{number}", b"1"), entry(f".wh.f{number - 2}", b"")]) for number in range(127)]
    write_layout(tmp_path / "layout", layers, media_type=PLAIN)

    image = store.resolve(f"oci:{tmp_path / 'layout'}")

    assert 1 == len(image.layers)
    assert {"f125", "f126"} == set(listing(image.layers[0]))
    assert "127 layers" in image.notes["flattened"]


def _import(root: Path, reference: str, results: multiprocessing.Queue[object]) -> None:
    results.put(ImageStore(root).resolve(reference).layers)


def test_processes_that_import_at_once_agree(store: ImageStore, tmp_path: Path) -> None:
    """Four processes import one image at the same moment: one set of layers, no error, nothing left over."""
    write_layout(tmp_path / "layout", [LOW, tar_of([entry(f"d/{n}", b"x" * 1000) for n in range(500)]), HIGH])
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[object] = context.Queue()
    arguments = (store.root, f"oci:{tmp_path / 'layout'}", results)
    processes = [context.Process(target=_import, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)

    assert 1 == len(set(map(str, found)))
    assert [0] * 4 == [process.exitcode for process in processes]
    assert 3 == len([path for path in (store.root / "layers").iterdir() if path.is_dir()])
    assert [] == [path for path in (store.root / "staging").iterdir() if path.is_dir()]


SLOW_IMPORT = """
import sys, time
from pathlib import Path
from sandbox.local.store import ImageStore
with ImageStore(Path(sys.argv[1])).staging() as folder:
    (folder / "half").mkdir()
    (folder / "half" / "file").write_bytes(b"x")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_import_leaves_is_swept_by_the_next_open(store: ImageStore) -> None:
    """kill -9 in the middle leaves only staging; a living import's staging is never swept."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT, str(store.root)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert process.stdout is not None
    assert b"ready\n" == process.stdout.readline()
    ImageStore(store.root)
    assert 1 == len([path for path in (store.root / "staging").iterdir() if path.is_dir()])

    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    ImageStore(store.root)

    assert [] == [path for path in (store.root / "staging").iterdir() if path.is_dir()]
    assert () == store.list()


def test_a_layer_that_vanished_before_its_record_is_an_error(store: ImageStore) -> None:
    """A record never names a layer that is not there."""
    layer = LayerRecord(digest=sha256(b"gone"), size_bytes=0)
    record = ImageRecord(digest=sha256(b"image"), name="x", kind="oci", layers=(layer,), created=now())

    with pytest.raises(ImageError, match="removed meanwhile"):
        store.put(record, {})

    assert () == store.list()


def test_a_big_layer_is_unpacked_in_bounded_memory(store: ImageStore, tmp_path: Path) -> None:
    """256 MiB of layer, packed to little, take less than 64 MiB more memory than none."""
    write_layout(tmp_path / "small", [tar_of([entry("z", b"0")])])
    write_layout(tmp_path / "big", [tar_of([entry(f"z{n}", bytes(64 << 20)) for n in range(4)])])
    code = (
        "import resource, sys; from pathlib import Path; from sandbox.local.store import ImageStore\n"
        "ImageStore(Path(sys.argv[1])).resolve(sys.argv[2])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )

    def peak_kib(name: str) -> int:
        command = [sys.executable, "-c", code, str(store.root), f"oci:{tmp_path / name}"]
        return int(subprocess.run(command, capture_output=True, check=True, cwd=Path(__file__).parents[3]).stdout)

    began = time.monotonic()
    assert peak_kib("big") - peak_kib("small") < 64 << 10
    assert time.monotonic() - began < 120
