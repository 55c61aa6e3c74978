"""Run this host's git where nothing but what is said here can steer it: nobody's configuration, hooks or attributes.

Every command names its git directory, which is one of our own. Nothing of a sandbox is ever a work tree, a
configuration or a program here: only bytes that go in, and paths that are data.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

from grader.extraction.host import HostFailed

CONFIG = """\
[core]
\trepositoryformatversion = 0
\tbare = true
\tautocrlf = false
\tsafecrlf = false
\tquotePath = true
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\thooksPath = /dev/null
\tfsmonitor = false
\tfsync = none
\tpackedGitWindowSize = 1m
\tpackedGitLimit = 8m
[diff]
\talgorithm = myers
\trenames = false
\tnoprefix = false
\tmnemonicPrefix = false
\tsuppressBlankEmpty = false
[fastimport]
\tunpackLimit = 0
[gc]
\tauto = 0
[pack]
\tcompression = 0
"""
TIMEOUT_S = 120.0


class GitFailed(HostFailed):
    """This host's git did not do what was asked: it is missing, its disk is full, or it is a defect of ours."""


class GitRefused(GitFailed):
    """This host's git ran, and took what it was given for broken."""


def make_repository(path: Path) -> None:
    """An empty bare repository whose configuration is `CONFIG`."""
    for name in ("objects", "refs"):
        (path / name).mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/none\n")
    (path / "config").write_text(CONFIG)


def run(repository: Path, *arguments: str, stdout: IO[bytes] | None = None, **variables: str) -> bytes:
    """Run git in `repository` and return what it wrote, unless `stdout` takes it. Raises `GitFailed`."""
    try:
        ended = subprocess.run(
            ["git", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(repository, **variables),
            cwd=repository,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitFailed(f"git could not be run on this host ({error}); install git, or look at its disk") from error
    if ended.returncode != 0:
        told = ended.stderr[-2000:].decode("utf-8", "backslashreplace")
        raise GitRefused(f"git {arguments[0]} ended with {ended.returncode}: {told}; look at this host's git and disk")
    return ended.stdout or b""


def environment(repository: Path, **more: str) -> dict[str, str]:
    """The whole environment of a git command."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": str(repository),
        "XDG_CONFIG_HOME": str(repository),
        "GIT_DIR": str(repository),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        **more,
    }
