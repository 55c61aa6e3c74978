"""From a task's recipe to an image that the provider can run: where the task sets' room and the sandboxes' meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.errors import ImageError
from sandbox.local.build import build, check
from sandbox.local.host import REFERENCE
from sandbox.local.image import StoredImage
from sandbox.local.recipe import Archive, BuildPlan, Tree
from tasksets.images import Recipe, SdistSource

if TYPE_CHECKING:
    from sandbox.local.provider import LocalProvider


def build_plan(recipe: Recipe) -> BuildPlan:
    """`recipe` as the builder takes it."""
    source = recipe.source
    made_from: Archive | Tree
    if isinstance(source, SdistSource):
        made_from, name = Archive(source.file, source.sha256), source.file
    else:
        made_from, name = Tree(Path(source.path), source.sha256), Path(source.path).name
    return BuildPlan(
        name=f"{name} on Python {recipe.python}",
        base=recipe.base,
        python=recipe.python,
        source=made_from,
        install=recipe.install,
        env=recipe.env,
        pins=recipe.pins,
    )


def check_image(provider: LocalProvider, image: str, recipe: Recipe | None) -> None:
    """Raise `ImageError` for an image, or the recipe that is to make it, that is not to be had, before any is made."""
    if recipe is not None:
        check(provider.store, build_plan(recipe))
    elif image != REFERENCE:
        provider.store.check(image)


async def build_image(
    provider: LocalProvider, recipe: Recipe, *, progress: Callable[[str], None] = lambda _: None
) -> StoredImage:
    """The recipe's image, from the store or built now; `progress` gets a line per step.

    Raises `sandbox.errors.ImageError` with the step that failed, its exit code and the end of its log, or with what is
    amiss on this host's disk.
    """
    try:
        return await build(provider, provider.store, build_plan(recipe), progress=progress)
    except OSError as error:
        raise ImageError(f"{error}; look at the disk of the state directory, {provider.state_dir}") from error


async def ensure_image(
    provider: LocalProvider, recipe: Recipe, *, progress: Callable[[str], None] = lambda _: None
) -> str:
    """As `build_image`, giving the reference for a sandbox's spec."""
    return (await build_image(provider, recipe, progress=progress)).digest
