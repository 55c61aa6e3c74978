"""Claims about execd's manifest, by the client, on every Python found."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import execd.manifest
from sandbox import LocalConfig, SandboxSpec, open_provider
from sandbox.errors import DaemonError, FileRefused, SandboxLost
from sandbox.manifest import MAX_BYTES, MAX_ENTRIES, ContentParser, Entry, Kind, ManifestParser, check, take_entries
from sandbox.wire import Broken
from tests.execd.conftest import Running, daemon

pytestmark = pytest.mark.anyio


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def raw(path: bytes) -> str:
    return os.fsdecode(path)


async def contents(running: Running, root: Path, files: list[tuple[bytes, int]]) -> list[bytes | None]:
    """Each file whole, or None."""
    found: list[bytes | None] = [b""] * len(files)
    async with running.client() as client:
        async for at, piece in client.contents(str(root), files):
            found[at] = None if piece is None else (found[at] or b"") + piece
    return found


async def test_every_kind_of_entry_is_told_as_it_is(on_each_python: Running, tmp_path: Path) -> None:
    """Kind, mode, size, hash and target of all that a tree can hold; names are bytes, and nothing is followed."""
    odd = b"n\nl \xff\t"
    (tmp_path / "sub").mkdir(mode=0o750)
    (tmp_path / "sub" / raw(odd)).write_bytes(b"\0odd")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "run.sh").write_bytes(b"#!")
    (tmp_path / "run.sh").chmod(0o4755)
    (tmp_path / "big").write_bytes(b"x" * 1_000_003)
    (tmp_path / "up").symlink_to("../..")
    (tmp_path / "gone").symlink_to(raw(b"/no/\xfe"))
    os.mkfifo(tmp_path / "pipe")
    os.link(tmp_path / "empty", tmp_path / "same")
    (tmp_path / "sub/.git").mkdir()
    (tmp_path / "sub/.git/HEAD").write_text("x")
    (tmp_path / ".GIT").write_text("gitdir: /x")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock"))
        async with on_each_python.client() as client:
            manifest = await client.baseline(str(tmp_path))
    kinds = {path: entry.kind.value for path, entry in manifest.items()}
    assert {
        b"": "d",
        b".GIT": "g",
        b"big": "f",
        b"empty": "f",
        b"gone": "l",
        b"pipe": "p",
        b"run.sh": "f",
        b"same": "f",
        b"sock": "s",
        b"sub": "d",
        b"sub/.git": "g",
        b"sub/" + odd: "f",
        b"up": "l",
    } == kinds
    assert (0o750, 0o4755) == (manifest[b"sub"].mode, manifest[b"run.sh"].mode)
    assert (4, sha256(b"\0odd")) == (manifest[b"sub/" + odd].size, manifest[b"sub/" + odd].digest)
    assert sha256(b"x" * 1_000_003) == manifest[b"big"].digest and sha256(b"") == manifest[b"empty"].digest
    assert (b"../..", b"/no/\xfe") == (manifest[b"up"].target, manifest[b"gone"].target)
    assert manifest[b"same"].inode == manifest[b"empty"].inode and manifest[b"same"].links == 2
    assert (sha256(b"gitdir: /x"), "d") == (manifest[b".GIT"].digest, manifest[b"sub/.git"].digest)


async def test_what_changed_is_found_whatever_the_times_say(running: Running, tmp_path: Path) -> None:
    """A change of the same size with its times put back is a difference; a touched file is none."""
    (tmp_path / "sly").write_bytes(b"one")
    (tmp_path / "touched").write_bytes(b"same")
    before = (tmp_path / "sly").stat()
    async with running.client() as client:
        baseline = await client.baseline(str(tmp_path))
        (tmp_path / "sly").write_bytes(b"two")
        os.utime(tmp_path / "sly", ns=(before.st_atime_ns, before.st_mtime_ns))
        os.utime(tmp_path / "touched")
        assert {b"sly"} == set(check(baseline, await client.baseline(str(tmp_path))))


async def test_a_directory_that_may_not_be_entered_does_not_hide_the_rest(tmp_path: Path) -> None:
    """For a user without powers a directory that may not be read or searched is `unread`; all else is told."""
    spec = SandboxSpec(image="host", user=1000)
    async with open_provider(LocalConfig(state_dir=tmp_path)) as provider, provider.sandbox(spec) as box:
        await box.run("mkdir -p /tmp/t/{a,b,c,d}; touch /tmp/t/{a,b,c,d}/f", timeout_s=30)
        await box.run("cd /tmp/t; chmod 444 a; chmod 333 b; chmod 0 c", timeout_s=30)
        manifest = await box.baseline("/tmp/t")
        await box.run("chmod -R 755 /tmp/t", timeout_s=30)
    digests = {path: entry.digest for path, entry in manifest.items()}
    unread = dict.fromkeys((b"a", b"b", b"c"), "unread")
    assert {b"": "-", **unread, b"d": "-", b"d/f": sha256(b"")} == digests


@pytest.mark.parametrize("size", [0, 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (1 << 19), 3_000_000])
async def test_contents_are_exact_at_every_size(running: Running, tmp_path: Path, size: int) -> None:
    """A file's hash and its bytes are exact around the sizes of pieces."""
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    async with running.client() as client:
        entry = (await client.baseline(str(tmp_path)))[b"file"]
    assert (size, sha256(data)) == (entry.size, entry.digest)
    assert [data] == await contents(running, tmp_path, [(b"file", size)])


