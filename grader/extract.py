"""An agent's work in a sandbox as a patch, with the proof that the patch gives the agent's tree.

    extraction = await extract(box, baseline, provider)
    extraction.patch, extraction.faithful, extraction.differences, extraction.excluded

The route: execd says what the agent's tree holds; a fresh sandbox of the same image has what it held before; the bytes
of both sides come out, are hashed again here, and a git of our own makes the patch. Then the patch is applied in the
fresh sandbox exactly as a grading does it, execd says what that tree holds, and the two trees are compared.

The law: nothing in the agent's sandbox but the daemon is asked, and no program of its image is run. What the patch does
not carry is listed; what is left out by declaration is counted and listed; nothing is cut.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anyio import to_thread

from grader import apply
from grader.extraction.baseline import Baseline, submodules
from grader.extraction.changes import Changes, Excluded, find
from grader.extraction.compare import Difference, What, differences, hard_links, moved_submodules
from grader.extraction.copies import copy_out
from grader.extraction.exclusions import Exclusions
from grader.extraction.host import files_of_ours
from grader.extraction.objects import Pair, make_patch
from grader.patch import EMPTY, MAX_BYTES, Patch, parse
from grader.patchtext import PatchText
from grader.record import Submission
from sandbox import Provider, Sandbox, SandboxError
from sandbox.manifest import Manifest
from sandbox.outlast import in_thread

_TRIES = 3
"""A file that changes between its hash and its copy makes the walk start again, so often."""


@dataclass(frozen=True)
class Extraction:
    """What an agent did, as a patch, and how far the patch goes."""

    text: PatchText | None
    """The patch where it lies: what is over a mebibyte in a file without a name, which is open as long as this object
    is. None: it would have more bytes than a grading takes; `differences` says so."""
    differences: tuple[Difference, ...]
    """What of the agent's tree the patch does not give."""
    excluded: tuple[Excluded, ...]
    """What was left out by declaration."""
    carried: tuple[bytes, ...]
    """The paths that the patch changes."""
    rung: str | None
    """The rung of the apply ladder that took it in the proof. None: none did."""
    phases_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def patch(self) -> bytes | None:
        """All of the patch, read anew each time; a large one goes piece by piece by `text.pieces()`."""
        return None if self.text is None else self.text.read()

    @property
    def faithful(self) -> bool:
        """Whether applying the patch to the image gives the agent's tree, but for what was left out by declaration and
        for what is only noted."""
        return self.text is not None and not any(difference.matters for difference in self.differences)

    def submission(self, task_id: str, model_name_or_path: str) -> Submission:
        """The patch as a submission to be graded. Raises ValueError when there is none."""
        if (patch := self.patch) is None:
            raise ValueError(f"{task_id}: there is no patch; look at the extraction's differences")
        return Submission(task_id, model_name_or_path, patch, "extraction")

    def record(self) -> dict[str, object]:
        """All but the patch itself as JSON-ready values, to be stored beside it."""
        return {
            "faithful": self.faithful,
            "patch_sha256": None if self.text is None else self.text.sha256,
            "differences": [str(difference) for difference in self.differences],
            "excluded": [
                {"path": _shown(each.path), "entries": each.entries, "bytes": each.size} for each in self.excluded
            ],
            "carried": [_shown(path) for path in self.carried],
            "apply_rung": self.rung,
            "phases_s": dict(self.phases_s),
        }


