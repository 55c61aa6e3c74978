"""Which files a patch touches, by `unidiff`. It inspects only; `git` applies. Pure.

`unidiff` is stricter than git in a few places. Where git takes a patch as it is (mode changes and renames without
hunks, binary hunks, text before the first diff, a last hunk without its final newline), so does this.
"""

from __future__ import annotations

from dataclasses import dataclass

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

_NO_FILE = "/dev/null"


@dataclass(frozen=True)
class PatchFiles:
    """What a patch touches; or, with `fault`, why it is no patch."""

    paths: tuple[str, ...]
    """Old and new names of every file, without `a/` and `b/`, each once, in order. Bytes that are not UTF-8 are kept
    as surrogates."""
    fault: str | None = None


def inspect(patch: bytes) -> PatchFiles:
    """The files of `patch`. A patch that cannot be read gives a fault, never an exception."""
    text = patch.decode("utf-8", "surrogateescape")
    try:
        files = list(PatchSet.from_string(text))
    except UnidiffParseError as error:
        return PatchFiles((), str(error).strip()[:200])
    names = [name for file in files for name in (file.source_file, file.target_file)]
    paths = tuple(dict.fromkeys(_plain(name) for name in names if name and name != _NO_FILE))
    return PatchFiles(paths, None if paths else "it names no file")


def _plain(name: str) -> str:
    """A name of a patch header without its `a/` or `b/`, and without what may follow a tab."""
    name = name.split("\t", 1)[0].strip().strip('"')
    return name[2:] if name[:2] in {"a/", "b/"} else name
