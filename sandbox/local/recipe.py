"""What the builder is asked to build, as values, and the text of each step. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

VENV = "/opt/venv"
SCRATCH = "/tmp/image-build"
"""Where the build keeps what the image must not hold."""
CONSTRAINTS = f"{SCRATCH}/constraints.txt"
_COMMITTED_AT = "2000-01-01T00:00:00+0000"
_GIT = (
    "env GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 "
    "GIT_AUTHOR_NAME=baseline GIT_AUTHOR_EMAIL=baseline@localhost "
    "GIT_COMMITTER_NAME=baseline GIT_COMMITTER_EMAIL=baseline@localhost "
    f"GIT_AUTHOR_DATE={_COMMITTED_AT} GIT_COMMITTER_DATE={_COMMITTED_AT} "
    "git -c core.autocrlf=false -c core.hooksPath=/dev/null -c gc.auto=0 -c commit.gpgSign=false"
)


@dataclass(frozen=True)
class Archive:
    """A release archive by its file name (`<name>-<version>.<suffix>`) and the SHA-256 of its bytes."""

    file: str
    sha256: str

    @property
    def requirement(self) -> str:
        """`name==version`, as pip takes it."""
        name, _, version = re.sub(r"\.(tar\.gz|tgz|tar\.bz2|tar\.xz|zip)$", "", self.file).rpartition("-")
        return f"{name}=={version}"


@dataclass(frozen=True)
class Tree:
    """A directory on the host whose content has the given hash."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class BuildPlan:
    """Everything that decides a recipe's image, and a name for people that does not."""

    name: str
    base: str
    python: str
    source: Archive | Tree
    install: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    pins: tuple[str, ...] = ()
    workdir: str = "/testbed"

    def digest(self, base_digest: str, python_identity: str) -> str:
        """The digest of the image that this plan gives on that base with that Python."""
        shape = {
            "form": 1,  # raise it when the steps below change what an image holds
            "base": base_digest,
            "python": [self.python, python_identity],
            "source": self.source.sha256,
            "install": self.install,
            "env": dict(self.env),
            "pins": self.pins,
            "workdir": self.workdir,
        }
        return f"sha256:{hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()}"

    @property
    def constraints(self) -> str:
        """The pins as a pip constraint file: all but pip itself and the project, which no index may give."""
        own = canonical(self.source.requirement.partition("==")[0]) if isinstance(self.source, Archive) else ""
        kept = [pin for pin in self.pins if canonical(pin.partition("==")[0]) not in {own, "pip"}]
        return "".join(f"{pin}\n" for pin in kept)

    def differing_pins(self, installed: Mapping[str, str]) -> tuple[str, ...]:
        """What is not as pinned, each as `name==wanted (found)`. `installed` maps canonical names to versions."""
        wrong: list[str] = []
        for pin in self.constraints.splitlines():
            name, _, wanted = pin.partition("==")
            found = installed.get(canonical(name))
            if found != wanted:
                wrong.append(f"{pin} ({found or 'absent'})")
        return tuple(wrong)


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_installed(listing: str) -> dict[str, str]:
    """`pip list --format=freeze` as canonical name to version."""
    pairs = (line.strip().partition("==") for line in listing.splitlines())
    return {canonical(name): version for name, separator, version in pairs if separator}


def fetch_command(archive: Archive, python: str) -> str:
    """Leaves the archive in `SCRATCH/fetched`. pip runs the archive's own metadata code: only inside a sandbox."""
    name = archive.requirement.partition("==")[0]
    return (
        f"{shlex.quote(python)} -m venv {SCRATCH}/fetch && cd {SCRATCH} && "
        "{ fetch/bin/python -c 'import pip; assert int(pip.__version__.split(\".\")[0]) >= 21' 2>/dev/null "
        "|| fetch/bin/python -m pip install -q --upgrade pip; } && "
        "echo 'setuptools<69' > fetch/constraints.txt && "
        f"PIP_CONSTRAINT={SCRATCH}/fetch/constraints.txt fetch/bin/python -m pip download -q --no-deps "
        f"--no-binary {shlex.quote(name)} -d fetched {shlex.quote(archive.requirement)}"
    )


def unpack_command(archive: Archive, python: str, workdir: str) -> str:
    """Unpacks `SCRATCH/<file>` into `workdir`, without the archive's single top directory."""
    packed = f"{SCRATCH}/{archive.file}"
    if archive.file.endswith(".zip"):
        opened = f"{shlex.quote(python)} -m zipfile -e {packed} {SCRATCH}/unpacked"
    else:
        opened = f"mkdir -p {SCRATCH}/unpacked && tar -xf {packed} --no-same-owner -C {SCRATCH}/unpacked"
    return f"{opened} && mkdir -p {shlex.quote(workdir)} && cp -a {SCRATCH}/unpacked/*/. {shlex.quote(workdir)}/"


def baseline_command(workdir: str) -> str:
    """Commits the source as it is, all of it, with fixed names and times: one source, one commit id."""
    return (
        f"cd {shlex.quote(workdir)} && rm -rf .git && {_GIT} init -q --template= && "
        f"{_GIT} symbolic-ref HEAD refs/heads/main && {_GIT} add -A -f . && "
        f"{_GIT} commit -q --allow-empty --no-verify -m baseline"
    )


def settle_command(workdir: str) -> str:
    """After the install commands: commits what they changed in tracked files, excludes what they left beside them, so
    that the tree is clean before anybody works on it. Prints the commit."""
    return (
        f"cd {shlex.quote(workdir)} && {_GIT} add -u . && "
        f"{{ {_GIT} diff --cached --quiet || {_GIT} commit -q --no-verify -m 'after the install commands'; }} && "
        "mkdir -p .git/info && printf '__pycache__/\\n*.py[co]\\n' >> .git/info/exclude && "
        f"{_GIT} -c core.quotePath=false ls-files --others --exclude-standard --directory "
        "| sed 's|^|/|' >> .git/info/exclude && "
        f"{_GIT} rev-parse HEAD"
    )


def venv_command(python: str) -> str:
    """Makes the environment that the recipe installs into."""
    return f"{shlex.quote(python)} -m venv {VENV}"


def install_pins_command(pins: Sequence[str]) -> str:
    """Installs exactly these, whatever needs them."""
    return f"{VENV}/bin/python -m pip install -q --no-deps {' '.join(map(shlex.quote, pins))}"


def python_check_command(python: str) -> str:
    """Prints the version, after making sure that environments with pip can be made."""
    return f"{shlex.quote(python)} -c 'import ensurepip, sys, venv; print(\"%d.%d.%d\" % sys.version_info[:3])'"
