"""Claims about `grader.extract` that no table of edits shows: limits, trouble, and what is kept of an extraction."""

from __future__ import annotations

import json
import resource
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ValidationError

from grader.extract import extract
from grader.extraction.baseline import Baseline, record
from grader.extraction.compare import What
from grader.extraction.exclusions import Exclusions, excluded_at
from grader.extraction.git import GitFailed
from grader.extraction.host import HostFailed
from sandbox import LocalConfig, Sandbox, SandboxError, SandboxSpec, open_provider
from tests.grader.edits import SUBMODULE, write_tree
from tests.grader.tasks import Seeded, toy

pytestmark = pytest.mark.anyio
SPEC = SandboxSpec(image="host")


@dataclass
class Agent:
    """A sandbox with its baseline, and what seeds another."""

    box: Sandbox
    baseline: Baseline
    provider: Seeded

    async def do(self, command: str) -> None:
        result = await self.box.run(f"cd /testbed && {command}", timeout_s=30)
        assert result.exit_code == 0, result


@asynccontextmanager
async def agent(folder: Path) -> AsyncIterator[Agent]:
    async with toy(folder) as (_, provider), provider.sandbox(SPEC) as box:
        yield Agent(box, await record(box, "/testbed"), provider)


async def test_the_baseline_is_what_the_image_ships(tmp_path: Path) -> None:
    """Tracked paths come from the image's index; the manifest has what is untracked too."""
    async with toy(tmp_path) as (repo, provider):
        (repo.path / "local.txt").write_text("local")
        async with provider.sandbox(SPEC) as box:
            baseline = await record(box, "/testbed")
            assert 0 == box.identity.execs_before
    assert {b"README", b"run_tests.py", b"sums.py", b"tests/__init__.py", b"tests/test_sums.py"} == baseline.tracked
    assert {*baseline.tracked, b"", b".git", b"tests", b"local.txt"} == set(baseline.manifest)


async def test_a_host_without_git_is_no_image_without_tracked_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that git cannot read names nothing; a git that cannot be run is trouble of ours, and said."""
    async with toy(tmp_path) as (repo, provider):
        (repo.path / ".git/index").write_bytes(b"no index")
        async with provider.sandbox(SPEC) as box:
            assert frozenset() == (await record(box, "/testbed")).tracked
            with monkeypatch.context() as patched:
                patched.setenv("PATH", str(tmp_path))
                with pytest.raises(GitFailed, match="install git"):
                    await record(box, "/testbed")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """This process can write no larger file, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_host_without_room_is_trouble_of_ours_and_the_sandbox_can_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes no copy, or has no temporary folder, raises `HostFailed`; the same sandbox then gives all."""
    async with agent(tmp_path) as at:
        await at.do("head -c 4M /dev/urandom >big")
        with files_of_at_most(1 << 20), pytest.raises(HostFailed, match="keep an extraction's files"):
            await extract(at.box, at.baseline, at.provider)
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
            with pytest.raises(HostFailed, match="keep an extraction's files"):
                await extract(at.box, at.baseline, at.provider)
            with pytest.raises(HostFailed, match="keep an extraction's files"):
                await record(at.box, "/testbed")
        extraction = await extract(at.box, at.baseline, at.provider)
    assert extraction.faithful and (b"big",) == extraction.carried


async def test_a_patch_over_the_limit_is_no_patch(tmp_path: Path) -> None:
    """More than a grading takes is refused whole and said; nothing is cut, and nothing can be submitted."""
    async with agent(tmp_path) as at:
        await at.do("for i in 1 2 3; do head -c 14M /dev/urandom >big$i; done")
        extraction = await extract(at.box, at.baseline, at.provider)
    assert extraction.patch is None and not extraction.faithful and extraction.rung is None
    assert {What.REFUSED, What.KIND} == {difference.what for difference in extraction.differences}
    with pytest.raises(ValueError, match="no patch"):
        extraction.submission("task", "model")


async def test_a_smaller_limit_for_files_may_be_declared(tmp_path: Path) -> None:
    """A file over the declared size is not carried and is said; the rest is."""
    async with agent(tmp_path) as at:
        await at.do("head -c 1100000 /dev/zero >big; echo x >small")
        extraction = await extract(at.box, at.baseline, at.provider, exclusions=Exclusions(max_file_mib=1))
    assert (b"small",) == extraction.carried
    assert [(b"big", What.TOO_LARGE)] == [(each.path, each.what) for each in extraction.differences]
    assert not extraction.faithful


async def test_what_is_left_out_is_counted_and_listed(tmp_path: Path) -> None:
    """Each excluded directory or file is listed once, with how many paths and bytes stayed behind."""
    async with agent(tmp_path) as at:
        await at.do(
            "mkdir -p pkg/__pycache__ .venv/lib; echo 123 >pkg/__pycache__/a.pyc; echo 1 >pkg/__pycache__/b.pyc;"
            " echo 12345 >.venv/lib/x; echo 1 >lone.pyc; echo x >pkg/x.py"
        )
        extraction = await extract(at.box, at.baseline, at.provider)
    left = {each.path: (each.entries, each.size) for each in extraction.excluded}
    assert {b"pkg/__pycache__": (3, 6), b".venv": (3, 6), b"lone.pyc": (1, 2)} == left
    assert extraction.faithful and (b"pkg/x.py",) == extraction.carried


async def test_nothing_is_left_out_where_nothing_is_declared(tmp_path: Path) -> None:
    """Without names, caches are carried like all else."""
    async with agent(tmp_path) as at:
        await at.do("echo 1 >lone.pyc")
        extraction = await extract(at.box, at.baseline, at.provider, exclusions=Exclusions(names=()))
    assert ((b"lone.pyc",), ()) == (extraction.carried, extraction.excluded)


async def test_the_record_is_json_and_says_it_all(tmp_path: Path) -> None:
    """What is stored beside a patch survives JSON, odd paths included."""
    async with agent(tmp_path) as at:
        await at.do(r"printf x >$'\xff\n'; mkfifo pipe; echo 1 >a.pyc")
        extraction = await extract(at.box, at.baseline, at.provider)
    kept = json.loads(json.dumps(extraction.record()))
    assert (False, ["\\xff\n"], "git apply") == (kept["faithful"], kept["carried"], kept["apply_rung"])
    assert ["pipe: special_file: a fifo there, nothing by the patch"] == kept["differences"]
    assert [{"path": "a.pyc", "entries": 1, "bytes": 2}] == kept["excluded"]
    assert {"walk", "copy", "diff", "apply", "proof", "fresh"} == set(kept["phases_s"])


async def test_an_image_that_is_not_the_same_twice_is_trouble(tmp_path: Path) -> None:
    """Where a fresh sandbox holds other bytes than the rollout's did, there is no patch that could be right."""
    async with agent(tmp_path) as at:
        await at.do("echo '# x' >>sums.py")
        (at.provider.repo / "sums.py").write_text("another image\n")
        with pytest.raises(SandboxError, match=r"sums\.py"):
            await extract(at.box, at.baseline, at.provider)


