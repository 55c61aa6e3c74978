"""The law of extraction: whatever a tree holds and whatever is done to it, the patch gives it or what it does not give
is said."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from grader.extraction.objects import Pair, Side, make_patch
from grader.patch import MAX_BYTES, Patch, parse
from sandbox import LocalConfig, open_provider
from tests.grader.edits import seen
from tests.grader.tasks import git
from tests.grader.test_extract_edits import SPEC, Trees, edited, silently_wrong

pytestmark = pytest.mark.anyio

NAMES = [
    b"a",
    b"b",
    b"c d",
    b"src",
    b"\xff\xfe",
    b"n\nl",
    b'"q"',
    b"b\\s",
    b".gitignore",
    b"x.pyc",
    b"__pycache__",
    b" t ",
]
CONTENTS = st.one_of(
    st.sampled_from(
        [b"", b"\n", b"one\ntwo\nthree\n", b"one\r\ntwo\r\n", b"no end", b"\0\xff", b"*\n", b"-- \n+++ b\n"]
    ),
    st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\xe9\n", b"\r", b"d"]), max_size=60).map(b"".join),
    st.binary(max_size=200),
    st.binary(min_size=1, max_size=3).map(lambda tail: b"x" * 9000 + tail),
)
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), PATHS, CONTENTS),
    st.tuples(st.just("append"), PATHS, CONTENTS),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("remove"), PATHS, st.just(b"")),
    st.tuples(st.just("directory"), PATHS, st.just(b"")),
    st.tuples(st.just("move"), PATHS, PATHS),
    st.tuples(st.just("hard link"), PATHS, PATHS),
    st.tuples(st.just("mode"), PATHS, st.sampled_from([b"644", b"755", b"600", b"444", b"4755"])),
    st.tuples(st.just("pipe"), PATHS, st.just(b"")),
)
CHECKS = list(HealthCheck)  # a sandbox takes longer than a function
SCRIPTS = st.lists(OPERATIONS, max_size=25)

CARRY_OUT = r"""
import json, os, shutil, sys
def clear(path):
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
for what, path, rest in json.load(sys.stdin):
    path, rest = bytes.fromhex(path), bytes.fromhex(rest)
    try:
        if what in ("write", "link", "directory", "pipe", "move", "hard link"):
            target = rest if what in ("move", "hard link") else path
            os.makedirs(os.path.dirname(target) or b".", exist_ok=True)
            if os.path.lexists(target) and (what != "move" or os.path.lexists(path)):
                clear(target)
        if what == "write":
            open(path, "wb").write(rest)
        elif what == "append":
            open(path, "ab").write(rest)
        elif what == "link":
            os.symlink(rest, path)
        elif what == "remove":
            clear(path)
        elif what == "directory":
            os.mkdir(path)
        elif what == "move":
            os.rename(path, rest)
        elif what == "hard link":
            os.link(path, rest, follow_symlinks=False)
        elif what == "mode" and not os.path.islink(path) and os.path.isfile(path):
            os.chmod(path, int(rest, 8))
        elif what == "pipe":
            os.mkfifo(path)
    except (OSError, shutil.Error):
        pass
"""


def as_json(script: list[tuple[str, bytes, bytes]]) -> str:
    return json.dumps([(what, path.hex(), rest.hex()) for what, path, rest in script])


@pytest.fixture(scope="module")
async def trees(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trees]:
    folder = tmp_path_factory.mktemp("trees")
    async with open_provider(LocalConfig(state_dir=folder / "state")) as provider:
        yield Trees(provider, folder)


@pytest.mark.slow
@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate], suppress_health_check=CHECKS)
@given(shipped=SCRIPTS, tracked=st.booleans(), done=SCRIPTS)
async def test_a_patch_gives_the_tree_or_says_what_it_does_not(
    trees: Trees, shipped: list[Any], tracked: bool, done: list[Any]
) -> None:
    """Random trees, tracked or not, and random edits: the tree that a grading sees differs from the agent's only where
    it is said."""
    ships = f"python3 -c '{CARRY_OUT.replace(chr(39), chr(34))}' <<'END'\n{as_json(shipped)}\nEND\n"
    if tracked:
        ships += "find . -name .gitignore -prune -exec rm -rf {} +; git add -A && git commit -qm shipped || true\n"
    edit = f"python3 -c '{CARRY_OUT.replace(chr(39), chr(34))}' <<'END'\n{as_json(done)}\nEND\n"
    async with edited(trees, ships, [edit]) as (box, extraction):
        assert extraction.patch is not None and extraction.rung is not None, extraction.differences
        assert set() == await silently_wrong(trees, ships, box, extraction)


SIDES = st.one_of(
    st.none(),
    st.builds(lambda mode, data: Side(mode, data, b"\0" in data), st.sampled_from([b"100644", b"100755"]), CONTENTS),
    st.sampled_from([b"a", b"../x", b"\xff"]).map(lambda target: Side(b"120000", target, False)),
)


@settings(max_examples=60, suppress_health_check=CHECKS)
@given(sides=st.dictionaries(st.sampled_from(NAMES), st.tuples(SIDES, SIDES), max_size=6))
def test_a_patch_turns_one_side_into_the_other(sides: dict[bytes, tuple[Side | None, Side | None]]) -> None:
    """git applies the patch of any two sides to the old one, and what is then there is the new one."""
    pairs = [Pair(b"d/" + name, old, new) for name, (old, new) in sides.items()]
    with tempfile.TemporaryDirectory() as folder:
        patch = make_patch(pairs, Path(folder, "git"), MAX_BYTES)
        assert patch is not None and isinstance(parse(patch), Patch)
        tree = Path(folder, "tree")
        tree.mkdir()
        git(tree, "init", "-q")
        for pair in pairs:
            if pair.old is not None:
                _place(tree, pair.path, pair.old)
        if patch.size:
            Path(folder, "patch").write_bytes(patch.read())
            subprocess.run(["git", "apply", "../patch"], cwd=tree, check=True, capture_output=True)
        for pair in pairs:
            assert pair.new == _held(tree, pair.path)


def _place(tree: Path, path: bytes, side: Side) -> None:
    target = Path(tree, path.decode("utf-8", "surrogateescape"))
    target.parent.mkdir(exist_ok=True)
    assert isinstance(side.data, bytes)
    if side.mode == b"120000":
        target.symlink_to(side.data.decode("utf-8", "surrogateescape"))
    else:
        target.write_bytes(side.data)
        target.chmod(int(side.mode[3:], 8))


def _held(tree: Path, path: bytes) -> Side | None:
    target = Path(tree, path.decode("utf-8", "surrogateescape"))
    if target.is_symlink():
        return Side(b"120000", str(target.readlink()).encode("utf-8", "surrogateescape"), False)
    if not target.exists():
        return None
    data = target.read_bytes()
    return Side(b"100755" if target.stat().st_mode & 0o100 else b"100644", data, b"\0" in data)


async def test_the_oracle_sees_what_there_is(trees: Trees) -> None:
    """What the property is checked with tells trees apart: by bytes, kind, target, mode and directories."""
    async with trees.seeded("").sandbox(SPEC) as box:
        before = await seen(box)
        command = (
            "cd /testbed; echo x >>src/util.py; ln -sfn src link; chmod +x README.md; mkdir e; rm run.sh; mkfifo p"
        )
        await box.run(command, timeout_s=20)
        after = await seen(box)
    differing = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert {b"src/util.py", b"link", b"README.md", b"e", b"run.sh", b"p"} == differing
