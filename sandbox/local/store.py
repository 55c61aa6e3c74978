"""The image store: unpacked layers and image records, content-addressed, under one directory.

    layers/<24 hex digits of the layer's digest>/   a tree in overlayfs form (names are short: mount options fit a page)
    images/<hex>.json                               one record per image
    references/<hex>.json                           which digest a path had when it was imported
    downloads/<sha256>/<file>                       verified source archives of recipes
    staging/                                        what is being unpacked; swept when its writer is gone

The law: a layer or record appears by one rename, whole, or not at all; several processes may use one store; an image in
use (`hold`) is not removed. The store trusts its own directory, which only its user can enter.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.errors import ImageError
from sandbox.local.image import StoredImage
from sandbox.local.layers import LayerStats, unpack_layer
from sandbox.local.oci import OciImage, OciLayer, is_digest, open_layer, open_source, read_image
from sandbox.local.scratch import usable
from sandbox.local.stack import LayerStack, merge_layer, remove_tree

MOUNT_OPTIONS_BYTES = 2600
"""How long the overlay options of an image's own layers may be: a page, less what a recipe and a sandbox add."""


_Opener = Callable[[OciLayer, str], AbstractContextManager[IO[bytes]]]


class LayerRecord(BaseModel):
    """One layer of an image: its digest and the size of its files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    size_bytes: int

    @property
    def folder(self) -> str:
        return self.digest.removeprefix("sha256:")[:24]


class ImageRecord(BaseModel):
    """What the store knows about an image; lies beside it as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    name: str
    """For people: the reference it was imported from, or the recipe's source and Python."""
    kind: Literal["oci", "recipe", "python"]
    layers: tuple[LayerRecord, ...]
    """Lowest first."""
    env: Mapping[str, str] = Field(default_factory=dict)
    workdir: str = "/"
    python: str = ""
    """Absolute path in the image; empty where the image has none."""
    host_programs: bool = False
    architecture: str = ""
    notes: Mapping[str, str] = Field(default_factory=dict)
    created: str
    """UTC, ISO 8601."""

    @property
    def size_bytes(self) -> int:
        return sum(layer.size_bytes for layer in self.layers)


