"""Claims about `grader.apply`, with real git in real sandboxes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grader import apply
from grader.patch import Patch, parse
from sandbox import Sandbox, SandboxError, SandboxSpec
from tests.grader.tasks import NEW_TESTS, OTHER_TESTS, Repo, git, toy

pytestmark = pytest.mark.anyio


def patch_of(data: bytes) -> Patch:
    parsed = parse(data)
    assert isinstance(parsed, Patch), parsed
    return parsed


async def applied(box: Sandbox, repo: Repo, patch: bytes, test_patch: bytes | None = None) -> apply.ApplyResult:
    commit = git(repo.path, "rev-parse", "HEAD").decode().strip()
    tests = patch_of(repo.test_patch if test_patch is None else test_patch)
    return await apply.apply(box, patch_of(patch), tests, workdir="/testbed", base_commit=commit)


async def shell(box: Sandbox, command: str) -> bytes:
    result = await box.run(f"cd /testbed && {command}", timeout_s=20)
    return result.output


async def own_tests_in_place(box: Sandbox) -> bool:
    found = [await box.read(f"/testbed/tests/test_{name}.py") for name in ("sums", "other")]
    return found == [NEW_TESTS.encode(), OTHER_TESTS.encode()]


REFUSED_EVERYWHERE = b"--- a/sums.py\n+++ b/sums.py\n@@ -1,2 +1,2 @@\n nothing of the kind\n-nor this\n+x\n"


async def test_the_reference_takes_the_first_rung(tmp_path: Path) -> None:
    """A patch that git takes is applied by git, the test files are in place, and nothing of ours stays behind."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        result = await applied(box, repo, repo.reference)
        assert result == apply.Applied(apply.Rung.GIT_APPLY, ("tests/test_other.py", "tests/test_sums.py"))
        assert b"result += number" in await box.read("/testbed/sums.py")
        assert await own_tests_in_place(box)
        assert await shell(box, "ls -A /tmp; git status --porcelain --ignored") == (
            b" M sums.py\n M tests/test_sums.py\n?? tests/test_other.py\n"
        )


async def test_the_empty_patch_climbs_nothing(tmp_path: Path) -> None:
    """The empty patch is taken as it is, and the test files are put in place all the same."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        result = await applied(box, repo, b" \n")
        assert isinstance(result, apply.Applied)
        assert result.rung == apply.Rung.EMPTY
        assert await own_tests_in_place(box)


def _no_final_newline(repo: Repo) -> bytes:
    return repo.reference[:-1]


def _stale_context(repo: Repo) -> bytes:
    return repo.reference.replace(b" def total", b" def sum_of")


@pytest.mark.parametrize("make", [_no_final_newline, _stale_context])
async def test_patch_is_the_last_rung(tmp_path: Path, make: Callable[[Repo], bytes]) -> None:
    """What git refuses and `patch` takes with fuzz is applied once, from a fresh tree, and leaves no scraps."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        added = repo.diff(lambda root: (root / "new.py").write_text("x = 1\n"))
        result = await applied(box, repo, added + make(repo))
        assert isinstance(result, apply.Applied)
        assert result.rung == apply.Rung.PATCH_FUZZ
        assert (await box.read("/testbed/sums.py")).count(b"result += number") == 1
        assert await shell(box, "git status --porcelain --ignored -- . ':!tests'") == b" M sums.py\n?? new.py\n"


async def test_a_refused_patch_leaves_the_tree_alone(tmp_path: Path) -> None:
    """A patch that no rung takes whole is refused with git's words, and none of its hunks is left in the tree."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        result = await applied(box, repo, repo.reference + REFUSED_EVERYWHERE)
        assert isinstance(result, apply.PatchRefused)
        assert "patch does not apply" in result.words
        assert await shell(box, "git status --porcelain --ignored") == b""


async def test_a_full_disk_refuses_no_patch(tmp_path: Path) -> None:
    """What cannot be applied for want of room is the sandbox's trouble, never a rejected patch nor an unfit task."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        fill = "rm -rf /tmp; ln -s /dev/shm /tmp; cat /dev/zero >/dev/shm/fill; truncate -s -256K /dev/shm/fill"
        await shell(box, fill)
        for patch, test_patch in ((REFUSED_EVERYWHERE, None), (repo.reference, REFUSED_EVERYWHERE)):
            with pytest.raises(SandboxError, match="disk is full"):
                await applied(box, repo, patch, test_patch)