async def extract(
    box: Sandbox,
    baseline: Baseline,
    provider: Provider,
    *,
    exclusions: Exclusions | None = None,
    acquire_timeout_s: float = 300.0,
) -> Extraction:
    """Turn what lies under the baseline's root in `box` into a patch, and prove it in a fresh sandbox of `provider`.

    `box` is only read, and may go on being used. Raises `SandboxError`, or `HostFailed` when this host's git or disk
    fails: the sandbox can then be asked again.
    """
    clock = _Clock()
    work = _Work(box, baseline, exclusions or Exclusions(), clock)
    with clock.phase("walk"):
        state = await _look(work)
    if not state.changes.carried:
        return _extraction(work, EMPTY.text, state, baseline.manifest, rung=str(apply.Rung.EMPTY))
    async with clock.around("fresh", provider.sandbox(box.spec, acquire_timeout_s=acquire_timeout_s)) as fresh:
        with files_of_ours(), tempfile.TemporaryDirectory(prefix="grader-extract-") as folder:
            with clock.phase("copy"):
                state, pairs = await _copied(work, fresh, state, _Folders(Path(folder)))
            with clock.phase("diff"):
                text = await in_thread(make_patch, pairs, Path(folder, "git"), MAX_BYTES)
                patch = None if text is None else await to_thread.run_sync(parse, text)
        if not isinstance(patch, Patch):
            return _extraction(work, text, state, str(patch or f"the patch has more than {MAX_BYTES} bytes"))
        with clock.phase("apply"):
            applied = await apply.apply(fresh, patch, EMPTY, workdir=baseline.root, base_commit="HEAD")
        if not isinstance(applied, apply.Applied):
            return _extraction(work, text, state, applied.words)
        with clock.phase("proof"):
            proved = await fresh.baseline(baseline.root)
    return _extraction(work, text, state, proved, rung=str(applied.rung))


@dataclass(frozen=True)
class _Work:
    """What an extraction is made of."""

    box: Sandbox
    baseline: Baseline
    exclusions: Exclusions
    clock: _Clock


@dataclass(frozen=True)
class _State:
    """The agent's tree at one moment."""

    manifest: Manifest
    changes: Changes
    submodules: Mapping[bytes, bytes]
    moving: frozenset[bytes] = frozenset()


async def _look(work: _Work) -> _State:
    baseline = work.baseline
    manifest = await work.box.baseline(baseline.root)
    now = await submodules(work.box, baseline.root, baseline.submodules, manifest)
    return _State(manifest, find(baseline, manifest, work.exclusions), now)


async def _copied(work: _Work, fresh: Sandbox, state: _State, folders: _Folders) -> tuple[_State, list[Pair]]:
    """Both sides of every change, as files. Looks again when the agent's tree moves; what still moves at
    the last look is not carried."""
    root = work.baseline.root
    for attempt in range(_TRIES):
        new = await copy_out(work.box, root, state.changes.carried, "new", folders.made(f"new{attempt}"))
        moving = {c.path for c in state.changes.carried if c.new is not None and new.get(c.path) is None}
        if not moving:
            break
        if attempt < _TRIES - 1:
            state = await _look(work)
    still = tuple(change for change in state.changes.carried if change.path not in moving)
    state = _State(state.manifest, Changes(still, state.changes.excluded), state.submodules, frozenset(moving))
    old = await copy_out(fresh, root, still, "old", folders.made("old"))
    lost = [_shown(change.path) for change in still if change.old is not None and old.get(change.path) is None]
    if lost:
        raise SandboxError(
            f"a fresh sandbox does not hold what the rollout's held at its start: {', '.join(lost[:5])};"
            " name the image by its digest, so that both are the same"
        )
    return state, [Pair(change.path, old.get(change.path), new.get(change.path)) for change in still]


def _extraction(
    work: _Work, text: PatchText | None, state: _State, proved: Manifest | str, *, rung: str | None = None
) -> Extraction:
    """The result. `proved` is the tree that the patch gave, or why there is none."""
    carried = tuple(change.path for change in state.changes.carried)
    found: list[Difference] = []
    if isinstance(proved, str):
        found.append(Difference(b"", What.REFUSED, proved))
        proved = work.baseline.manifest
    found += differences(
        state.manifest, proved, exclusions=work.exclusions, tracked=work.baseline.tracked, moving=state.moving
    )
    found += moved_submodules(work.baseline.submodules, state.submodules)
    found += hard_links(state.manifest, frozenset(carried))
    return Extraction(text, tuple(found), state.changes.excluded, carried, rung, work.clock.phases_s)


@dataclass(frozen=True)
class _Folders:
    """A place for files of ours."""

    root: Path

    def made(self, name: str) -> Path:
        (self.root / name).mkdir()
        return self.root / name


class _Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.phases_s: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = time.monotonic() - began

    @asynccontextmanager
    async def around(self, name: str, sandbox: AbstractAsyncContextManager[Sandbox]) -> AsyncIterator[Sandbox]:
        """The sandbox, with the time that it took to have and to give back."""
        began = time.monotonic()
        async with sandbox as box:
            took = time.monotonic() - began
            yield box
            began = time.monotonic()
        self.phases_s[name] = took + time.monotonic() - began


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
