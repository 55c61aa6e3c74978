"""Take out of a rollout's git directory what could show an agent the fix, and check from outside that it is out.

What stays is HEAD's own history: its branch, its ancestors, and what the index names. Other refs, reflogs, stashes,
remotes, replaced objects, alternates, other work trees and everything in `.git` that a fresh clone would not have are
removed, and objects that nothing else names go with them. Submodules' git directories are treated alike.

The scrub runs the image's own git, before the agent's first command, when the image is still what its digest names. The
check trusts none of it: execd lists the git directory, and the headers of the packs say how many objects there are.

Not covered: what the image holds outside of the repository (an installed newer version, a cache), and history that is
no git directory of this one (repositories nested in the tree): the latter are listed as left.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from grader.apply import SESSION
from sandbox import Sandbox, SandboxError
from sandbox.errors import FileRefused
from sandbox.manifest import Kind, Manifest

KEPT = ("HEAD", "branches", "config", "description", "hooks", "index", "info", "modules", "objects", "refs", "shallow")
"""What a scrubbed git directory may hold at its top."""
KEPT_INFO = (b"exclude", b"attributes", b"sparse-checkout")
_OBJECT = re.compile(rb"objects/[0-9a-f]{2}/[0-9a-f]{38,62}")
_PACK = re.compile(rb"objects/pack/pack-[0-9a-f]+\.pack")
_HARMLESS = re.compile(rb"objects(/info|/pack|/[0-9a-f]{2})?|objects/pack/pack-[0-9a-f]+\.(idx|rev|bitmap)")


@dataclass(frozen=True)
class Scrub:
    """What was taken out of one git directory, and what is left in it that should not be."""

    git_dir: str
    head: str
    """The commit whose history stays."""
    removed_refs: int
    removed_objects: int
    objects: int
    """How many objects there are now: counted from outside, and all reachable from HEAD or the index when `left` is
    empty."""
    left: tuple[str, ...]
    """What could still show the agent more than HEAD's history, in words."""

    @property
    def clean(self) -> bool:
        return not self.left


async def scrub(box: Sandbox, root: str, manifest: Manifest, *, timeout_s: float = 600.0) -> tuple[Scrub, ...]:
    """Scrub the repository at `root`, whose tree is `manifest`, and its submodules. Raises `SandboxError`.

    Nothing but git's own directory is changed. Empty where there is no repository at all.
    """
    marker = manifest.get(b".git")
    nested = tuple(
        f"{path.decode('utf-8', 'backslashreplace')}: a repository of its own, not scrubbed"
        for path, entry in manifest.items()
        if entry.kind is Kind.GIT and path != b".git" and entry.digest == Kind.DIRECTORY
    )
    top = f"{root}/.git"
    if marker is None:
        return (Scrub(top, "", 0, 0, 0, nested),) if nested else ()
    if marker.digest != Kind.DIRECTORY:
        return (Scrub(top, "", 0, 0, 0, ("it is no directory, and what it leads to was not scrubbed", *nested)),)
    done = [await _scrub_one(box, top, nested, timeout_s)]
    for git_dir in await _modules(box, top):
        done.append(await _scrub_one(box, git_dir, (), timeout_s))
    return tuple(done)


async def _modules(box: Sandbox, top: str) -> list[str]:
    """The git directories of submodules: wherever a HEAD lies beside objects."""
    try:
        inside = await box.baseline(f"{top}/modules")
    except FileRefused:
        return []
    folders = (path.rpartition(b"/")[0] for path in inside if path.endswith(b"/HEAD"))
    found = (folder for folder in folders if folder + b"/objects" in inside)
    return [f"{top}/modules/{folder.decode('utf-8', 'surrogateescape')}" for folder in found]


async def _scrub_one(box: Sandbox, git_dir: str, left: tuple[str, ...], timeout_s: float) -> Scrub:
    end = secrets.token_hex(8)
    ran = await box.run(
        f"bash -c {shlex.quote(_SCRIPT)} scrub {shlex.quote(git_dir)} {end} {' '.join(KEPT)}",
        timeout_s=timeout_s,
        session=SESSION,
    )
    said = dict(line.split(b" ", 1) for line in ran.output.split(b"\n") if b" " in line)
    head = said.get(b"head", b"").decode("ascii", "replace")
    if ran.timed_out:
        raise SandboxError(
            f"scrubbing {git_dir} did not end within {timeout_s:g} s; give it more, or a smaller history"
        )
    if said.get(b"end") != end.encode():
        words = ran.output[-300:].decode("utf-8", "replace").strip()
        return Scrub(git_dir, head, 0, 0, 0, (*left, f"the image's git could not scrub it: {words}"))
    numbers = {name: int(said[name]) for name in (b"refs", b"before", b"reachable")}
    objects, found = await _look(box, git_dir, head)
    left += tuple(found)
    if objects != numbers[b"reachable"]:
        left += (f"{objects} objects are stored, and HEAD and the index reach {numbers[b'reachable']}",)
    return Scrub(git_dir, head, numbers[b"refs"], numbers[b"before"] - objects, objects, left)