class ImageStore:
    """The store under `root`, made if missing. Opening it sweeps what dead writers left in staging.

    Raises `ProviderUnavailable` where `root` cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.downloads = self.root / "downloads"
        with usable(self.root):
            for folder in ("layers", "images", "references", "downloads", "staging"):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)  # layers hold other systems' set-user-id programs
            self._sweep()

    # -- reading ------------------------------------------------------------------------------------------------------

    def resolve(self, reference: str) -> StoredImage:
        """The image that `reference` names: `sha256:<hex>`, `oci:<path>[@sha256:<hex>]` (imported on first use) or
        `registry/name@sha256:<hex>` (only if it was imported). Blocks while it unpacks. Raises `ImageError`.
        """
        if reference.startswith("oci:"):
            record = self.import_oci(reference.removeprefix("oci:"))
        elif is_digest(reference):
            record = self.get(reference)
        else:
            name, _, digest = reference.rpartition("@")
            if not name or not is_digest(digest):
                raise ImageError(
                    f"image reference {reference[:200]!a} is none of `host`, `sha256:<hex>`, `oci:<path>` and "
                    "`name@sha256:<hex>`; pin it by its digest"
                )
            record = self.get(digest, reference)
        return self.stored(record, reference)

    def check(self, reference: str) -> None:
        """Raise `ImageError` where `resolve` would for want of an image of that name. Nothing is unpacked."""
        if not reference.startswith("oci:"):
            self.resolve(reference)
            return
        path, chosen = _path_and_digest(reference.removeprefix("oci:"))
        if not self._known(path, chosen).is_file():
            _signature(path)
            read_image(open_source(path), digest=chosen)

    def get(self, digest: str, reference: str | None = None) -> ImageRecord:
        """The record of `digest`. Raises `ImageError`, saying how to bring the image in."""
        try:
            return ImageRecord.model_validate_json(self._record_path(digest).read_bytes())
        except FileNotFoundError:
            raise ImageError(
                f"image {reference or digest} is not in the store; save it as an OCI archive with a tool that reaches "
                "its registry and run `grader images import FILE`, or build its recipe with `grader images build`",
                digest=digest,
            ) from None
        except ValidationError as error:
            raise ImageError(f"{self._record_path(digest)} is damaged; remove that file and import again") from error

    def stored(self, record: ImageRecord, reference: str | None = None) -> StoredImage:
        """`record` as the provider mounts it."""
        return StoredImage(
            digest=record.digest,
            reference=reference or record.digest,
            layers=tuple(self.layer_path(layer) for layer in record.layers),
            host_programs=record.host_programs,
            env=record.env,
            workdir=record.workdir,
            python=record.python,
            size_bytes=record.size_bytes,
            notes={"name": record.name, "kind": record.kind, **record.notes},
        )

    def list(self) -> tuple[ImageRecord, ...]:
        """Every image, oldest first."""
        digests = [f"sha256:{path.stem}" for path in (self.root / "images").glob("*.json")]
        return tuple(sorted((self.get(digest) for digest in digests), key=lambda record: record.created))

    def find(self, start: str) -> ImageRecord:
        """The one image whose digest begins with `start` (hex, `sha256:` may be left out). Raises `ImageError`."""
        wanted = start.removeprefix("sha256:").lower()
        found = [record for record in self.list() if record.digest.removeprefix("sha256:").startswith(wanted)]
        if len(found) == 1 and len(wanted) >= 6:
            return found[0]
        why = "is too short" if len(wanted) < 6 else f"begins {len(found)} images' digests" if found else "is unknown"
        raise ImageError(f"image {start[:100]!a} {why}; `grader images list` shows the digests")

    def layer_path(self, layer: LayerRecord) -> Path:
        return self.root / "layers" / layer.folder

    def has_layer(self, digest: str) -> bool:
        return (self.root / "layers" / digest.removeprefix("sha256:")[:24]).is_dir()

    # -- writing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory to prepare layers in, on the store's own file system; gone when the context is left."""
        path = self.root / "staging" / secrets.token_hex(8)
        with self._locked(path.with_suffix(".lock")):
            path.mkdir()
            try:
                yield path
            finally:
                with contextlib.suppress(
                    OSError
                ):  # a process that is being killed may still write: the next open sweeps
                    remove_tree(path)
                path.with_suffix(".lock").unlink(missing_ok=True)

    def put(self, record: ImageRecord, staged: Mapping[str, Path]) -> StoredImage:
        """Add an image. `staged` maps digests of layers that may be new to their trees, which are moved in.

        Raises `ImageError` when a layer is neither staged nor in the store.
        """
        _sync_file_system(self.root)
        with self._locked(self.root / "store.lock"):
            for layer in record.layers:
                target = self.layer_path(layer)
                if target.is_dir():
                    self._check_layer_is(layer)
                elif layer.digest in staged:
                    write_durably(target.with_suffix(".digest"), layer.digest.encode())
                    staged[layer.digest].rename(target)
                else:
                    raise ImageError(f"layer {layer.digest} was removed meanwhile; import or build the image again")
            write_durably(self._record_path(record.digest), record.model_dump_json(indent=1).encode())
        return self.stored(record)

    def remove(self, digest: str) -> ImageRecord:
        """Remove an image, and the layers that no other image uses. Raises `ImageError` when it is in use."""
        record = self.get(digest)
        with self.staging() as doomed, self._locked(self.root / "store.lock"):
            with self._record_path(digest).open("rb") as held:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ImageError(f"image {digest} is in use; wait until its sandboxes have ended") from None
                self._record_path(digest).unlink()
            used = {layer.folder for other in self.list() for layer in other.layers}
            for layer in record.layers:
                if layer.folder not in used:
                    path = self.layer_path(layer)
                    path.rename(doomed / layer.folder)
                    path.with_suffix(".digest").unlink(missing_ok=True)
        return record

    @contextmanager
    def hold(self, digest: str) -> Iterator[None]:
        """While the context is open the image cannot be removed, by this process or another."""
        try:
            record = self._record_path(digest).open("rb")
        except FileNotFoundError:
            raise ImageError(f"image {digest} is not in the store; import or build it again") from None
        with record:
            fcntl.flock(record, fcntl.LOCK_SH)
            yield

    # -- importing ----------------------------------------------------------------------------------------------------

    def import_oci(self, where: str) -> ImageRecord:
        """Bring in the image of an OCI layout directory, an OCI archive or a `docker save` archive, verified.

        `where` is its path, with `@sha256:<hex>` after it to choose one of several. Unchanged paths are read once.
        """
        path, chosen = _path_and_digest(where)
        known = self._known(path, chosen)
        signature = _signature(path)
        with contextlib.suppress(FileNotFoundError, ValueError, ImageError):
            seen = json.loads(known.read_bytes())
            if seen["signature"] == signature:
                return self.get(seen["digest"])
        source = open_source(path)
        image = read_image(source, digest=chosen)
        record = self._import_image(image, str(path), lambda layer, name: open_layer(source, layer, name=name))
        write_durably(known, json.dumps({"signature": signature, "digest": record.digest}).encode())
        return record

    def _import_image(self, image: OciImage, where: str, opener: _Opener) -> ImageRecord:
        with contextlib.suppress(ImageError):
            return self.get(image.digest)
        with self.staging() as staging:
            layers: list[LayerRecord] = []
            trees: list[Path] = []
            staged: dict[str, Path] = {}
            skipped: dict[str, int] = {}
            for number, layer in enumerate(image.layers, start=1):
                tree = staging / str(number)
                tree.mkdir()
                name = f"{where}, layer {number} of {len(image.layers)}"
                with opener(layer, name) as stream:
                    stats = unpack_layer(stream, tree, name=name, lower=trees)
                trees.append(tree)
                layers.append(LayerRecord(digest=_layer_digest(layer, stats, layers), size_bytes=stats.size_bytes))
                staged[layers[-1].digest] = tree
                skipped = {kind: skipped.get(kind, 0) + stats.skipped.get(kind, 0) for kind in skipped | stats.skipped}
            notes = {"skipped": ", ".join(f"{count} {kind}" for kind, count in sorted(skipped.items()))}
            if self._too_long(layers):
                layers, staged = _flatten(layers, trees, staging)
                trees = list(staged.values())
                notes["flattened"] = f"{len(image.layers)} layers into one, so that the mount options fit"
            record = ImageRecord(
                digest=image.digest,
                name=image.name or where,
                kind="oci",
                layers=tuple(layers),
                env=image.env,
                workdir=image.workdir,
                python=find_python(LayerStack(trees), image.env),
                architecture=image.architecture,
                notes={key: value for key, value in notes.items() if value},
                created=now(),
            )
            self.put(record, staged)
        return record

    # -- inside -------------------------------------------------------------------------------------------------------

    def _known(self, path: Path, chosen: str | None) -> Path:
        name = hashlib.sha256(os.fsencode(f"{path}@{chosen}")).hexdigest()
        return self.root / "references" / f"{name}.json"

    def _record_path(self, digest: str) -> Path:
        if not is_digest(digest):
            raise ImageError(f"{digest[:100]!a} is no image digest; `grader images list` shows them")
        return self.root / "images" / f"{digest.removeprefix('sha256:')}.json"

    def _too_long(self, layers: Sequence[LayerRecord]) -> bool:
        # bubblewrap reaches them by /oldroot and puts a colon between
        return sum(len(os.fsencode(self.layer_path(layer))) + 10 for layer in layers) > MOUNT_OPTIONS_BYTES

    def _check_layer_is(self, layer: LayerRecord) -> None:
        found = self.layer_path(layer).with_suffix(".digest").read_text()
        if found != layer.digest:
            raise ImageError(f"layers {found} and {layer.digest} have names that collide; remove the other image first")

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        with path.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _sweep(self) -> None:
        staging = self.root / "staging"
        for path in staging.iterdir():
            if path.suffix == ".lock":
                continue
            with contextlib.suppress(OSError), path.with_suffix(".lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
                path.with_suffix(".lock").unlink(missing_ok=True)


def find_python(stack: LayerStack, env: Mapping[str, str]) -> str:
    """The Python that an image's own PATH gives, else one in a usual place, else an empty string."""
    folders = [folder for folder in env.get("PATH", "").split(":") if folder.startswith("/")]
    folders += ["/usr/local/bin", "/usr/bin", "/opt/miniconda3/bin", "/opt/conda/bin", "/usr/libexec"]
    for folder in folders:
        for name in ("python3", "platform-python"):
            found = stack.find(f"{folder}/{name}")
            if found is not None and found.is_file() and found.stat().st_mode & 0o111:
                return f"{folder}/{name}"
    return ""


def now() -> str:
    """This moment as records spell it: UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _layer_digest(layer: OciLayer, stats: LayerStats, below: list[LayerRecord]) -> str:
    if not stats.copied_up:
        return layer.diff_id
    chain = " ".join([layer.diff_id, *(one.digest for one in below)])
    return f"sha256:{hashlib.sha256(chain.encode()).hexdigest()}"


def _flatten(layers: list[LayerRecord], trees: list[Path], staging: Path) -> tuple[list[LayerRecord], dict[str, Path]]:
    whole = staging / "flat"
    whole.mkdir()
    for tree in trees:
        merge_layer(tree, whole)
    digest = f"sha256:{hashlib.sha256(' '.join(['flat', *(one.digest for one in layers)]).encode()).hexdigest()}"
    return [LayerRecord(digest=digest, size_bytes=sum(one.size_bytes for one in layers))], {digest: whole}


def _path_and_digest(where: str) -> tuple[Path, str | None]:
    text, _, digest = where.rpartition("@")
    path, chosen = (Path(text), digest) if text and is_digest(digest) else (Path(where), None)
    return path.absolute(), chosen


def _signature(path: Path) -> str:
    """Changes when the image at `path` does. Raises `ImageError` when there is nothing."""
    try:
        if path.is_dir():
            names = [name for name in ("index.json", "manifest.json") if (path / name).is_file()]
            return hashlib.sha256(b"".join((path / name).read_bytes() for name in names)).hexdigest()
        status = path.stat()
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}; give the path of an OCI layout or archive") from error
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def write_durably(path: Path, data: bytes) -> None:
    """Replace the file at `path` by one rename, on disk before it is named."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with temporary.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    temporary.rename(path)


def _sync_file_system(path: Path) -> None:
    """Layers are on disk before the record that names them: a power cut leaves no image with empty files."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)