async def test_contents_follow_no_link_and_say_what_they_cannot_read(on_each_python: Running, tmp_path: Path) -> None:
    """A link, a link on the way, a pipe, a directory, a missing and a shorter file are None; those around are whole."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"in d")
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "z\xe4").write_bytes(b"last")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "way").symlink_to("d")
    os.mkfifo(tmp_path / "pipe")
    bad = [(b"link", 5), (b"way/f", 4), (b"pipe", 1), (b"d", 0), (b"missing", 1), (b"../a", 5), (b"a", 6)]
    wanted = [(b"a", 5), *bad[:5], bad[6], (b"d/f", 4), ("z\xe4".encode(), 4), (b"a", 2)]
    expected = [b"first", *[None] * 6, b"in d", b"last", b"fi"]
    assert expected == await contents(on_each_python, tmp_path, wanted)


async def test_no_code_is_read_from_disk_once_a_manifest_was_made(tmp_path: Path) -> None:
    """After the first manifest the daemon's archive and its interpreter's library may be anything."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"a")
    with daemon(tmp_path / "home") as running:
        async with running.client() as client:
            baseline = await client.baseline(str(tree))
            (tmp_path / "home/execd.pyz").write_bytes(b"not an archive any more")
            (tree / "b").write_bytes(b"b")
            assert {b"b"} == set(check(baseline, await client.baseline(str(tree))))
            loaded = {line.split()[-1] for line in Path(f"/proc/{running.process.pid}/maps").read_text().splitlines()}
        assert [b"a", b"b"] == await contents(running, tree, [(b"a", 1), (b"b", 1)])
        after = {line.split()[-1] for line in Path(f"/proc/{running.process.pid}/maps").read_text().splitlines()}
        assert loaded == after


