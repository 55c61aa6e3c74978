"""The real daemon in a subprocess, on every Python that is found."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.bundle import bundle, compile_argv, daemon_argv
from sandbox.client import ExecdClient

TOKEN = "a token of the tests"
OLDEST = (3, 6)


def _version(python: Path) -> tuple[int, int] | None:
    code = "import sys; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, check=True, timeout=60)
        major, minor = answer.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def found_pythons() -> dict[str, str]:
    """One interpreter per version from 3.6 on: of pyenv, of the system, and the one that runs the tests."""
    candidates = sorted(Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/3*/bin/python"))
    candidates += sorted(Path("/usr/bin").glob("python3.[0-9]*"))
    found: dict[tuple[int, int], str] = {}
    for python in candidates:
        version = _version(python)
        if version is not None and version >= OLDEST:
            found.setdefault(version, str(python))
    found.setdefault(sys.version_info[:2], sys.executable)
    return {f"{major}.{minor}": found[major, minor] for major, minor in sorted(found)}


PYTHONS = found_pythons()


def compiled_by(python: str, folder: Path) -> bytes:
    """execd's byte code for a Python, as a provider has it made."""
    sources = folder / "sources.pyz"
    sources.write_bytes(bundle())
    return subprocess.run(compile_argv(python, str(sources)), check=True, stdout=subprocess.PIPE, timeout=60).stdout


@dataclass(frozen=True)
class Running:
    """A daemon under test."""

    process: subprocess.Popen[bytes]
    port: int
    started_at: float
    """By `time.perf_counter`, just before the process was started."""

    @contextlib.asynccontextmanager
    async def client(self, token: str = TOKEN) -> AsyncIterator[ExecdClient]:
        """A ready client of it."""
        client = ExecdClient("127.0.0.1", self.port, token)
        try:
            await client.wait_ready(60)
            yield client
        finally:
            await client.aclose()


@contextlib.contextmanager
def daemon(folder: Path, python: str = sys.executable, **config: object) -> Iterator[Running]:
    """Start a daemon as a provider does: zipapp on disk, listening socket and start document passed in."""
    folder.mkdir(parents=True, exist_ok=True)
    zipapp = folder / "execd.pyz"
    zipapp.write_bytes(bundle(compiled_by(python, folder)))
    start = {
        "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
        "env": {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8"},
        "workdir": str(folder),
        "lifetime_s": 600,
        **config,
    }
    config_r, config_w = os.pipe()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        os.write(config_w, json.dumps(start).encode())
        os.close(config_w)
        started_at = time.perf_counter()
        process = subprocess.Popen(
            daemon_argv(python, str(zipapp), listen_fd=listener.fileno(), config_fd=config_r),
            pass_fds=(listener.fileno(), config_r),
            cwd=folder,
        )
        os.close(config_r)
        port = listener.getsockname()[1]
    try:
        yield Running(process, port, started_at)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon on the Python that runs the tests, shared by a module's tests."""
    with daemon(tmp_path_factory.mktemp("execd")) as started:
        yield started


@pytest.fixture(scope="module", params=sorted(PYTHONS), ids=lambda version: f"python{version}")
def on_each_python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon on each Python found."""
    with daemon(tmp_path_factory.mktemp("execd"), PYTHONS[request.param]) as started:
        yield started
