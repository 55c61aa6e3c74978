"""Claims about `grader.scrub`: no road of git's leads from a rollout to the fix, and the past stays."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from grader.apply import SESSION
from grader.scrub import Scrub, scrub
from sandbox import LocalConfig, Sandbox, SandboxSpec, open_provider
from tests.grader.tasks import Seeded, make_repo

pytestmark = pytest.mark.anyio

FUTURE = "THE FIX"
BEFORE = "echo past >past.txt; git add -A; git commit -qm past; echo more >>past.txt; git commit -qam base"
FIX = f"echo '{FUTURE}' >fix.txt; git add -A; git commit -qm fix; FIX=$(git rev-parse HEAD); git reset -q --hard HEAD~"

ROADS = {
    "a branch ahead": "git branch ahead $FIX",
    "a tag": "git tag v2 $FIX; git tag -a -m 'release' v3 $FIX",
    "the reflog": "true",
    "a stash": "git stash -q; echo x >>past.txt; git stash -q; git reflog expire --expire=now --all HEAD",
    "a remote": "git update-ref refs/remotes/origin/main $FIX; git symbolic-ref refs/remotes/origin/HEAD"
    " refs/remotes/origin/main; git config remote.origin.url /somewhere",
    "packed refs": "git tag v2 $FIX; git pack-refs --all",
    "FETCH_HEAD": 'echo "$FIX not-for-merge" >.git/FETCH_HEAD',
    "notes and replacements": "git update-ref refs/notes/x $FIX; git update-ref refs/replace/$(git rev-parse HEAD)"
    " $FIX",
    "unreachable and loose": "rm -rf .git/logs .git/ORIG_HEAD",
    "unreachable and packed": "git branch x $FIX; git repack -adq; git branch -qD x; rm -rf .git/logs .git/ORIG_HEAD",
    "a kept pack": "git branch x $FIX; git repack -adq; for p in .git/objects/pack/*.pack; do touch ${p%.pack}.keep;"
    " done; git branch -qD x",
    "alternates": "cp -r .git/objects /tmp/alt-$$; rm -rf .git/objects/??; mkdir -p .git/other; mv /tmp/alt-$$"
    " .git/other/objects; echo ../other/objects >.git/objects/info/alternates",
    "another work tree": "git worktree add -q --detach .git/elsewhere $FIX",
    "a rebase at rest": "mkdir .git/rebase-merge; echo $FIX >.git/rebase-merge/onto; git format-patch -q -1 $FIX -o"
    " .git/rebase-merge",
    "a staged blob": f"echo '{FUTURE}' | git hash-object -w --stdin",
    "a bundle": "git bundle create -q .git/fix.bundle $FIX HEAD 2>/dev/null || git bundle create .git/fix.bundle HEAD",
    "a detached head": "git tag v2 $FIX; git checkout -q --detach",
    "a message": "git commit -q --allow-empty -m 'THE FIX' --no-verify; git reset -q --hard HEAD~",
}


@asynccontextmanager
async def on_an_image(folder: Path, road: str) -> AsyncIterator[Sandbox]:
    repo = make_repo(folder / "repo").path
    script = f"set -e; {BEFORE}; {FIX}; {road}"
    who = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t"}
    subprocess.run(["bash", "-c", script], cwd=repo, check=True, capture_output=True, env={"PATH": "/usr/bin", **who})
    async with (
        open_provider(LocalConfig(state_dir=folder / "state")) as provider,
        Seeded(provider, repo).sandbox(SandboxSpec(image="host")) as box,
    ):
        yield box


async def scrubbed(box: Sandbox) -> tuple[Scrub, ...]:
    return await scrub(box, "/testbed", await box.baseline("/testbed"))


STATUS = "cd /testbed && GIT_NO_REPLACE_OBJECTS=1 git status --porcelain"
SEARCH = rf"""
cd /testbed
git cat-file --batch-all-objects --batch-check='%(objectname)' | git cat-file --batch | grep -ac '{FUTURE}'
git log --all --reflog --format=%s | grep -ac 'fix\|{FUTURE}'
grep -rac '{FUTURE}' .git | grep -v ':0$'
git fsck --unreachable --no-reflogs 2>&1 | grep unreachable
exit 0
"""


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS.keys())
async def test_no_road_leads_to_the_fix(tmp_path: Path, road: str) -> None:
    """However the fix came to lie in the git directory, no object, ref, log or file of it shows the fix afterwards."""
    async with on_an_image(tmp_path, road) as box:
        status = await box.run(STATUS, timeout_s=20)
        (done,) = await scrubbed(box)
        assert () == done.left
        found = await box.run(f"({SEARCH})", timeout_s=20)
        assert b"0\n0\n" == found.output
        past = await box.run(
            "cd /testbed && git log --format=%s && git log -p --follow past.txt | grep -c more", timeout_s=20
        )
        assert b"base\npast\nbase\n1\n" == past.output
        after = await box.run(STATUS, timeout_s=20)
        assert (status.output, 0) == (after.output, after.exit_code)
        assert done.objects > 0 and len(done.head) == 40


async def test_work_goes_on_with_a_scrubbed_repository(tmp_path: Path) -> None:
    """Committing, branching and blaming work as before."""
    async with on_an_image(tmp_path, ROADS["a branch ahead"]) as box:
        await scrubbed(box)
        worked = await box.run(
            "cd /testbed && git switch -qc work && echo x >>past.txt && git -c user.name=a -c user.email=b commit"
            " -qam x && git blame past.txt | wc -l && git fsck --strict && git log --format=%s",
            timeout_s=20,
        )
        assert (b"3\nx\nbase\npast\nbase\n", 0) == (worked.output, worked.exit_code)


async def test_what_the_index_names_stays(tmp_path: Path) -> None:
    """A change that the image ships staged is still staged afterwards, and counts as nothing left."""
    async with on_an_image(tmp_path, "echo staged >>past.txt; git add -A; rm -rf .git/logs") as box:
        (done,) = await scrubbed(box)
        assert () == done.left
        diff = await box.run("cd /testbed && git diff --cached", timeout_s=20)
        assert b"+staged" in diff.output


async def test_submodules_are_scrubbed_too(tmp_path: Path) -> None:
    """A submodule's git directory keeps what its own HEAD reaches, and nothing else."""
    module = (
        "git init -q ../lib; echo one >../lib/l; git -C ../lib add -A; git -C ../lib commit -qm one;"
        " git -c protocol.file.allow=always submodule --quiet add $PWD/../lib lib; git commit -qm sub;"
        f" echo '{FUTURE}' >../lib/l; git -C ../lib commit -qam two; git -C lib -c protocol.file.allow=always fetch -q"
    )
    async with on_an_image(tmp_path, module) as box:
        done = await scrubbed(box)
        assert ["/testbed/.git", "/testbed/.git/modules/lib"] == [each.git_dir for each in done]
        assert all(each.clean for each in done), done
        log = await box.run("cd /testbed/lib && git log --all --format=%s && git fsck --unreachable", timeout_s=20)
        assert b"one\n" == log.output


