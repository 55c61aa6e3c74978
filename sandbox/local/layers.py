"""One layer: from a tar stream to a directory in overlayfs form.

The law: nothing that a layer says makes us touch a path outside the directory it is unpacked into. Every step is taken
relative to an open directory and no symbolic link is followed. What the unpacking user cannot hold is squashed (owner,
extended attributes) or skipped (devices, FIFOs) and counted, never guessed. Memory stays bounded whatever comes.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sandbox.errors import ImageError
from sandbox.local.stack import OPAQUE, LayerStack, is_whiteout_status

_WHITEOUT_PREFIX = ".wh."
_OPAQUE_MARKER = ".wh..wh..opq"
_AUFS_PREFIX = ".wh..wh."
_CHUNK = 1 << 20
_MAX_DEPTH = 256
_MAX_EXTENDED_HEADER = 1 << 20
_EXTENDED = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}


@dataclass
class LayerStats:
    """What was unpacked: `size_bytes` of file content, and how many of each kind were skipped or squashed."""

    size_bytes: int = 0
    files: int = 0
    copied_up: int = 0
    """Hard links to files of a lower layer, copied: such a tree is not a function of its own tar alone."""
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, kind: str) -> None:
        self.skipped[kind] = self.skipped.get(kind, 0) + 1


def unpack_layer(stream: IO[bytes], into: Path, *, name: str, lower: Sequence[Path] = ()) -> LayerStats:
    """Unpack an uncompressed tar `stream` into the empty directory `into`.

    `lower` are the directories of the layers underneath, lowest first: a hard link may name a file that only they have,
    which is then copied. `name` names the layer in messages. Raises `ImageError`, naming the member.
    """
    root = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    writer = _LayerWriter(root, name, lower)
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_BoundedTarInfo, errors="surrogateescape") as tar:
            while (member := tar.next()) is not None:
                writer.add(tar, member)
                tar.members.clear()  # type: ignore[attr-defined]  # it remembers every member otherwise
        writer.finish()
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise ImageError(f"{name}: not a readable layer ({error}); fetch the image again", layer=name) from error
    finally:
        writer.close()
        os.close(root)
    return writer.stats


class _BoundedTarInfo(tarfile.TarInfo):
    """Refuses headers that tarfile would read into memory whole, and broken headers that it would take for the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _BoundedTarInfo:
        try:
            info = super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise ImageError(f"the layer has a broken tar header ({error}); fetch the image again") from error
        if info.type in _EXTENDED and info.size > _MAX_EXTENDED_HEADER:
            raise ImageError(f"the layer has an extended tar header of {info.size} bytes; such an image is refused")
        return info


