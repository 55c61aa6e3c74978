"""Little OCI images written by hand, good and hostile, for the tests of this folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
PLAIN = "application/vnd.oci.image.layer.v1.tar"


def entry(name: str, data: bytes | None = None, **fields: Any) -> tuple[tarfile.TarInfo, bytes | None]:
    """A tar member; a regular file when `data` is given, else what `fields["type"]` says."""
    info = tarfile.TarInfo(name)
    info.mode = 0o644 if data is not None else 0o755
    info.mtime = 1_600_000_000
    info.size = len(data or b"")
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def folder(name: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes | None]:
    return entry(name, type=tarfile.DIRTYPE, **fields)


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes | None]:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes | None]:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def tar_of(members: Sequence[tuple[tarfile.TarInfo, bytes | None]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if data is not None else None)
    return out.getvalue()


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_layout(
    path: Path,
    layers: Sequence[bytes],
    *,
    media_type: str = GZIP,
    architecture: str = "amd64",
    env: Sequence[str] = ("PATH=/usr/bin",),
    diff_ids: Sequence[str] | None = None,
) -> str:
    """An OCI layout with one image (beside those that `path` has already). Gives the manifest's digest."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def add(data: bytes) -> dict[str, Any]:
        (blobs / sha256(data).removeprefix("sha256:")).write_bytes(data)
        return {"digest": sha256(data), "size": len(data)}

    described = []
    for layer in layers:
        packed = gzip.compress(layer, mtime=0) if media_type.endswith("gzip") else layer
        described.append({"mediaType": media_type, **add(packed)})
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": list(env), "WorkingDir": "/work"},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids or [sha256(layer) for layer in layers])},
    }
    manifest = add(
        json.dumps({"schemaVersion": 2, "config": add(json.dumps(config).encode()), "layers": described}).encode()
    )
    index_path = path / "index.json"
    index = json.loads(index_path.read_text()) if index_path.exists() else {"schemaVersion": 2, "manifests": []}
    index["manifests"].append({**manifest, "platform": {"architecture": architecture, "os": "linux"}})
    index_path.write_text(json.dumps(index))
    (path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return str(manifest["digest"])


def pack(folder_: Path, archive: Path) -> Path:
    """The layout directory as an OCI archive."""
    with tarfile.open(archive, "w") as tar:
        for member in sorted(folder_.rglob("*")):
            tar.add(member, arcname=str(member.relative_to(folder_)), recursive=False)
    return archive


def write_docker_save(archive: Path, layers: Sequence[bytes]) -> str:
    """An archive as `docker save` of old wrote it. Gives the config's digest."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]},
    }
    data = json.dumps(config).encode()
    names = [f"{number:064x}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": f"{sha256(data)[7:]}.json", "RepoTags": ["demo:1"], "Layers": names}]
    with tarfile.open(archive, "w") as tar:
        files = {f"{sha256(data)[7:]}.json": data, "manifest.json": json.dumps(manifest).encode()}
        for name, content in {**files, **dict(zip(names, layers, strict=True))}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return sha256(data)


def listing(tree: Path) -> dict[str, tuple[str, int, bytes]]:
    """Path to (type, permission bits, content or link target), for comparing trees."""
    found: dict[str, tuple[str, int, bytes]] = {}
    for path in sorted(tree.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            told = ("link", 0, str(path.readlink()).encode(errors="surrogateescape"))
        elif path.is_dir():
            told = ("directory", status.st_mode & 0o7777, b"")
        elif path.is_char_device():
            told = ("whiteout", 0, b"")
        else:
            told = ("file", status.st_mode & 0o7777, path.read_bytes())
        found[str(path.relative_to(tree))] = told
    return found