def _much(repo: Repo) -> bytes:
    """A patch of 3 MiB that mends the fault, too."""
    lines = b"".join(b"+%063d\n" % number for number in range(49_152))
    head = b"diff --git a/much b/much\nnew file mode 100644\n--- /dev/null\n+++ b/much\n@@ -0,0 +1,49152 @@\n"
    return head + lines + repo.reference


async def test_a_large_patch_is_applied_as_a_small_one_is(tmp_path: Path) -> None:
    """A patch that goes in pieces takes the same rung, byte for byte, and leaves nothing of ours behind."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        patch = _much(repo)
        result = await applied(box, repo, patch)
        assert result == apply.Applied(apply.Rung.GIT_APPLY, ("tests/test_other.py", "tests/test_sums.py"))
        assert await own_tests_in_place(box)
        assert b"".join(b"%063d\n" % number for number in range(49_152)) == await box.read("/testbed/much")
        assert await shell(box, "ls -A /tmp; git status --porcelain --ignored") == (
            b" M sums.py\n M tests/test_sums.py\n?? much\n?? tests/test_other.py\n"
        )
        refused = await applied(box, repo, patch + REFUSED_EVERYWHERE)
        assert isinstance(refused, apply.PatchRefused)
        assert b"" == await shell(box, "ls -A /tmp")


async def test_a_full_disk_takes_no_large_patch(tmp_path: Path) -> None:
    """A large patch that finds no room is the sandbox's trouble, and is never cut."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        await shell(
            box, "rm -rf /tmp; ln -s /dev/shm /tmp; cat /dev/zero >/dev/shm/fill; truncate -s -1500K /dev/shm/fill"
        )
        with pytest.raises(SandboxError, match=r"did not take the patch; make room.*No space left"):
            await applied(box, repo, _much(repo))


async def test_without_the_patch_program_only_what_it_would_refuse_too_is_rejected(tmp_path: Path) -> None:
    """What git refuses is nobody's rejected patch in an image that lacks `patch`, unless a file is not there."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        await box.run(
            "mkdir /tmp/bin; for p in bash git cat grep head tail mkdir rm cp sha256sum readlink; do"
            " ln -s $(type -P $p) /tmp/bin/; done; PATH=/tmp/bin",
            timeout_s=20,
            session=apply.SESSION,
        )
        absent = repo.reference.replace(b"sums.py", b"absent.py")
        expected = {_stale_context(repo): apply.TaskUnfit, absent: apply.PatchRefused, repo.reference: apply.Applied}
        assert expected == {patch: type(await applied(box, repo, patch)) for patch in expected}


def _edit(root: Path) -> None:
    (root / "tests/test_sums.py").write_text("def test_total():\n    pass\n")


def _create(root: Path) -> None:
    (root / "tests/test_other.py").write_text("evil\n")


def _delete(root: Path) -> None:
    (root / "tests/test_sums.py").unlink()


def _directory_in_the_way(root: Path) -> None:
    (root / "tests/test_other.py").mkdir()
    (root / "tests/test_other.py/x").write_text("x")


def _link_in_the_way(root: Path) -> None:
    (root / "tests/test_other.py").symlink_to("/testbed/README")


def _file_for_directory(root: Path) -> None:
    git(root, "rm", "-rq", "tests")
    (root / "tests").write_text("x")


def _link_for_directory(root: Path) -> None:
    git(root, "rm", "-rq", "tests")
    (root / "away").mkdir()
    (root / "away/x").write_text("x")
    (root / "tests").symlink_to("away")


def _executable(root: Path) -> None:
    (root / "tests/test_sums.py").chmod(0o755)


@pytest.mark.parametrize(
    "edit",
    [
        _edit,
        _create,
        _delete,
        _directory_in_the_way,
        _link_in_the_way,
        _file_for_directory,
        _link_for_directory,
        _executable,
    ],
)
async def test_test_files_are_the_tasks_own(tmp_path: Path, edit: Callable[[Path], None]) -> None:
    """Whatever a patch does at the paths of the test files, the tests that run are the task's own, byte for byte."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        result = await applied(box, repo, repo.diff(edit))
        assert isinstance(result, apply.Applied)
        assert await own_tests_in_place(box)
        assert await shell(box, "stat -c %a tests/test_sums.py; cat README") == b"644\nSums.\n"