async def test_a_file_that_does_not_hold_still_is_said(running: Running, tmp_path: Path) -> None:
    """A file that is written to all the time has no hash; the rest of the tree has."""
    (tmp_path / "still").write_bytes(b"still")
    with (tmp_path / "moving").open("wb") as stream:
        stream.truncate(200_000_000)  # takes longer to read than the clock of changes takes to tick
    stop = threading.Event()

    def write() -> None:
        with (tmp_path / "moving").open("r+b", buffering=0) as stream:
            while not stop.is_set():
                os.pwrite(stream.fileno(), os.urandom(64), 0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        async with running.client() as client:
            manifest = await client.baseline(str(tmp_path))
    finally:
        stop.set()
        writer.join()
    assert ("moving", sha256(b"still")) == (manifest[b"moving"].digest, manifest[b"still"].digest)


async def test_a_hostile_tree_neither_hangs_nor_breaks_it(running: Running, tmp_path: Path) -> None:
    """A terabyte without blocks is not read, and what lies deeper than paths can go is said to be deep."""
    with (tmp_path / "huge").open("wb") as stream:
        stream.truncate(1 << 40)
    deepest = tmp_path / "deep"
    deepest.mkdir()
    here = os.open(deepest, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d" * 50, dir_fd=here)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    async with running.client() as client:
        manifest = await client.baseline(str(tmp_path))
    shutil.rmtree(deepest, ignore_errors=True)
    assert ("large", 1 << 40) == (manifest[b"huge"].digest, manifest[b"huge"].size)
    assert ["deep"] == [entry.digest for entry in manifest.values() if entry.digest not in ("-", "large")]


async def test_a_tree_of_long_paths_is_refused_whole(running: Running, tmp_path: Path) -> None:
    """Many names far down would make gigabytes of a manifest: it is refused with what to do, and the daemon goes on."""
    assert (MAX_ENTRIES, MAX_BYTES) == (execd.manifest.MAX_ENTRIES, execd.manifest.MAX_BYTES)
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(190):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    for number in range(MAX_BYTES // (190 * 251) + 10):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here))
    os.close(here)
    async with running.client() as client:
        with pytest.raises(FileRefused, match="remove what is not needed"):
            await client.baseline(str(tmp_path))
        (tmp_path / "other").mkdir()
        assert [b""] == list(await client.baseline(str(tmp_path / "other")))
    shutil.rmtree(tmp_path / ("d" * 250), ignore_errors=True)


async def test_a_daemon_that_lies_is_a_lost_sandbox(monkeypatch: pytest.MonkeyPatch, running: Running) -> None:
    """What is not of the protocol leaves the client as a lost sandbox, never as an error of the wire's."""

    async def lies(*_: object, **__: object) -> AsyncIterator[bytes]:
        yield b"\0\0\0\x09ninebytes" + b"no entry\0path\0\0"

    async with running.client() as client:
        monkeypatch.setattr(client, "_framed", lies)
        with pytest.raises(SandboxLost):
            await client.baseline("/tmp")
        with pytest.raises(SandboxLost):
            async for _ in client.contents("/tmp", [(b"x", 3)]):
                pass


async def test_refusals_are_typed(running: Running, tmp_path: Path) -> None:
    """No directory, no path and more entries than allowed are errors of the closed table."""
    (tmp_path / "file").write_bytes(b"")
    async with running.client() as client:
        for root in (tmp_path / "missing", tmp_path / "file"):
            with pytest.raises(FileRefused):
                await client.baseline(str(root))
        with pytest.raises(DaemonError):
            await client.call("GET", "/manifest")
        with pytest.raises(DaemonError):
            await client.call("GET", f"/manifest?path={tmp_path}&max_entries=0")


ENTRY = b"f 644 0 0 1 5 77 3 " + b"a" * 64 + b"\0path\0\0"


def test_entries_come_whole_however_they_are_cut() -> None:
    """The parser gives the same entries for every cut of the stream."""
    stream = ENTRY + b"l 777 0 0 1 5 78 2 -\0li\nnk\0to\0"
    whole = list(take_entries(bytearray(stream)))
    assert [(b"path", Kind.FILE), (b"li\nnk", Kind.LINK)] == [(path, entry.kind) for path, entry in whole]
    for cut in range(len(stream)):
        buffer = bytearray(stream[:cut])
        first = list(take_entries(buffer))
        buffer += stream[cut:]
        assert whole == [*first, *take_entries(buffer)]


@pytest.mark.parametrize("wrong", [b"x 644 0 0 1 5 77 3 -", b"f 9 0 0 1 5 77 3 -", b"f 644 0 0", b"\xff" * 9])
def test_an_entry_that_is_none_is_never_a_guess(wrong: bytes) -> None:
    """Anything but the protocol's words breaks the connection."""
    with pytest.raises(Broken):
        list(take_entries(bytearray(wrong + b"\0path\0\0")))
    with pytest.raises(Broken):
        list(take_entries(bytearray(2 << 20)[:0] + b"f" * (2 << 20)))


def test_contents_come_whole_however_they_are_cut() -> None:
    """Pieces, ends and failures are told apart for every cut, and more files than were asked for break it."""
    stream = b"\0\0\0\3abc\0\0\0\0" + b"\0\0\0\1x\xff\xff\xff\xff" + b"\0\0\0\0"
    for cut in range(len(stream)):
        parser = ContentParser([3, 2, 0])
        items = [*parser.feed(stream[:cut]), *parser.feed(stream[cut:])]
        assert b"abc" == b"".join(piece or b"" for at, piece in items if at == 0)
        assert [(0, b""), (1, None), (2, b"")] == [item for item in items if not item[1]]
        assert parser.whole
    with pytest.raises(Broken):
        list(ContentParser([0]).feed(b"\0\0\0\0\0"))
    with pytest.raises(Broken):
        list(ContentParser([5]).feed(b"\0\0\0\3abc\0\0\0\3"))


def test_no_manifest_is_larger_than_execd_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a daemon sends, entries and bytes beyond the limits break the connection and are not kept."""
    for name, most in (("MAX_ENTRIES", 3), ("MAX_BYTES", 5 * len(ENTRY))):
        with monkeypatch.context() as patched:
            patched.setattr(f"sandbox.manifest.{name}", most)
            parser = ManifestParser()
            with pytest.raises(Broken):
                for number in range(10):
                    parser.feed(ENTRY.replace(b"path", b"pat%d" % number))
            assert len(parser.entries) <= 6


def test_the_same_entries_differ_in_nothing_that_does_not_count() -> None:
    """Inodes, link counts and a directory's size are no difference; mode, owner, kind, bytes and target are."""
    one = Entry(Kind.FILE, 0o644, (0, 0), 1, (1, 2), 3, "a" * 64)
    same = Entry(Kind.FILE, 0o644, (0, 0), 2, (1, 9), 3, "a" * 64)
    assert {} == check({b"p": one}, {b"p": same})
    for other in (
        Entry(Kind.FILE, 0o600, (0, 0), 1, (1, 2), 3, "a" * 64),
        Entry(Kind.FILE, 0o644, (0, 1), 1, (1, 2), 3, "a" * 64),
        Entry(Kind.FILE, 0o644, (0, 0), 1, (1, 2), 3, "b" * 64),
        Entry(Kind.LINK, 0o644, (0, 0), 1, (1, 2), 3, "-", b"x"),
    ):
        assert {b"p"} == set(check({b"p": one}, {b"p": other}))
