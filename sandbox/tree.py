"""Trees as tar streams, this side: packed to go in, unpacked with distrust when they come out of a sandbox.

Regular files, directories and symlinks, with mode and time. The archive's root is the member `.`, a directory or one
file. What comes out is hostile: no member and no symlink may lead out of the target, and nothing is written through a
symlink.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

from sandbox.errors import FileRefused

_PIECE = 1 << 18


def pack(local: Path, spool: IO[bytes]) -> None:
    """Write the tar of a file or a tree to `spool`. Raises FileRefused when `local` does not exist."""
    if not local.exists():
        raise FileRefused(f"{local} does not exist on this side; name an existing file or directory", code="not_found")
    with tarfile.open(fileobj=spool, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        _add(tar, local.resolve(), ".")


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    tar.inodes = {}  # type: ignore[attr-defined]  # a hard link travels as a copy
    member = tar.gettarinfo(path, name)
    if member is None or not (member.isreg() or member.isdir() or member.issym()):
        return
    if member.isreg():
        with path.open("rb") as stream:
            tar.addfile(member, stream)
        return
    tar.addfile(member)
    if member.isdir():
        for entry in sorted(path.iterdir()):
            _add(tar, entry, f"{name}/{entry.name}")


def unpack(spool: IO[bytes], local: Path) -> None:
    """Unpack a sandbox's tar at `local`. Raises FileRefused on a member that would lead out of it."""
    spool.seek(0)
    root = Path(os.path.abspath(local))  # noqa: PTH100 - `resolve` would follow a link at `local` itself
    root.parent.mkdir(parents=True, exist_ok=True)
    directories: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        with tarfile.open(fileobj=spool, mode="r:", encoding="utf-8") as tar:
            for member in tar:
                target = _target(root, member)
                if member.isdir():
                    _make_directory(root, target)
                    directories.append((target, member))
                elif member.isreg():
                    _write(tar, member, target)
                elif member.issym():
                    target.unlink(missing_ok=True)
                    target.symlink_to(member.linkname)
    except tarfile.TarError as error:
        raise FileRefused(
            f"what the sandbox sent is no tar stream ({error}); nothing more was unpacked", code="unsafe_member"
        ) from error
    _refuse_ways_out(root)
    for target, member in reversed(directories):
        target.chmod(member.mode & 0o777 | 0o700)
        os.utime(target, (member.mtime, member.mtime))


def _target(root: Path, member: tarfile.TarInfo) -> Path:
    """Where a member goes. Refuses what leads out of `root` by its name or by a link in its way."""
    parts = PurePosixPath(member.name).parts
    unsafe = member.name.startswith("/") or ".." in parts or member.islnk() or "\0" in member.name
    target = root.joinpath(*parts)
    way = target.parent
    while not unsafe and way != root and root in way.parents:
        unsafe = way.is_symlink()
        way = way.parent
    if unsafe or (not parts and member.issym()):
        raise _leads_out(member.name)
    return target


def _refuse_ways_out(root: Path) -> None:
    """Remove every symlink that resolves to a place outside `root`, and raise when there was one."""
    inside = root.resolve()
    out = [
        path
        for folder, folders, files in os.walk(root)
        for path in (Path(folder, name) for name in folders + files)
        if path.is_symlink() and not path.resolve().is_relative_to(inside)
    ]
    for path in out:
        path.unlink()
    if out:
        raise _leads_out(str(out[0].relative_to(root)))


def _leads_out(name: str) -> FileRefused:
    return FileRefused(
        f"the member {name!r} would lead out of the target; download without such links, or as an archive by `read`",
        code="unsafe_member",
    )


def _make_directory(root: Path, target: Path) -> None:
    if target.is_symlink() and target != root:
        target.unlink()
    target.mkdir(exist_ok=True)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None
    target.unlink(missing_ok=True)
    with source, target.open("xb") as stream:
        while data := source.read(_PIECE):
            stream.write(data)
    target.chmod(member.mode & 0o777)
    os.utime(target, (member.mtime, member.mtime))