async def test_the_agents_processes_cannot_make_it_a_lie(tmp_path: Path) -> None:
    """A process that kills all that it can while the tree is walked ends the extraction in an error or not at all."""
    async with agent(tmp_path) as at:
        await at.do("echo '# x' >>sums.py; for i in $(seq 2000); do echo $i >f$i; done")
        await at.box.run(
            "(trap '' TERM; while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $BASHPID ] ||"
            " kill -9 $p; done; done) 2>/dev/null &",
            timeout_s=10,
        )
        try:
            extraction = await extract(at.box, at.baseline, at.provider)
        except SandboxError:
            return
        assert extraction.faithful and 2001 == len(extraction.carried)


async def test_what_an_agent_writes_where_a_path_should_stand_is_data(tmp_path: Path) -> None:
    """A submodule's git file may name anything, bytes that no path can hold included: it is said, and no trouble."""
    repo = write_tree(tmp_path / "repo", SUBMODULE)
    async with (
        open_provider(LocalConfig(state_dir=tmp_path / "state")) as local,
        Seeded(local, repo).sandbox(SPEC) as box,
    ):
        baseline = await record(box, "/testbed")
        for named in (r"/a\0b\377", "../../../..", "/proc/self/environ", "vendor"):
            await box.run(f"cd /testbed && printf 'gitdir: {named}' >vendor/lib/.git", timeout_s=20)
            extraction = await extract(box, baseline, Seeded(local, repo))
            said = {(difference.path, difference.what) for difference in extraction.differences}
            assert {(b"vendor/lib/.git", What.NESTED_REPOSITORY), (b"vendor/lib", What.SUBMODULE)} == said


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"a/__pycache__/x", b"a/__pycache__"),
        (b"x.pyc", b"x.pyc"),
        (b"a/x.pyc/y", b"a/x.pyc"),
        (b"foo.egg-info/PKG-INFO", b"foo.egg-info"),
        (b".coverage.host", b".coverage.host"),
        (b"\xff/\n.pyc", b"\xff/\n.pyc"),
        (b"pycache/x.py", None),
        (b"x.pyc.py", None),
        (b"__pycache__2/x", None),
        (b"build/lib/x.py", None),
        (b"tests/fixture.pyc", None),
    ],
)
def test_exclusions_match_whole_components(path: bytes, expected: bytes | None) -> None:
    """A name matches one component of a path; what is tracked is never left out."""
    assert expected == excluded_at(path, Exclusions().pattern(), {b"tests/fixture.pyc"})


def test_exclusions_are_frozen_and_closed() -> None:
    """A setting that there is not is refused, and a limit that no patch could hold."""
    with pytest.raises(ValidationError):
        Exclusions(max_file_mib=1000)
    with pytest.raises(ValidationError):
        Exclusions.model_validate({"gitignore": True})