async def _look(box: Sandbox, git_dir: str, head: str) -> tuple[int, list[str]]:
    """How many objects the git directory stores, and what lies there that should not."""
    inside = await box.baseline(git_dir)
    objects = sum(1 for path in inside if _OBJECT.fullmatch(path))
    packs = [path for path in inside if _PACK.fullmatch(path)]
    async for _, piece in box.contents(git_dir, [(path, 12) for path in packs]):
        if piece:
            objects += int.from_bytes(piece[8:12], "big")
    return objects, [*_strangers(inside), *await _other_refs(box, git_dir, inside, head)]


def _strangers(inside: Manifest) -> Iterator[str]:
    for path, entry in inside.items():
        top, _, rest = path.partition(b"/")
        shown = path.decode("utf-8", "backslashreplace")
        if (path and not _stays(top)) or (top == b"info" and rest and rest not in KEPT_INFO):
            yield f"{shown}: was not removed"
        elif top == b"objects" and not any(each.fullmatch(path) for each in (_OBJECT, _PACK, _HARMLESS)):
            yield f"{shown}: an object store may hold more than HEAD's history"
        elif entry.kind is Kind.LINK and top in (b"HEAD", b"objects", b"refs"):
            yield f"{shown}: a link leads elsewhere"


def _stays(top: bytes) -> bool:
    return top.decode("utf-8", "replace") in KEPT or top.startswith(b"sharedindex.")


async def _other_refs(box: Sandbox, git_dir: str, inside: Manifest, head: str) -> list[str]:
    """Refs that name anything but the head."""
    left = []
    for path, entry in inside.items():
        if path.startswith(b"refs/") and entry.kind is Kind.FILE:
            name = path.decode("utf-8", "surrogateescape")
            if (await box.read(f"{git_dir}/{name}", limit=100)).strip() != head.encode():
                left.append(f"{path.decode('utf-8', 'backslashreplace')}: names another commit")
    return left


# Arguments: the git directory, the word that says that all was done, the names that stay at its top.
_SCRIPT = r"""
dir=$1 end=$2; shift 2
for name in $(compgen -e GIT_); do unset "$name"; done
export LC_ALL=C HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
export GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_DIR=$dir
git() { command git -c safe.directory='*' -c gc.auto=0 -c core.fsmonitor=false -c core.hooksPath=/dev/null "$@"; }
cd "$dir" || exit
work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT

stored() { git cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u; }
reached() { git rev-list --objects --indexed-objects HEAD | cut -d' ' -f1 | sort -u; }

head=$(git rev-parse --verify 'HEAD^{commit}') || exit
branch=$(git symbolic-ref -q HEAD)
printf 'head %s\n' "$head"
refs=$(git for-each-ref --format='%(refname)' | grep -cvxF -- "$branch")
before=$(stored | wc -l)

# One object store of our own first: what HEAD needs of another one is copied in.
if [ -e objects/info/alternates ]; then git repack -a -d -n -q || exit; fi

shopt -s nullglob dotglob
for path in *; do
  case " $* sharedindex.${path#sharedindex.} " in *" $path "*) ;; *) rm -rf -- "$path" || exit ;; esac
done
for path in info/*; do
  case $path in info/exclude | info/attributes | info/sparse-checkout) ;; *) rm -rf -- "$path" || exit ;; esac
done
rm -rf refs objects/info objects/pack/*.keep objects/pack/*.promisor || exit
mkdir -p refs/heads refs/tags objects/info || exit
case $branch in
  '') printf '%s\n' "$head" >HEAD ;;
  refs/*) mkdir -p -- "${branch%/*}" && printf '%s\n' "$head" >"$branch" ;;
esac || exit
git config --file config --name-only --get-regexp '^(remote|branch|url|extensions\.partialclone)' |
  sed 's/\.[^.]*$//' | sort -u | while IFS= read -r section; do
    git config --file config --remove-section "$section" 2>/dev/null
  done

stored >"$work/stored" && reached >"$work/reached" || exit
if ! cmp -s "$work/stored" "$work/reached" || compgen -G 'objects/pack/*.mtimes' >/dev/null; then
  git repack -a -d -n -q --no-write-bitmap-index || exit
  git prune --expire=now || exit
  reached >"$work/reached" || exit
fi
git prune-packed -q
rm -f info/refs objects/info/commit-graph objects/info/packs objects/pack/multi-pack-index
rm -rf objects/info/commit-graphs
printf '%s\n' "refs $refs" "before $before" "reachable $(wc -l <"$work/reached")" "end $end"
"""
