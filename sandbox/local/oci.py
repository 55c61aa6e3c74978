"""Reading OCI images: a layout directory, an OCI archive, or an archive of `docker save`. Nothing is written here.

The law: every byte that leaves this module was checked against the digest that names it, or the reader is told by
`ImageError`. Covers Linux images with plain and gzip layers; no registry is ever asked.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from sandbox.errors import ImageError

_MAX_JSON = 4 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_INDEX_TYPES = {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def is_digest(text: str) -> bool:
    """Whether `text` is `sha256:<64 hex digits>`."""
    return _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True)
class OciLayer:
    """A layer blob. `blob` is its name in the source, `diff_id` the digest of the uncompressed tar."""

    blob: str
    diff_id: str
    compression: str
    """`""` or `gzip`."""


@dataclass(frozen=True)
class OciImage:
    """What a source says about one image. `digest` is the manifest's, or the config's where there is no manifest."""

    digest: str
    name: str
    layers: tuple[OciLayer, ...]
    env: Mapping[str, str]
    workdir: str
    architecture: str


class BlobSource(Protocol):
    """Named blobs, each opened as a stream."""

    path: Path

    def open(self, name: str) -> IO[bytes]:
        """The bytes under `name`. Raises `ImageError` when there are none."""
        ...

    def has(self, name: str) -> bool: ...


class _Directory:
    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        try:
            return (self.path / name).open("rb")
        except OSError as error:
            raise ImageError(f"{self.path}: {name} cannot be read ({error.strerror}); copy the layout anew") from error


class _Archive:
    """A tar archive by its table of contents: blobs are read in place, nothing is unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._members: dict[str, tarfile.TarInfo] = {}
        try:
            with tarfile.open(path, "r:") as tar:
                while (member := tar.next()) is not None:
                    self._members[member.name.removeprefix("./")] = member
                    tar.members.clear()  # type: ignore[attr-defined]
        except (tarfile.TarError, OSError) as error:
            raise ImageError(
                f"{path}: neither an OCI layout nor a plain tar archive ({error}); "
                "give an OCI layout directory, an OCI archive or the output of `docker save`, uncompressed"
            ) from error

    def _find(self, name: str) -> tarfile.TarInfo | None:
        for _ in range(8):  # `docker save` of old writes a shared layer as a link to another
            member = self._members.get(name)
            if member is None or member.isreg():
                return member
            parent = name.rpartition("/")[0]
            name = member.linkname if member.islnk() else _join(parent, member.linkname)
        return None

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def open(self, name: str) -> IO[bytes]:
        member = self._find(name)
        if member is None:
            raise ImageError(f"{self.path}: there is no {name!a} in it; save the image anew")
        return io.BufferedReader(_Slice(self.path, member.offset_data, member.size), 1 << 18)


class _Slice(io.RawIOBase):
    def __init__(self, path: Path, start: int, size: int) -> None:
        self._file = path.open("rb")
        self._file.seek(start)
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._left]
        count = self._file.readinto(view)
        self._left -= count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def open_source(path: Path) -> BlobSource:
    """The layout directory or archive at `path`. Raises `ImageError`."""
    if path.is_dir():
        return _Directory(path)
    if not path.exists():
        raise ImageError(f"{path}: no such file or directory; give the path of an OCI layout or archive")
    return _Archive(path)


def read_image(source: BlobSource, *, digest: str | None = None, architecture: str | None = None) -> OciImage:
    """The one image that `source` holds for this machine's architecture, or the one with that manifest `digest`.

    Raises `ImageError` when there is none, or more than one to choose from.
    """
    wanted = architecture or _ARCHITECTURES.get(platform.machine(), platform.machine())
    if source.has("index.json"):
        index = _read_json(source, "index.json", None)
        return _from_manifest(source, *_select(source, index, digest, wanted))
    if source.has("manifest.json"):
        return _from_docker_save(source)
    raise ImageError(f"{source.path}: holds neither index.json nor manifest.json; it is no image")


