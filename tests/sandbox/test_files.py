"""Files and trees of a sandbox: what is written comes back byte for byte, and as whose."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.client import ExecdClient
from sandbox.errors import FileRefused
from tests.execd.conftest import daemon, running
from tests.sandbox.callers import client

__all__ = ["client", "running"]  # fixtures

pytestmark = pytest.mark.anyio


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
async def test_what_is_written_belongs_to_the_user_of_the_commands(tmp_path: Path) -> None:
    """With `user` set, written, created and uploaded files, and the parents made for them, are that user's."""
    tmp_path.chmod(0o777)
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/f").write_bytes(b"x")
    with daemon(tmp_path / "daemon", user="65534:65534") as started:
        async with started.client() as client:
            await client.write(str(tmp_path / "a/b/c"), b"x")
            await client.edit.create(str(tmp_path / "e"), "x")
            await client.upload(tmp_path / "tree", str(tmp_path / "copy"))
            assert b"65534\n" == (await client.run("id -u", timeout_s=30)).output
    names = ["a", "a/b", "a/b/c", "e", "copy", "copy/sub", "copy/sub/f"]
    assert {(65534, 65534)} == {((status := (tmp_path / name).stat()).st_uid, status.st_gid) for name in names}


async def test_read_takes_a_range(client: ExecdClient, tmp_path: Path) -> None:
    """Offset and limit cut the file as asked; beyond its end there is nothing."""
    path = str(tmp_path / "f")
    await client.write(path, bytes(range(256)))
    assert bytes(range(10, 15)) == await client.read(path, offset=10, limit=5)
    assert b"" == await client.read(path, offset=1000)
    assert b"" == await client.read(path, limit=0)


@pytest.mark.parametrize(
    ("path", "code"), [("/no/such", "not_found"), ("/usr", "is_directory"), ("/dev/null", "not_a_file")]
)
async def test_what_is_no_file_is_refused_by_name(client: ExecdClient, path: str, code: str) -> None:
    """Reading what is not a regular file says why; a device is never opened for reading forever."""
    with pytest.raises(FileRefused) as caught:
        await client.read(path)
    assert code == caught.value.code


async def test_write_keeps_mode_and_link_and_leaves_no_trace(client: ExecdClient, tmp_path: Path) -> None:
    """The old mode stays, a symlink stays and its target changes, no temporary file remains."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o751)
    link.symlink_to("target")
    await client.write(str(link), b"new")
    assert b"new" == target.read_bytes()
    assert 0o751 == target.stat().st_mode & 0o7777
    assert link.is_symlink()
    await client.write(str(target), b"newer", mode=0o600)
    assert 0o600 == target.stat().st_mode & 0o7777
    assert {"target", "link"} == {path.name for path in tmp_path.iterdir()}


async def test_a_tree_comes_back_as_it_went(client: ExecdClient, tmp_path: Path) -> None:
    """Modes, links, empty directories and names that are no UTF-8 survive both ways."""
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "run.sh").write_bytes(b"#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    (source / os.fsdecode(b"caf\xe9 \n")).write_bytes(b"x")
    (source / "large").write_bytes(random.Random(1).randbytes(3_000_000))
    await client.upload(source, str(tmp_path / "inside"))
    await client.download(str(tmp_path / "inside"), tmp_path / "back")
    assert _manifest(source) == _manifest(tmp_path / "inside") == _manifest(tmp_path / "back")


async def test_a_run_after_an_upload_is_answered_at_once(client: ExecdClient, tmp_path: Path) -> None:
    """However full the way to the unpacking child was at the end: the same connection takes the next request."""
    (tmp_path / "tree").mkdir()
    for number in range(50):
        (tmp_path / f"tree/{number}").write_bytes(bytes(20_000))
    for _ in range(5):
        await client.upload(tmp_path / "tree", str(tmp_path / "there"))
        begun = time.monotonic()
        assert 0 == (await client.run("true", timeout_s=60)).exit_code
        assert time.monotonic() - begun < 15


async def test_a_tree_that_would_leave_its_place_is_refused(client: ExecdClient, tmp_path: Path) -> None:
    """A sandbox cannot plant a link to the host's files: the download is refused and the link is gone."""
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/link").symlink_to("/etc")
    with pytest.raises(FileRefused) as caught:
        await client.download(str(tmp_path / "evil"), tmp_path / "here")
    assert "unsafe_member" == caught.value.code
    assert not (tmp_path / "here/link").is_symlink()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=5000), name=st.binary(min_size=1, max_size=20))
async def test_any_bytes_written_are_read_back(client: ExecdClient, tmp_path: Path, data: bytes, name: bytes) -> None:
    """For any content and any file name."""
    safe = name.replace(b"/", b"-").replace(b"\0", b"-")
    path = os.fsdecode(os.fsencode(tmp_path) + b"/_" + safe)
    await client.write(path, data)
    assert data == await client.read(path)


def _manifest(root: Path) -> dict[bytes, tuple[int, bytes]]:
    manifest = {}
    for path in root.rglob("*"):
        status = path.lstat()
        content = os.fsencode(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        manifest[os.fsencode(path.relative_to(root))] = (status.st_mode, content)
    return manifest
