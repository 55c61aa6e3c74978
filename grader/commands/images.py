"""`grader images`: make, bring in, list, export and remove the images that local sandboxes start from."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from grader.console import Exit, printable, write_table
from grader.errors import UsageError

if TYPE_CHECKING:
    from sandbox.local.provider import LocalProvider
    from sandbox.local.store import ImageRecord, ImageStore
    from tasksets.images import Recipe

images_app = App(name="images", help="Build, list, export and remove images.")

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object per line.")]
StateDir = Annotated[
    Path | None, Parameter(help="Where images lie. Default: sandman-grader under $XDG_CACHE_HOME, else under ~/.cache.")
]
Digest = Annotated[str, Parameter(help="The image's digest, or at least 6 digits of its beginning.")]


@images_app.command(name="base")
def make_base(
    *,
    suite: Annotated[str | None, Parameter(help="Debian release, such as bookworm. Default: this machine's.")] = None,
    include: Annotated[str, Parameter(help="Further packages, separated by commas.")] = "",
    state_dir: StateDir = None,
    as_json: Json = False,
) -> int:
    """Make a small Debian image with mmdebstrap, on which recipes can be built that run on any machine."""
    from sandbox.local.debian import debian_base

    sys.stderr.write("making a Debian image: a minute or two\n")
    packages = [word.strip() for word in include.split(",") if word.strip()]
    _show([debian_base(_store(state_dir), suite=suite, include=packages)], as_json)
    return Exit.DONE


@images_app.command(name="build")
def build_images(
    recipes: Annotated[Path, Parameter(help="JSON lines file of recipes.")],
    *,
    only: Annotated[str | None, Parameter(help="Task ids, separated by commas.")] = None,
    base: Annotated[str | None, Parameter(help="Build on this image, whatever base the recipes name.")] = None,
    jobs: Annotated[int, Parameter(help="Builds at once.")] = 1,
    export: Annotated[
        Path | None,
        Parameter(help="Directory to write the images into as OCI archives, with images.jsonl for `grade --images`."),
    ] = None,
    name: Annotated[str | None, Parameter(help="With --export: the repository that the images are to have.")] = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> int:
    """Build the images of recipes. What is built already is only named. Exit status 2 when a recipe failed."""
    from functools import partial

    import anyio

    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: give 1 or more")
    chosen = _chosen(recipes, only, base)
    if export is not None:
        _check_export(chosen, export, name)
    emit = _print_json if as_json else lambda _: None
    built = anyio.run(partial(_build_all, chosen, jobs=jobs, state_dir=state_dir, emit=emit))
    if export is not None:
        listed = _export_all(_store(state_dir), built, export, name)
        sys.stderr.write(
            printable(f"{listed}: load the archives into the nodes, or push them; then --images {listed}\n")
        )
    if not as_json:
        rows = [(one.task_id, f"{one.seconds:.1f}", one.told) for one in built]
        write_table(("TASK", "SECONDS", "IMAGE"), rows, sys.stdout)
    failed = sum(one.error is not None for one in built)
    sys.stderr.write(f"{len(built) - failed} of {len(built)} recipes have their image\n")
    return Exit.USAGE if failed else Exit.DONE


@images_app.command(name="import")
def import_image(
    path: Annotated[str, Parameter(help="OCI layout directory, OCI archive or `docker save` archive.")],
    *,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> int:
    """Bring an image into the store, verified against its digests."""
    _show([_store(state_dir).import_oci(path)], as_json)
    return Exit.DONE


@images_app.command(name="list")
def list_images(*, state_dir: StateDir = None, as_json: Json = False) -> int:
    """List the images of the store: digest, kind, size, when it was made, what it is."""
    _show(_store(state_dir).list(), as_json)
    return Exit.DONE


@images_app.command(name="export")
def export_image(
    digest: Digest,
    archive: Annotated[Path, Parameter(help="The OCI archive to write, such as image.tar.")],
    *,
    name: Annotated[
        str | None, Parameter(help="What a tool calls the image on loading it; without a tag, with its digest.")
    ] = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> int:
    """Write an image as an OCI archive that a cluster can load. Images on the host's programs are refused."""
    from sandbox.local.export import export_image as export

    store = _store(state_dir)
    exported = export(store, store.find(digest).digest, archive, name=name)
    line = {
        "digest": exported.digest,
        "image": exported.reference,
        "file": str(exported.path),
        "size_bytes": exported.size_bytes,
    }
    _print_json(line) if as_json else sys.stdout.write(printable(f"{exported.reference}  {exported.path}\n"))
    return Exit.DONE


@images_app.command(name="remove")
def remove_images(*digests: Digest, state_dir: StateDir = None, as_json: Json = False) -> int:
    """Remove images, and the layers that no other image uses. An image in use is refused."""
    store = _store(state_dir)
    _show([store.remove(store.find(digest).digest) for digest in digests], as_json)
    return Exit.DONE


