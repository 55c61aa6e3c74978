"""Claims about `grader.images`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grader.images import ensure_image
from sandbox import LocalConfig
from sandbox.errors import ImageError
from sandbox.local.provider import LocalProvider
from tasksets.images import DirectorySource, Recipe


@pytest.mark.anyio
async def test_a_disk_that_takes_no_image_is_an_image_that_was_not_built(tmp_path: Path) -> None:
    """Trouble of this host's disk has the type that every caller takes for its own recipe's, and says where to look."""
    (tmp_path / "source").mkdir()
    source = DirectorySource(kind="directory", path=str(tmp_path / "source"))
    recipe = Recipe(instance_id="demo-1", python="3", source=source, install=("true",), test_cmd="true")
    async with LocalProvider(LocalConfig(state_dir=tmp_path / "state")) as provider:
        staging = provider.store.root / "staging"
        shutil.rmtree(staging, ignore_errors=True)
        staging.write_text("no directory")

        with pytest.raises(ImageError, match="look at the disk of the state directory"):
            await ensure_image(provider, recipe)