async def test_attributes_and_hooks_of_a_patch_do_nothing(tmp_path: Path) -> None:
    """Attributes that a patch brings change no byte of the test files, and drivers in the repository are not run."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        await shell(
            box,
            "for d in clean smudge process; do git config filter.evil.$d 'touch /tmp/ran; cat'; done;"
            "git config core.fsmonitor 'touch /tmp/ran'; git config core.hooksPath /testbed/hooks;"
            "git config core.autocrlf true; mkdir hooks; printf '#!/bin/sh\\ntouch /tmp/ran\\n' >hooks/post-checkout;"
            "printf '#!/bin/sh\\ntouch /tmp/ran\\n' >hooks/post-index-change; chmod +x hooks/*",
        )
        brought = repo.diff(
            lambda root: (root / ".gitattributes").write_text("* filter=evil ident text eol=crlf\n*.py diff=evil\n")
        )
        result = await applied(box, repo, brought + repo.reference)
        assert isinstance(result, apply.Applied)
        assert await own_tests_in_place(box)
        assert await shell(box, "ls -A /tmp") == b""


async def test_binary_and_odd_names_arrive(tmp_path: Path) -> None:
    """Binary hunks, modes, links, renames, CR LF and names that git quotes arrive byte for byte."""

    def edit(root: Path) -> None:
        (root / "ä b\t.bin").write_bytes(bytes(range(256)))
        (root / "crlf.txt").write_bytes(b"a\r\nb\xff\r\nno newline")
        git(root, "mv", "README", "READ ME")
        (root / "link").symlink_to("READ ME")
        (root / "run.sh").write_text("#!/bin/sh\n")
        (root / "run.sh").chmod(0o755)

    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        result = await applied(box, repo, repo.diff(edit))
        assert isinstance(result, apply.Applied)
        assert await box.read("/testbed/ä b\t.bin") == bytes(range(256))
        assert await box.read("/testbed/crlf.txt") == b"a\r\nb\xff\r\nno newline"
        assert await shell(box, "readlink link; cat link; stat -c %a run.sh; ls README 2>/dev/null") == (
            b"READ ME\nSums.\n755\n"
        )


async def test_base_falls_back_to_head(tmp_path: Path) -> None:
    """Where the image does not hold the row's base commit, HEAD's test files are the base."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        tests = patch_of(repo.test_patch)
        result = await apply.apply(box, patch_of(b""), tests, workdir="/testbed", base_commit="d" * 40)
        assert isinstance(result, apply.Applied)
        assert await own_tests_in_place(box)


async def test_listed_test_files_are_restored_too(tmp_path: Path) -> None:
    """Files that the row's script restores are restored even where the test patch does not touch them."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        patch = patch_of(repo.diff(lambda root: (root / "tests/__init__.py").write_text("raise SystemExit\n")))
        result = await apply.apply(
            box,
            patch,
            patch_of(repo.test_patch),
            test_files=("tests/__init__.py",),
            workdir="/testbed",
            base_commit="HEAD",
        )
        assert isinstance(result, apply.Applied)
        assert await box.read("/testbed/tests/__init__.py") == b""


@pytest.mark.parametrize("test_patch", [b"", b"\n\n"])
async def test_a_task_without_a_test_patch(tmp_path: Path, test_patch: bytes) -> None:
    """An empty test patch is no fault: the submission is applied, and no test file is touched."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        result = await applied(box, repo, repo.reference, test_patch)
        assert result == apply.Applied(apply.Rung.GIT_APPLY, ())
        assert await shell(box, "git status --porcelain") == b" M sums.py\n"


async def test_a_test_patch_that_does_not_fit_is_the_tasks_fault(tmp_path: Path) -> None:
    """A test patch that the base does not take makes the task unfit, before the submission is tried."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        result = await applied(box, repo, repo.reference, REFUSED_EVERYWHERE)
        assert isinstance(result, apply.TaskUnfit)
        assert "patch does not apply" in result.words
        assert await shell(box, "git status --porcelain") == b""


async def test_an_image_without_a_repository_is_unfit(tmp_path: Path) -> None:
    """Where the plan's directory is no git work tree, the task is unfit for this image."""
    async with toy(tmp_path) as (repo, provider), provider.sandbox(SandboxSpec(image="host")) as box:
        await shell(box, "rm -rf .git")
        result = await applied(box, repo, repo.reference)
        assert isinstance(result, apply.TaskUnfit)
        assert "work tree" in result.why
