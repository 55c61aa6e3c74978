"""The facade for code that is not async."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sandbox import LocalConfig, SandboxSpec
from sandbox.errors import FileRefused, ImageError
from sandbox.spec import Chunk, ExecResult
from sandbox.sync import SyncProvider
from tests.sandbox.local.leftovers import leftovers

HOST = SandboxSpec(image="host")


def test_every_call_waits_and_nothing_is_left(tmp_path: Path) -> None:
    """Commands, streams, files and errors work without a loop; leaving the `with` deletes all."""
    with SyncProvider(LocalConfig(state_dir=tmp_path)) as provider:
        with provider.sandbox(HOST) as box:
            assert b"hi\n" == box.run("echo hi", timeout_s=30).output
            *chunks, last = box.stream("echo a; echo b", timeout_s=30)
            assert isinstance(last, ExecResult)
            assert b"a\nb\n" == b"".join(chunk.data for chunk in chunks if isinstance(chunk, Chunk))
            box.write("/tmp/f", b"\0\xff")
            assert b"\0\xff" == box.read("/tmp/f")
            box.download("/tmp/f", tmp_path / "f")
            box.upload(tmp_path / "f", "/tmp/g")
            assert b"\0\xff" == box.read("/tmp/g")
            assert 0 == box.facts().user_id
            with pytest.raises(FileRefused):
                box.read("/no/such")
        with pytest.raises(ImageError), provider.sandbox(SandboxSpec(image="sha256:" + "0" * 64)):
            pass
    assert [] == leftovers(tmp_path)


def test_it_works_in_a_running_loop_and_from_several_threads(tmp_path: Path) -> None:
    """As in a notebook, whose own loop runs; and two threads share one sandbox."""

    async def in_a_notebook() -> bytes:
        with SyncProvider(LocalConfig(state_dir=tmp_path)) as provider, provider.sandbox(HOST) as box:
            found: list[bytes] = []
            threads = [
                threading.Thread(
                    target=lambda n=n: found.append(box.run(f"echo {n}", timeout_s=30, session=f"{n}").output)  # type: ignore[misc]
                )
                for n in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return b"".join(sorted(found))

    assert b"0\n1\n" == asyncio.run(in_a_notebook())