def _store(state_dir: Path | None) -> ImageStore:
    from sandbox.local.scratch import state_directory
    from sandbox.local.store import ImageStore

    return ImageStore(state_directory(state_dir))


def _show(records: Sequence[ImageRecord], as_json: bool) -> None:
    if as_json:
        for record in records:
            _print_json({**record.model_dump(mode="json"), "size_bytes": record.size_bytes})
        return
    rows = [(one.digest[:19], one.kind, f"{one.size_bytes / 1e6:.0f} MB", one.created, _about(one)) for one in records]
    write_table(("DIGEST", "KIND", "SIZE", "CREATED", "NAME"), rows, sys.stdout)


def _about(record: ImageRecord) -> str:
    base = " (host programs)" if record.host_programs else ""
    used = record.notes.get("python", "")
    return f"{record.name}{base}{f'; {used}' if used.startswith('asked') else ''}"


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _chosen(path: Path, only: str | None, base: str | None) -> list[Recipe]:
    import difflib

    from tasksets.images import recipes_by_task

    recipes = recipes_by_task(path)
    wanted = list(recipes) if only is None else [word.strip() for word in only.split(",") if word.strip()]
    if not wanted:
        raise UsageError("--only names no task; give ids, or leave the flag out for all recipes")
    for task_id in wanted:
        if task_id not in recipes:
            near = ", ".join(difflib.get_close_matches(task_id, recipes, n=3, cutoff=0.5)) or "none is near"
            raise UsageError(f"{path}: no recipe for {task_id!r} (did you mean: {near}?)")
    update = {} if base is None else {"base": base}
    return [recipes[task_id].model_copy(update=update) for task_id in wanted]


@dataclass(frozen=True)
class Built:
    """How the build for one recipe ended."""

    task_id: str
    image: str | None
    error: str | None
    seconds: float

    @property
    def told(self) -> str:
        return self.image or f"FAILED: {self.error}"

    def line(self) -> dict[str, object]:
        return {"task_id": self.task_id, "image": self.image, "error": self.error, "seconds": round(self.seconds, 2)}


async def _build_all(
    recipes: Sequence[Recipe], *, jobs: int, state_dir: Path | None, emit: Callable[[object], None]
) -> list[Built]:
    """Every recipe's image, `jobs` at once; one that fails does not stop the others."""
    import anyio

    from sandbox import LocalConfig
    from sandbox.local.provider import LocalProvider

    built: list[Built] = []
    slots = anyio.Semaphore(jobs)
    async with LocalProvider(LocalConfig(state_dir=state_dir)) as provider, anyio.create_task_group() as group:

        async def one(recipe: Recipe) -> None:
            async with slots:
                outcome = await _build_one(provider, recipe)
            built.append(outcome)
            emit(outcome.line())
            sys.stderr.write(printable(f"[{len(built)}/{len(recipes)}] {outcome.task_id}: {outcome.told}\n"))

        for recipe in recipes:
            group.start_soon(one, recipe)
    return built


def _check_export(recipes: Sequence[Recipe], directory: Path, name: str | None) -> None:
    """Refuse, before anything is built, what could not be exported."""
    on_host = [recipe.instance_id for recipe in recipes if recipe.base == "host"]
    if on_host:
        raise UsageError(
            f"{len(on_host)} recipes stand on the host's own programs, {on_host[0]} first, and cannot be exported; "
            "make a base with `grader images base` and name it with --base"
        )
    if name is not None and (":" in name.rpartition("/")[2] or "@" in name):
        raise UsageError(
            f"--name {name}: several images share it and are told apart by digest; leave tag and digest out"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--export {directory}: cannot be made ({error.strerror}); name another directory") from error


def _export_all(store: ImageStore, built: Sequence[Built], directory: Path, name: str | None) -> Path:
    """Write each image once, and the list of which task has which."""
    from sandbox.local.export import export_images

    archives = {one.image: directory / f"{one.image[7:23]}.tar" for one in built if one.image is not None}
    sys.stderr.write(f"exporting {len(archives)} images\n")
    exported = export_images(store, archives, name=name)
    listed = directory / "images.jsonl"
    lines = [
        {"instance_id": one.task_id, "image": exported[one.image].reference, "archive": archives[one.image].name}
        for one in built
        if one.image is not None
    ]
    listed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return listed


def _say(line: str) -> None:
    sys.stderr.write(printable(line) + "\n")


async def _build_one(provider: LocalProvider, recipe: Recipe) -> Built:
    from grader.images import ensure_image
    from sandbox.errors import SandboxError

    began = time.monotonic()
    try:
        image = await ensure_image(provider, recipe, progress=_say)
    except SandboxError as error:
        return Built(recipe.instance_id, None, str(error), time.monotonic() - began)
    return Built(recipe.instance_id, image, None, time.monotonic() - began)