async def test_without_git_in_the_image_it_is_said(tmp_path: Path) -> None:
    """An image that cannot scrub its own repository is not clean."""
    async with on_an_image(tmp_path, "true") as box:
        await box.run(
            "mkdir /tmp/no && ln -s /bin/bash /usr/bin/sort /usr/bin/mktemp /tmp/no; PATH=/tmp/no",
            timeout_s=20,
            session=SESSION,
        )
        (done,) = await scrubbed(box)
        assert not done.clean and "could not scrub" in done.left[0]


async def test_the_check_trusts_no_git(tmp_path: Path) -> None:
    """Where the image's git says that all was done and it was not, the daemon's look at the files finds it."""
    async with on_an_image(tmp_path, ROADS["a kept pack"]) as box:
        lie = (
            'mkdir /tmp/lie; printf \'#!/bin/bash\\ncase "$*" in *repack*|*prune*) exit 0;; *--batch-all-objects*)'
            " exec /usr/bin/git rev-list --objects --indexed-objects HEAD --no-object-names;; esac\\n"
            'exec /usr/bin/git "$@"\\n\' >/tmp/lie/git; chmod +x /tmp/lie/git; PATH=/tmp/lie:$PATH'
        )
        await box.run(lie, timeout_s=20, session=SESSION)
        (done,) = await scrubbed(box)
        assert not done.clean and "objects are stored" in done.left[-1]


async def test_a_tree_without_a_repository_has_nothing_to_scrub(tmp_path: Path) -> None:
    """No git directory, no scrub."""
    async with on_an_image(tmp_path, "true") as box:
        await box.run("rm -rf /testbed/.git", timeout_s=20)
        assert () == await scrubbed(box)
