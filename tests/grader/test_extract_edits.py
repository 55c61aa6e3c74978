"""Each kind of edit that agents make, alone and in pairs: exact, or not and said. None is silently wrong."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from grader import apply
from grader.extract import Extraction, extract
from grader.extraction.baseline import record
from grader.extraction.compare import What
from grader.extraction.exclusions import Exclusions, excluded_at
from grader.patch import EMPTY, Patch, parse
from sandbox import LocalConfig, Provider, Sandbox, SandboxSpec, open_provider
from tests.grader.edits import EDITS, Edit, seen, write_tree
from tests.grader.tasks import Seeded

pytestmark = pytest.mark.anyio
SPEC = SandboxSpec(image="host")


class Trees:
    """Repositories by what the image ships with them, made once."""

    def __init__(self, provider: Provider, folder: Path) -> None:
        self._provider = provider
        self._folder = folder
        self._made: dict[str, Path] = {}
        self._numbers = itertools.count()

    def seeded(self, ships: str) -> Seeded:
        if ships not in self._made:
            self._made[ships] = write_tree(self._folder / str(next(self._numbers)) / "repo", ships)
        return Seeded(self._provider, self._made[ships])


@pytest.fixture(scope="module")
async def trees(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trees]:
    folder = tmp_path_factory.mktemp("edits")
    async with open_provider(LocalConfig(state_dir=folder / "state")) as provider:
        yield Trees(provider, folder)


@asynccontextmanager
async def edited(trees: Trees, ships: str, commands: list[str]) -> AsyncIterator[tuple[Sandbox, Extraction]]:
    """A sandbox after these commands, and what was extracted from it."""
    provider = trees.seeded(ships)
    async with provider.sandbox(SPEC) as box:
        baseline = await record(box, "/testbed")
        for command in commands:
            # What hangs (a second edit may read a pipe that the first has made) ends, and is an edit all the same.
            await box.run(f"cd /testbed && {command}", timeout_s=30)
        yield box, await extract(box, baseline, provider)


async def silently_wrong(trees: Trees, ships: str, box: Sandbox, extraction: Extraction) -> set[bytes]:
    """The paths that a grading would see other than the agent left them, and of which nothing is said."""
    wanted = await seen(box)
    async with trees.seeded(ships).sandbox(SPEC) as fresh:
        tracked = (await record(fresh, "/testbed")).tracked
        patch = parse(extraction.patch or b"")
        assert isinstance(patch, Patch), patch
        applied = await apply.apply(fresh, patch, EMPTY, workdir="/testbed", base_commit="HEAD")
        assert isinstance(applied, apply.Applied), applied
        given = await seen(fresh)
    pattern = Exclusions().pattern()
    differing = {path for path in {*wanted, *given} if wanted.get(path) != given.get(path)}
    out = {each.path for each in extraction.excluded}
    said = [difference.path for difference in extraction.differences]
    # A directory that one tree lacks for want of what is said or left out below it is said with that.
    out |= {path for path in differing if any(each.startswith(path + b"/") for each in [*said, *out])}
    unsaid = differing - {*said, *out, b".git"}
    return {path for path in unsaid if excluded_at(path, pattern, tracked) not in out}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
async def test_an_edit_is_exact_or_said(trees: Trees, edit: Edit) -> None:
    """The patch gives the agent's tree, and where it does not, exactly the right kind of difference is said."""
    async with edited(trees, edit.ships, [edit.edit]) as (box, extraction):
        assert edit.says == {difference.what for difference in extraction.differences}, extraction.differences
        assert extraction.faithful == all(not difference.matters for difference in extraction.differences)
        assert edit.excludes == bool(extraction.excluded)
        if What.MOVING not in edit.says:
            assert set() == await silently_wrong(trees, edit.ships, box, extraction)


def _pairs() -> list[tuple[Edit, Edit]]:
    """Each edit before and behind another one, chosen by a fixed seed."""
    edits = [edit for edit in EDITS if "alone" not in edit.tags]
    others = list(edits)
    random.Random(4).shuffle(others)
    return [(one, other) for one, other in zip(edits, others, strict=True) if not (one.ships and other.ships)]


@pytest.mark.slow
@pytest.mark.parametrize("pair", _pairs(), ids=lambda pair: f"{pair[0].name}, then {pair[1].name}")
async def test_a_pair_of_edits_is_exact_or_said(trees: Trees, pair: tuple[Edit, Edit]) -> None:
    """Two edits in one sandbox, the second wherever the first has left things: nothing is silently wrong."""
    ships = "".join(edit.ships for edit in pair)
    async with edited(trees, ships, [edit.edit for edit in pair]) as (box, extraction):
        said = {difference.what for difference in extraction.differences}
        assert extraction.rung is not None, said
        assert said <= set(itertools.chain(*(edit.says for edit in pair))) | {What.EMPTY_DIRECTORY}
        assert set() == await silently_wrong(trees, ships, box, extraction)