@contextmanager
def open_layer(source: BlobSource, layer: OciLayer, *, name: str) -> Iterator[IO[bytes]]:
    """The layer's uncompressed tar. Leaving the context normally reads it to its end and checks both digests.

    Raises `ImageError`.
    """
    with source.open(layer.blob) as raw:
        packed = _Hashing(raw)
        plain = _Hashing(gzip.GzipFile(fileobj=packed) if layer.compression == "gzip" else packed)
        yield io.BufferedReader(plain, 1 << 18)
        try:
            plain.drain()
            packed.drain()
        except (OSError, EOFError, zlib.error) as error:
            raise ImageError(f"{name}: the layer is cut or broken ({error}); fetch the image again") from error
    blob_digest = _digest_in_name(layer.blob)
    if blob_digest is not None and packed.digest() != blob_digest:
        raise ImageError(f"{name}: the layer's digest is {packed.digest()}, not {blob_digest}; fetch the image again")
    if plain.digest() != layer.diff_id:
        raise ImageError(f"{name}: the layer's diff id is {plain.digest()}, not {layer.diff_id}; fetch the image again")


class _Hashing(io.RawIOBase):
    """Passes bytes on and hashes them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        self._hash.update(data)
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        data: bytes = self._inner.read(size)
        self._hash.update(data)
        return data

    def drain(self) -> None:
        while self.read(1 << 20):
            pass

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _join(parent: str, relative: str) -> str:
    parts: list[str] = []
    for part in f"{parent}/{relative}".split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _digest_in_name(name: str) -> str | None:
    last = name.rpartition("/")[2].removesuffix(".json")
    return f"sha256:{last}" if is_digest(f"sha256:{last}") and ("blobs/" in name or name.endswith(".json")) else None


def _read_json(source: BlobSource, name: str, digest: str | None) -> Any:
    with source.open(name) as stream:
        data = stream.read(_MAX_JSON + 1)
    if len(data) > _MAX_JSON:
        raise ImageError(f"{source.path}: {name} is larger than {_MAX_JSON} bytes; such an image is refused")
    found = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if digest is not None and found != digest:
        raise ImageError(f"{source.path}: {name} has the digest {found}, not {digest}; fetch the image again")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImageError(f"{source.path}: {name} is not JSON ({error}); fetch the image again") from error


class _Shape:
    """Reads fields of parsed JSON, and says which one is wrong."""

    def __init__(self, source: BlobSource, name: str, value: Any) -> None:
        self._where = f"{source.path}: {name}"
        if not isinstance(value, dict):
            raise ImageError(f"{self._where} is not a JSON object; fetch the image again")
        self._value: dict[str, Any] = value

    def get(self, field: str, kind: type, default: Any = None) -> Any:
        value = self._value.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind):
            raise ImageError(f"{self._where}: field {field!r} is missing or of a wrong type; fetch the image again")
        return value

    def digest(self, field: str) -> str:
        value = str(self.get(field, str))
        if not is_digest(value):
            raise ImageError(f"{self._where}: {value[:100]!a} is not a sha256 digest; only those are supported")
        return value


def _select(source: BlobSource, index: Any, digest: str | None, wanted: str) -> tuple[str, str]:
    """The digest and name of the one manifest asked for, through nested indexes."""
    found: dict[str, str] = {}
    others: set[str] = set()
    pending = [(_Shape(source, "index.json", index), "")]
    for _ in range(64):
        if not pending:
            break
        shape, outer = pending.pop()
        for entry in shape.get("manifests", list):
            item = _Shape(source, "index", entry)
            annotations = item.get("annotations", dict, {})
            name = str(annotations.get("org.opencontainers.image.ref.name", "") or outer)
            own = item.digest("digest")
            if item.get("mediaType", str, "") in _INDEX_TYPES:
                nested = _read_json(source, _blob(own), own)
                pending.append((_Shape(source, own, nested), name))
                continue
            if annotations.get("vnd.docker.reference.type") == "attestation-manifest":
                continue
            about = _Shape(source, "index", item.get("platform", dict, {}))
            architecture = about.get("architecture", str, wanted)
            if digest == own or (
                digest is None and architecture == wanted and about.get("os", str, "linux") == "linux"
            ):
                found[own] = name
            else:
                others.add(f"{own} ({architecture})")
    if len(found) == 1:
        return next(iter(found.items()))
    if not found:
        sought = digest or f"linux/{wanted}"
        raise ImageError(f"{source.path}: no image for {sought}; it holds {', '.join(sorted(others)) or 'none'}")
    listed = ", ".join(f"{own} {name}".strip() for own, name in sorted(found.items()))
    raise ImageError(f"{source.path}: holds several images ({listed}); choose one by oci:{source.path}@sha256:<hex>")


def _from_manifest(source: BlobSource, digest: str, name: str) -> OciImage:
    manifest = _Shape(source, f"manifest {digest}", _read_json(source, _blob(digest), digest))
    config_digest = _Shape(source, "manifest's config", manifest.get("config", dict)).digest("digest")
    config = _read_json(source, _blob(config_digest), config_digest)
    blobs: list[tuple[str, str]] = []
    for entry in manifest.get("layers", list):
        item = _Shape(source, "manifest's layer", entry)
        media_type = item.get("mediaType", str)
        blobs.append((_blob(item.digest("digest")), _compression(source, media_type)))
    return _image(source, digest, name, config, blobs)


def _compression(source: BlobSource, media_type: str) -> str:
    if media_type.endswith(("+gzip", ".gzip")):
        return "gzip"
    if media_type.endswith((".tar", ".layer.v1.tar")):
        return ""
    if "zstd" in media_type:
        raise ImageError(f"{source.path}: zstd layers are not supported; save the image with gzip layers")
    raise ImageError(
        f"{source.path}: layer type {media_type[:100]!a} is not supported; save it with tar or gzip layers"
    )


def _from_docker_save(source: BlobSource) -> OciImage:
    entries = _read_json(source, "manifest.json", None)
    if not isinstance(entries, list) or len(entries) != 1:
        count = len(entries) if isinstance(entries, list) else 0
        raise ImageError(f"{source.path}: holds {count} images; save one image to an archive of its own")
    entry = _Shape(source, "manifest.json", entries[0])
    config_name = entry.get("Config", str)
    digest = _digest_in_name(config_name)
    config = _read_json(source, config_name, digest)
    if digest is None:
        raise ImageError(f"{source.path}: the config {config_name[:100]!a} is not named by its digest; save it anew")
    blobs: list[tuple[str, str]] = []
    for layer in entry.get("Layers", list):
        with source.open(str(layer)) as stream:
            magic = stream.read(4)
        if magic == b"\x28\xb5\x2f\xfd":
            raise ImageError(f"{source.path}: zstd layers are not supported; save the image with gzip layers")
        blobs.append((str(layer), "gzip" if magic[:2] == b"\x1f\x8b" else ""))
    tags = entry.get("RepoTags", list, []) or [""]
    return _image(source, digest, str(tags[0]), config, blobs)


def _image(source: BlobSource, digest: str, name: str, config: Any, blobs: list[tuple[str, str]]) -> OciImage:
    whole = _Shape(source, "config", config)
    diff_ids = _Shape(source, "config's rootfs", whole.get("rootfs", dict)).get("diff_ids", list)
    if len(diff_ids) != len(blobs) or not all(isinstance(one, str) and is_digest(one) for one in diff_ids):
        raise ImageError(f"{source.path}: the config's diff ids do not fit its {len(blobs)} layers; fetch it again")
    run = _Shape(source, "config's config", whole.get("config", dict, {}))
    variables = [str(one).partition("=") for one in run.get("Env", list, [])]
    layers = (OciLayer(blob, diff_id, kind) for (blob, kind), diff_id in zip(blobs, diff_ids, strict=True))
    return OciImage(
        digest=digest,
        name=name,
        layers=tuple(layers),
        env={key: value for key, _, value in variables if key},
        workdir=run.get("WorkingDir", str, "") or "/",
        architecture=whole.get("architecture", str, ""),
    )