class _LayerWriter:
    def __init__(self, root: int, name: str, lower: Sequence[Path]) -> None:
        self.stats = LayerStats()
        self._root = root
        self._name = name
        self._lower = LayerStack(lower)
        self._parent: tuple[tuple[str, ...], int] | None = None
        self._directories: dict[tuple[str, ...], tuple[int, float]] = {}

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name, member.name)
        try:
            if not parts:
                return
            if parts[-1].startswith(_WHITEOUT_PREFIX):
                self._whiteout(parts, member)
            elif member.isdir():
                self._directory(parts, member)
            elif member.isreg():
                self._file(tar, parts, member)
            elif member.issym():
                self._symlink(parts, member)
            elif member.islnk():
                self._hard_link(parts, member)
            else:
                self.stats.skip("fifo" if member.isfifo() else "device" if member.isdev() else "unknown")
            if member.pax_headers and any(key.startswith("SCHILY.xattr.") for key in member.pax_headers):
                self.stats.skip("extended attributes")
        except OSError as error:
            raise self._refusal(member.name, f"cannot be unpacked ({error.strerror or error})") from error

    def finish(self) -> None:
        """Give directories their times and modes, deepest first, once nothing more is written into them."""
        for parts in sorted(self._directories, key=len, reverse=True):
            mode, mtime = self._directories[parts]
            fd = self._open_directory(parts, parts, make=False)
            os.fchmod(fd, mode)
            os.utime(fd, (mtime, mtime))
        self._drop_parent()

    def close(self) -> None:
        self._drop_parent()

    def _refusal(self, member: str, why: str) -> ImageError:
        shown = ascii(member)
        shown = shown if len(shown) < 200 else shown[:200] + "..."
        return ImageError(f"{self._name}: member {shown} {why}; the image is refused", layer=self._name, member=member)

    def _parts(self, path: str, member: str) -> tuple[str, ...]:
        if path.startswith("/"):
            raise self._refusal(member, "has an absolute path")
        parts = tuple(part for part in path.split("/") if part not in {"", "."})
        if ".." in parts:
            raise self._refusal(member, "leaves the layer by `..`")
        if len(parts) > _MAX_DEPTH:
            raise self._refusal(member, "is nested too deep")
        return parts

    def _drop_parent(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _open_directory(self, parts: tuple[str, ...], member: Sequence[str], *, make: bool = True) -> int:
        """A descriptor for the directory `parts`, kept until the next call. Makes what is missing."""
        if self._parent is not None and self._parent[0] == parts:
            return self._parent[1]
        self._drop_parent()
        fd = os.dup(self._root)
        try:
            for depth, part in enumerate(parts):
                if make:
                    self._make_directory(fd, part)
                try:
                    below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                except NotADirectoryError:
                    through = "/".join(parts[: depth + 1])
                    why = f"passes through {through!a}, which is no directory in its layer"
                    raise self._refusal("/".join(member), why) from None
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        self._parent = (parts, fd)
        return fd

    def _make_directory(self, fd: int, part: str) -> None:
        """Make `part`, unless it is there. A whiteout gives way to a directory that hides what lies underneath."""
        found = _lstat(fd, part)
        if found is None:
            os.mkdir(part, 0o755, dir_fd=fd)
        elif is_whiteout_status(found):
            os.unlink(part, dir_fd=fd)
            os.mkdir(part, 0o755, dir_fd=fd)
            _set_opaque_at(fd, part)

    def _place(self, parts: tuple[str, ...]) -> int:
        """The descriptor of the parent, with nothing at the last part: of members with one name the last counts."""
        parent = self._open_directory(parts[:-1], parts)
        found = _lstat(parent, parts[-1])
        if found is not None and stat.S_ISDIR(found.st_mode):
            shutil.rmtree(parts[-1], dir_fd=parent)
            self._directories = {k: v for k, v in self._directories.items() if k[: len(parts)] != parts}
        elif found is not None:
            os.unlink(parts[-1], dir_fd=parent)
        return parent

    def _whiteout(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        fd = self._open_directory(parts[:-1], parts)
        if parts[-1] == _OPAQUE_MARKER:
            os.setxattr(fd, OPAQUE, b"y")
            return
        if parts[-1].startswith(_AUFS_PREFIX):
            return
        hidden = parts[-1].removeprefix(_WHITEOUT_PREFIX)
        if hidden in {"", ".", ".."}:
            raise self._refusal(member.name, "is a whiteout of nothing")
        found = _lstat(fd, hidden)
        if found is None:
            os.mknod(hidden, stat.S_IFCHR | 0o600, 0, dir_fd=fd)
        elif stat.S_ISDIR(found.st_mode):
            _set_opaque_at(fd, hidden)  # the layer has it itself: only what lies underneath goes

    def _directory(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        parent = self._open_directory(parts[:-1], parts)
        found = _lstat(parent, parts[-1])
        if found is not None and not stat.S_ISDIR(found.st_mode) and not is_whiteout_status(found):
            os.unlink(parts[-1], dir_fd=parent)
        self._make_directory(parent, parts[-1])
        # its owner must be able to enter and to remove it, whatever the layer says
        self._directories[parts] = ((member.mode & 0o7777) | 0o700, member.mtime)

    def _file(self, tar: tarfile.TarFile, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        parent = self._place(parts)
        source = tar.extractfile(member)
        assert source is not None
        fd = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
        with source, os.fdopen(fd, "wb", buffering=0) as out:
            extents: list[tuple[int, int]] | None = getattr(member, "sparse", None)
            data: Any = source.raw  # type: ignore[attr-defined]  # the buffer above it cannot skip a hole in a stream
            for offset, length in [(0, member.size)] if extents is None else extents:
                data.seek(offset)
                out.seek(offset)
                self._copy(data, out, length, member)
            out.truncate(member.size)
            self._finish_file(out.fileno(), member.mode, member.mtime)

    def _copy(self, source: IO[bytes], out: Any, length: int, member: tarfile.TarInfo) -> None:
        while length > 0:
            data = source.read(min(length, _CHUNK))
            if not data:
                raise self._refusal(member.name, "ends before its size")
            view = memoryview(data)
            while view:
                view = view[out.write(view) :]
            length -= len(data)
            self.stats.size_bytes += len(data)

    def _finish_file(self, fd: int, mode: int, mtime: float) -> None:
        self.stats.files += 1
        os.fchmod(fd, mode & 0o7777)
        os.utime(fd, (mtime, mtime))

    def _symlink(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        parent = self._place(parts)
        os.symlink(member.linkname, parts[-1], dir_fd=parent)
        os.utime(parts[-1], (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)

    def _hard_link(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        target = self._parts(member.linkname, member.name)
        if target == parts:
            return
        if not target:
            raise self._refusal(member.name, "is a hard link to the root directory")
        fd = os.dup(self._open_directory(target[:-1], parts, make=False)) if self._has(target[:-1]) else None
        try:
            found = None if fd is None else _lstat(fd, target[-1])
            if fd is not None and found is not None and not is_whiteout_status(found):
                if stat.S_ISDIR(found.st_mode):
                    raise self._refusal(member.name, "is a hard link to a directory")
                parent = self._place(parts)
                os.link(target[-1], parts[-1], src_dir_fd=fd, dst_dir_fd=parent, follow_symlinks=False)
            elif found is None:
                self._copy_up(parts, target, member)
            else:
                raise self._refusal(member.name, f"is a hard link to {member.linkname!a}, which the layer removes")
        finally:
            if fd is not None:
                os.close(fd)

    def _has(self, parts: tuple[str, ...]) -> bool:
        fd = os.dup(self._root)
        try:
            for part in parts:
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = below
        except (FileNotFoundError, NotADirectoryError):
            return False
        finally:
            os.close(fd)
        return True

    def _copy_up(self, parts: tuple[str, ...], target: tuple[str, ...], member: tarfile.TarInfo) -> None:
        """A hard link to a file of a lower layer: overlayfs cannot link across layers, so the file is copied."""
        source = self._lower.lstat(target)
        if source is None or stat.S_ISDIR(source.stat().st_mode if not source.is_symlink() else 0):
            raise self._refusal(member.name, f"is a hard link to {member.linkname!a}, which is nowhere in the image")
        parent = self._place(parts)
        self.stats.copied_up += 1
        if source.is_symlink():
            os.symlink(source.readlink(), parts[-1], dir_fd=parent)
            return
        before = source.stat()
        fd = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
        with source.open("rb") as data, os.fdopen(fd, "wb", buffering=0) as out:
            self._copy(data, out, before.st_size, member)
            self._finish_file(out.fileno(), before.st_mode, before.st_mtime)


def _lstat(fd: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _set_opaque_at(parent: int, name: str) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.setxattr(fd, OPAQUE, b"y")
    finally:
        os.close(fd)
