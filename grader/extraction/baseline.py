"""What a task's image ships under the repository, recorded before an agent's first command.

The tree is read by execd. The image's git index, where there is one, is copied out and read by a git of our own: it
says which paths are tracked, and which are submodules. A submodule's commit is the one that its own HEAD names.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from anyio import to_thread

from grader.extraction.git import GitRefused, make_repository, run
from grader.extraction.host import files_of_ours
from sandbox import Sandbox
from sandbox.errors import CommandRefused, FileRefused
from sandbox.manifest import Manifest

_COMMIT = re.compile(rb"[0-9a-f]{40,64}")
_SMALL = 4096


@dataclass(frozen=True)
class Baseline:
    """The tree at `root` as the image ships it."""

    root: str
    manifest: Manifest
    tracked: frozenset[bytes]
    """Paths that the image's git index names. Empty where there is no index that can be read."""
    submodules: Mapping[bytes, bytes]
    """The commit that each submodule has checked out; empty bytes where none is."""


async def record(box: Sandbox, root: str) -> Baseline:
    """Record what lies at `root`, a directory. Raises `SandboxError`, or `HostFailed` when this host has no git that
    runs or no disk: that is not taken for an image without tracked files."""
    manifest = await box.baseline(root)
    tracked, links = await _index(box, root)
    return Baseline(root, manifest, tracked, await submodules(box, root, links, manifest))


async def _index(box: Sandbox, root: str) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """The tracked paths, and those of them that are submodules."""
    try:
        data = await box.read(f"{root}/.git/index")
        listed = await to_thread.run_sync(_listed, data)
    except (FileRefused, GitRefused):
        return frozenset(), frozenset()
    entries = [line.partition(b"\t") for line in listed.split(b"\0") if line]
    return (
        frozenset(path for _, _, path in entries),
        frozenset(path for facts, _, path in entries if facts.startswith(b"160000 ")),
    )


def _listed(index: bytes) -> bytes:
    with files_of_ours(), tempfile.TemporaryDirectory(prefix="grader-index-") as folder:
        repository = Path(folder, "git")
        make_repository(repository)
        Path(folder, "index").write_bytes(index)
        return run(repository, "ls-files", "--stage", "-z", GIT_INDEX_FILE=str(Path(folder, "index")))


async def submodules(box: Sandbox, root: str, paths: Iterable[bytes], manifest: Manifest) -> dict[bytes, bytes]:
    """The commit that each of these submodules has checked out now."""
    found = {}
    for path in sorted(paths):
        marker = manifest.get(path + b"/.git")
        where = PurePosixPath(root, path.decode("utf-8", "surrogateescape"), ".git")
        if marker is not None and len(marker.digest) > 1:  # a file that names the git directory
            line = await _small(box, str(where))
            where = where.parent / line.removeprefix(b"gitdir: ").strip().decode("utf-8", "surrogateescape")
        found[path] = await _head(box, str(where)) if marker is not None else b""
    return found


async def _head(box: Sandbox, git_dir: str) -> bytes:
    head = (await _small(box, f"{git_dir}/HEAD")).strip()
    if head.startswith(b"ref: "):
        head = (await _small(box, f"{git_dir}/{head[5:].decode('utf-8', 'surrogateescape')}")).strip()
    return head if _COMMIT.fullmatch(head) else b""


async def _small(box: Sandbox, path: str) -> bytes:
    try:
        return await box.read(path, limit=_SMALL)
    except (FileRefused, CommandRefused):  # the agent may have written anything where a path should stand
        return b""
