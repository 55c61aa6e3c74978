"""The `host` image: the host's own programs, read-only, over a small root of our making.

Of the host a sandbox sees `/usr` (and `/bin`, `/lib` and the like where they are not links into it), the linker's
cache, the alternatives, the CA certificates and a few public tables of `/etc`; the host's Python prefix as well when
Python is not under `/usr`. Never its `/home`, `/root`, `/opt`, `/srv`, `/var`, `/run`, its password files or anything
else of its `/etc`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import ImageError
from sandbox.local.bwrap import HOSTNAME, Bind
from sandbox.local.image import StoredImage
from sandbox.local.scratch import remove_tree

REFERENCE = "host"

PROGRAM_ROOTS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into `/usr` on most hosts; directories of their own on others."""

READ_FROM_HOST = (
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
)
"""Bound, not copied, so that they always fit the `/usr` that is mounted beside them. `/etc/ssl/private` is not here."""

COPIED_FROM_HOST = ("etc/mime.types", "etc/protocols", "etc/services", "etc/ssl/openssl.cnf", "etc/debian_version")
"""Small tables that change seldom: a mount for each would cost every create a part of a millisecond."""

DIRECTORIES = (
    *("dev", "etc", "home", "media", "mnt", "opt", "proc", "run", "run/lock", "srv", "sys", "usr"),
    *("var", "var/cache", "var/lib", "var/log", "var/spool"),
)

FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "etc/hosts": f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{HOSTNAME}\n",
    "etc/hostname": f"{HOSTNAME}\n",
    "etc/host.conf": "multi on\n",
    "etc/nsswitch.conf": (
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"
        "protocols: files\nservices: files\nethers: files\nrpc: files\n"
    ),
    "etc/resolv.conf": "",
    "etc/shells": "/bin/sh\n/bin/bash\n/usr/bin/sh\n/usr/bin/bash\n",
    "etc/timezone": "Etc/UTC\n",
}

LINKS = {
    "etc/localtime": "/usr/share/zoneinfo/Etc/UTC",
    "etc/mtab": "/proc/mounts",
    "etc/os-release": "../usr/lib/os-release",
    "var/run": "/run",
    "var/lock": "/run/lock",
}

DAEMON_NEEDS = (
    "import sys, http.server, json, hashlib, hmac, socket, selectors, threading, subprocess, tarfile, zipimport"
)


@dataclass(frozen=True)
class HostPrograms:
    """What of this host an image on host programs is made of, as found by `survey`."""

    binds: tuple[Bind, ...]
    links: tuple[tuple[str, str], ...]
    """Links of the root directory, such as `bin` to `usr/bin`."""
    python: str
    digest: str


def survey(*, python: Path | None = None) -> HostPrograms:
    """Look at this host's programs. `python` None means `/usr/bin/python3` if execd can run on it, else our own.

    Raises `ImageError` when neither a Python nor bash is there.
    """
    if not any(Path(path).exists() for path in ("/usr/bin/bash", "/bin/bash")):
        raise ImageError("the host image needs bash, and this host has none: install bash", reference=REFERENCE)
    links, binds = [], [Bind(Path("/usr"), "/usr")]
    for name in PROGRAM_ROOTS:
        path = Path("/", name)
        if path.is_symlink():
            links.append((name, str(path.readlink())))
        elif path.is_dir():
            binds.append(Bind(path, str(path)))
    binds.extend(Bind(Path(path), path) for path in READ_FROM_HOST if Path(path).exists())
    python, prefix = _find_python(python)
    if not prefix.is_relative_to("/usr"):
        binds.append(Bind(prefix, str(prefix)))
    return HostPrograms(tuple(binds), tuple(links), str(python), _digest(binds, links, python))


def host_image(programs: HostPrograms, state_dir: Path, *, workshop: Path) -> StoredImage:
    """The `host` image with its one layer, made under `state_dir` if it is not there yet, in `workshop` until whole."""
    layer = state_dir / "host" / programs.digest.removeprefix("sha256:")[:16]
    if not layer.is_dir():
        _make_layer(programs, layer, workshop)
    return StoredImage(
        digest=programs.digest,
        reference=REFERENCE,
        layers=(layer,),
        host_programs=True,
        env={},
        workdir="/root",
        python=programs.python,
    )


def _find_python(wanted: Path | None) -> tuple[Path, Path]:
    """A Python that can run execd, and its prefix."""
    candidates = [wanted] if wanted else [Path("/usr/bin/python3"), Path(sys.base_prefix, "bin", "python3")]
    for candidate in candidates:
        argv = [
            str(candidate),
            "-I",
            "-S",
            "-c",
            DAEMON_NEEDS + "; assert sys.version_info >= (3, 6); print(sys.base_prefix)",
        ]
        try:
            answer = subprocess.run(argv, capture_output=True, env={}, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return candidate, Path(os.fsdecode(answer.stdout.rstrip(b"\n")))
    tried = ", ".join(map(str, candidates))
    raise ImageError(
        f"the host image needs a Python 3.6 or newer with its whole standard library (tried {tried}): install python3",
        reference=REFERENCE,
    )


def _digest(binds: list[Bind], links: list[tuple[str, str]], python: Path) -> str:
    """Identify the host's programs: names, sizes and times in the program directories, and our own root."""
    identity = hashlib.sha256()
    copied = [path.read_bytes() for path in _copied_from_host()]
    for part in (os.uname().machine, binds, links, python, copied, DIRECTORIES, FILES, LINKS):
        identity.update(repr(part).encode() + b"\0")
    for directory in ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/local/bin", "/usr/local/lib", str(python.parent)):
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                status = entry.stat(follow_symlinks=False)
                identity.update(
                    f"{entry.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape")
                )
    return f"sha256:{identity.hexdigest()}"


def _make_layer(programs: HostPrograms, layer: Path, workshop: Path) -> None:
    layer.parent.mkdir(parents=True, exist_ok=True)
    building = workshop / f"host-{secrets.token_hex(4)}"
    building.mkdir()
    _fill(building, programs)
    try:
        building.rename(layer)
    except OSError:  # another process was faster; its layer is the same
        remove_tree(building)


def _fill(root: Path, programs: HostPrograms) -> None:
    root.chmod(0o755)
    for name in DIRECTORIES:
        _directory(root / name, 0o755)
    _directory(root / "root", 0o700)
    for name in ("tmp", "var/tmp"):
        _directory(root / name, 0o1777)
    for name, text in FILES.items():
        _file(root / name, text)
    for name, target in (*LINKS.items(), *programs.links):
        (root / name).symlink_to(target)
    for bind in programs.binds:
        _mount_point(root, bind)
    for path in _copied_from_host():
        copy = root / path.relative_to("/")
        copy.parent.mkdir(exist_ok=True)
        _file(copy, path.read_text())


def _copied_from_host() -> list[Path]:
    paths = (Path("/", name) for name in COPIED_FROM_HOST)
    return [path for path in paths if path.is_file()]


def _mount_point(root: Path, bind: Bind) -> None:
    point = root / bind.target.lstrip("/")
    for parent in reversed(point.relative_to(root).parents[:-1]):
        if not (root / parent).exists():
            _directory(root / parent, 0o755)
    if bind.source.is_dir():
        if not point.exists():
            _directory(point, 0o755)
    else:
        _file(point, "")


def _directory(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)


def _file(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)
