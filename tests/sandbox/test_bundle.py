"""The zipapp: its size, its bytes, and the byte code that spares a daemon most of its start."""

from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path

import pytest

from sandbox import LocalConfig, SandboxSpec, open_provider
from sandbox.bundle import bundle
from tests.execd.conftest import PYTHONS, compiled_by

EACH_PYTHON = pytest.mark.parametrize("version", sorted(PYTHONS))
WHERE = """
import sys,_frozen_importlib_external as f;p=sys.argv.pop(1);sys.path[:0]=[p+'/'+f.MAGIC_NUMBER.hex(),p]
import execd.server, execd.shell, execd.facts
print(execd.server.__file__, execd.shell.__file__, execd.facts.__file__)
"""


def _where(python: str, zipapp: Path) -> list[str]:
    argv = [python, "-I", "-S", "-B", "-c", WHERE, str(zipapp)]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


@EACH_PYTHON
def test_byte_code_is_what_its_python_runs(version: str, tmp_path: Path) -> None:
    """With byte code of its own every Python takes it, and compiles nothing at the start."""
    zipapp = tmp_path / "execd.pyz"
    zipapp.write_bytes(bundle(compiled_by(PYTHONS[version], tmp_path)))
    assert all(path.endswith(".pyc") for path in _where(PYTHONS[version], zipapp))


@EACH_PYTHON
def test_without_byte_code_the_sources_run(version: str, tmp_path: Path) -> None:
    """Every Python runs the sources where nothing was compiled."""
    zipapp = tmp_path / "execd.pyz"
    zipapp.write_bytes(bundle())
    assert all(path.endswith(".py") for path in _where(PYTHONS[version], zipapp))


@pytest.mark.parametrize("nonsense", [b"", b"\0\0\0\1x", b"\xff" * 100, bytes(4000)])
def test_byte_code_that_is_not_whole_is_left_out(nonsense: bytes) -> None:
    """What a broken Python wrote changes nothing: the zipapp is the sources."""
    assert bundle() == bundle(nonsense)


def test_the_zipapp_is_small() -> None:
    """What is shipped into a cluster is under 100 KB."""
    assert len(bundle()) < 100_000


@EACH_PYTHON
def test_the_zipapp_is_small_with_byte_code(version: str, tmp_path: Path) -> None:
    """So is what the local provider mounts, on every Python."""
    compiled = bundle(compiled_by(PYTHONS[version], tmp_path))
    assert compiled != bundle()
    assert len(compiled) < 100_000


@pytest.mark.anyio
async def test_the_local_provider_compiles_once(tmp_path: Path) -> None:
    """The first open compiles execd in a sandbox of the image; the next one finds it made."""
    made = []
    for _ in range(2):
        async with open_provider(LocalConfig(state_dir=tmp_path)) as provider:
            async with provider.sandbox(SandboxSpec(image="host")) as box:
                found = await box.run("cat /dev/execd.pyz", timeout_s=30)
            made.append({path: path.stat().st_mtime_ns for path in (tmp_path / "execd").iterdir()})
            with zipfile.ZipFile(io.BytesIO(found.output)) as archive:
                assert any(name.endswith("execd/server.pyc") for name in archive.namelist())
    assert 1 == len(made[0])
    assert made[0] == made[1]
