"""Writing a stored image as an OCI archive that other tools load. The archive is the same for the same image.

The law: owner 0:0, times as stored, names sorted, compression without a clock. Images on the host's programs are
refused: without this host they are nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import secrets
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.errors import ImageError
from sandbox.local.stack import is_opaque
from sandbox.local.store import ImageRecord, ImageStore

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


REPOSITORY = "localhost/sandman-grader"
"""Under which a node knows an image that was given no name: a registry that nobody pulls from by mistake."""


@dataclass(frozen=True)
class Exported:
    """What an export wrote. `digest` is the manifest's, by which a cluster names the image."""

    digest: str
    path: Path
    size_bytes: int
    reference: str
    """`name@sha256:<hex>`: what a pod says, once the archive is loaded into its node or pushed under that name."""


@dataclass(frozen=True)
class _Packed:
    """A layer as it goes into archives."""

    path: Path
    digest: str
    diff_id: str

    @property
    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": _LAYER, "digest": self.digest, "size": self.path.stat().st_size}


def export_image(store: ImageStore, digest: str, archive: Path, *, name: str | None = None) -> Exported:
    """Write the image `digest` of `store` as the OCI archive `archive`. As `export_images`."""
    return export_images(store, {digest: archive}, name=name)[digest]


def export_images(store: ImageStore, archives: Mapping[str, Path], *, name: str | None = None) -> dict[str, Exported]:
    """Write each image, by its digest, as the OCI archive beside it, which appears by one rename. A link stays, and
    what it leads to is replaced.

    A layer that images share is packed once. `name` is what tools call the image on loading it: a name with a tag as it
    is, one without gets the image's digest. None stands for `REPOSITORY`. Raises `ImageError`, before anything is
    written for an image that cannot be exported.
    """
    records = {digest: _exportable(store, digest) for digest in archives}
    for archive in archives.values():
        if not archive.parent.is_dir():
            raise ImageError(f"{archive.parent}: no such directory; make it, or name another file")
        if archive.exists() and not archive.is_file():
            raise ImageError(f"{archive}: is no regular file, which an archive would take the place of; name another")
    exported: dict[str, Exported] = {}
    packed: dict[str, _Packed] = {}
    with store.staging() as staging:
        for digest, archive in archives.items():
            with store.hold(digest):
                for layer in records[digest].layers:
                    if layer.digest not in packed:
                        packed[layer.digest] = _pack(store.layer_path(layer), staging / f"{len(packed)}.tar.gz")
                layers = [packed[layer.digest] for layer in records[digest].layers]
            exported[digest] = _write(records[digest], layers, archive, name or REPOSITORY)
    return exported


def _exportable(store: ImageStore, digest: str) -> ImageRecord:
    record = store.get(digest)
    if record.host_programs:
        raise ImageError(
            f"{record.name} stands on this host's own programs and is nothing without them; "
            "build the recipe on an OCI base to export it: `grader images base`, then `grader images build --base`",
            digest=digest,
        )
    return record


def _pack(tree: Path, packed: Path) -> _Packed:
    diff_id = write_layer(tree, packed)
    with packed.open("rb") as stream:
        return _Packed(packed, f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}", diff_id)


def _write(record: ImageRecord, layers: Sequence[_Packed], archive: Path, name: str) -> Exported:
    blobs: dict[str, Path | bytes] = {layer.digest: layer.path for layer in layers}
    config = _add(blobs, _CONFIG, _config(record, [layer.diff_id for layer in layers]))
    descriptors = [layer.descriptor for layer in layers]
    manifest = _add(
        blobs, _MANIFEST, {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": descriptors}
    )
    digest = str(manifest["digest"])
    tagged = ":" in name.rpartition("/")[2]  # before the last slash it is a registry's port
    by_digest = f"{name.rpartition(':')[0] if tagged else name}@{digest}"
    loaded_as = name if tagged else by_digest
    annotations = {"org.opencontainers.image.ref.name": loaded_as, "io.containerd.image.name": loaded_as}
    index = {"schemaVersion": 2, "manifests": [{**manifest, "platform": _platform(record), "annotations": annotations}]}
    target = archive.resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar:
            _member(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
            _member(tar, "index.json", json.dumps(index, sort_keys=True).encode())
            for blob, content in sorted(blobs.items()):
                _member(tar, f"blobs/sha256/{blob.removeprefix('sha256:')}", content)
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(digest, archive, archive.stat().st_size, by_digest)


def _config(record: ImageRecord, diff_ids: list[str]) -> dict[str, Any]:
    env = [f"{key}={value}" for key, value in record.env.items()]
    return {
        **_platform(record),
        "created": record.created,
        "config": {"Env": env, "WorkingDir": record.workdir, "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }


def _platform(record: ImageRecord) -> dict[str, str]:
    machine = record.architecture or os.uname().machine
    return {"architecture": _ARCHITECTURES.get(machine, machine), "os": "linux"}


def _add(blobs: dict[str, Path | bytes], media_type: str, value: Mapping[str, Any]) -> dict[str, Any]:
    data = json.dumps(value, sort_keys=True).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blobs[digest] = data
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _member(tar: tarfile.TarFile, name: str, content: Path | bytes) -> None:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    if isinstance(content, bytes):
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
        return
    info.size = content.stat().st_size
    with content.open("rb") as stream:
        tar.addfile(info, stream)


def write_layer(tree: Path, packed: Path) -> str:
    """Write a layer directory in overlayfs form as a gzip tar in OCI form. Gives the digest of the tar itself."""
    with packed.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as zipped:
        plain = _HashingWriter(zipped)
        with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
            links: dict[tuple[int, int], str] = {}
            for path in _walk(tree):
                _add_entry(tar, tree, path, links)
                tar.members.clear()  # type: ignore[attr-defined]  # it remembers every member otherwise
        return plain.digest()


class _HashingWriter(io.RawIOBase):
    def __init__(self, inner: gzip.GzipFile) -> None:
        self._inner = inner
        self._hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return self._inner.write(data)

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _walk(tree: Path) -> Iterator[Path]:
    """Every entry under `tree`, a directory before what is in it, in the order of the names' bytes."""
    with os.scandir(tree) as entries:
        found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in found:
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _add_entry(tar: tarfile.TarFile, tree: Path, path: Path, links: dict[tuple[int, int], str]) -> None:
    status = path.lstat()
    name = str(path.relative_to(tree))
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        info.name, info.mode, info.mtime = _beside(name, f".wh.{path.name}"), 0o644, 0
        tar.addfile(info)
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
        if is_opaque(path):
            tar.addfile(tarfile.TarInfo(f"{name}/.wh..wh..opq"))
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        tar.addfile(info)
    elif stat.S_ISREG(status.st_mode):
        first = links.setdefault((status.st_dev, status.st_ino), name) if status.st_nlink > 1 else name
        if first != name:
            info.type, info.linkname = tarfile.LNKTYPE, first
            tar.addfile(info)
        else:
            info.size = status.st_size
            with path.open("rb") as stream:
                tar.addfile(info, stream)


def _beside(name: str, other: str) -> str:
    parent = name.rpartition("/")[0]
    return f"{parent}/{other}" if parent else other
