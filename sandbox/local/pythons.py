"""Finding the Python that a recipe asks for, and making a pyenv Python a layer of its own.

A pyenv Python knows its absolute path (run paths of its libraries), so its layer has it at that same path. The layer
holds the interpreter and its standard library, not what was installed into it and not its test suites.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import ImageError
from sandbox.local.store import ImageRecord, ImageStore, LayerRecord, now, write_durably


@dataclass(frozen=True)
class PythonChoice:
    """A Python of this machine. `prefix` is its own directory, to be made a layer; None for one of the system's."""

    version: str
    executable: str
    prefix: Path | None
    note: str
    """Empty when it is exactly what was asked for."""


def pyenv_versions() -> Path:
    """Where pyenv keeps its Pythons for this user."""
    root = os.environ.get("PYENV_ROOT")
    return (Path(root) if root else Path.home() / ".pyenv") / "versions"


def choose_python(
    wanted: str,
    *,
    versions: Path | None = None,
    system: Sequence[Path] | None = None,
    running: tuple[str, Path] | None = None,
) -> PythonChoice:
    """The Python for `wanted` (`X.Y.Z`, or less of it): that very release under pyenv, or the one that runs us; else,
    with a note where the release differs, the system's of the same `X.Y`, or the newest of it of pyenv's and ours.

    `versions`, `system` and `running` say where to look; None means this machine. Raises `ImageError` naming what was
    found.
    """
    pyenv = _under_pyenv(pyenv_versions() if versions is None else versions)
    own_version, own_prefix = running or (platform.python_version(), Path(sys.base_prefix))
    if not own_prefix.is_relative_to("/usr"):  # under /usr it is one of the system's
        pyenv.setdefault(own_version, own_prefix)
    if wanted in pyenv:
        return _from_prefix(wanted, pyenv[wanted], "")
    folders = [Path("/usr/local/bin"), Path("/usr/bin")] if system is None else system
    line = wanted.split(".")[:2]
    of_system = [found for found in _of_system(folders, line) if _matches(found[0], line)]
    exact = len(wanted.split(".")) == 3
    for version, executable in of_system:
        note = "" if not exact or version == wanted else f"asked for {wanted}, used the system's {version}"
        return PythonChoice(version, str(executable), None, note)
    same_line = sorted((key for key in pyenv if _matches(key, line)), key=_numbers)
    if same_line:
        note = f"asked for {wanted}, used pyenv's {same_line[-1]}" if exact else ""
        return _from_prefix(same_line[-1], pyenv[same_line[-1]], note)
    raise ImageError(
        f"Python {wanted} is not on this machine: pyenv has {', '.join(sorted(pyenv, key=_numbers)) or 'none'}, and "
        f"{', '.join(str(folder) for folder in folders) or 'the base'} has no Python {'.'.join(line)} that can make "
        f"environments; run `pyenv install {wanted}`",
        python=wanted,
    )


def python_layer(store: ImageStore, choice: PythonChoice) -> ImageRecord:
    """The stored layer of a pyenv Python, made on first use; as a record, so that the store lists and keeps it."""
    assert choice.prefix is not None
    known = store.root / "references" / f"{hashlib.sha256(_identity(choice).encode()).hexdigest()}.json"
    with contextlib.suppress(FileNotFoundError, ValueError, ImageError):
        return store.get(str(json.loads(known.read_bytes())["digest"]))
    with store.staging() as staging:
        tree = staging / "python"
        target = tree / choice.prefix.relative_to("/")
        target.parent.mkdir(parents=True)
        shutil.copytree(choice.prefix, target, symlinks=True, ignore=_left_out)
        (target / "lib" / f"python{'.'.join(choice.version.split('.')[:2])}" / "site-packages").mkdir(exist_ok=True)
        digest, size = _tree_digest(tree)
        record = ImageRecord(
            digest=digest,
            name=f"Python {choice.version}",
            kind="python",
            layers=(LayerRecord(digest=digest, size_bytes=size),),
            python=choice.executable,
            notes={"prefix": str(choice.prefix)},
            created=now(),
        )
        store.put(record, {digest: tree})
    write_durably(known, json.dumps({"digest": digest}).encode())
    return record


def _left_out(folder: str, names: list[str]) -> set[str]:
    gone = {name for name in names if name.endswith((".a", ".pyc.tmp"))}
    if re.search(r"/lib/python[0-9.]+$", folder):
        gone |= {"site-packages", "test", "idlelib", "turtledemo"} & set(names)
    if re.search(r"/lib/python[0-9.]+/[a-z0-9_]+$", folder) and not folder.endswith("/unittest"):
        gone |= {"test", "tests"} & set(names)
    if re.search(r"/bin$", folder):  # scripts of installed packages: their packages are not here
        gone |= {name for name in names if not re.match(r"(python|2to3|pydoc|idle|pyvenv)", name)}
    return gone


def _from_prefix(version: str, prefix: Path, note: str) -> PythonChoice:
    executable = prefix / "bin" / f"python{'.'.join(version.split('.')[:2])}"
    return PythonChoice(version, str(executable), prefix, note)


def _under_pyenv(versions: Path) -> dict[str, Path]:
    try:
        entries = sorted(versions.iterdir())
    except OSError:
        return {}
    plain = (entry for entry in entries if re.fullmatch(r"3\.[0-9]+\.[0-9]+", entry.name))
    return {entry.name: entry for entry in plain if _runs(entry / "bin" / "python3")}


def _runs(executable: Path) -> bool:
    return executable.exists() and os.access(executable, os.X_OK)


def _of_system(folders: Sequence[Path], line: Sequence[str]) -> list[tuple[str, Path]]:
    """The system's Pythons that can make environments, with their versions."""
    found: list[tuple[str, Path]] = []
    names = [f"python{'.'.join(line)}", "python3"]
    for executable in [folder / name for folder in folders for name in names if _runs(folder / name)]:
        code = "import ensurepip, sys, venv; print('%d.%d.%d' % sys.version_info[:3])"
        command = [str(executable), "-I", "-c", code]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if answer.returncode == 0:
            found.append((answer.stdout.strip(), executable))
    return found


def _matches(version: str, line: Sequence[str]) -> bool:
    return version.split(".")[: len(line)] == list(line)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _identity(choice: PythonChoice) -> str:
    """Changes when the Python at that place does; cheap."""
    assert choice.prefix is not None
    stats = [Path(choice.executable).stat(), (choice.prefix / "lib").stat()]
    return " ".join(["python", choice.executable, *(f"{one.st_ino} {one.st_size} {one.st_mtime_ns}" for one in stats)])


def _tree_digest(root: Path) -> tuple[str, int]:
    """Over paths, modes, link targets and bytes (not times); and the size in bytes."""
    total, size = hashlib.sha256(), 0
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted([*files, *names]):
            path = Path(folder, name)
            status = path.lstat()
            head = f"{path.relative_to(root)}\0{status.st_mode:o}\0"
            if stat.S_ISLNK(status.st_mode):
                head += str(path.readlink())
            total.update(os.fsencode(f"{head}\0"))
            if stat.S_ISREG(status.st_mode):
                size += status.st_size
                with path.open("rb") as stream:
                    total.update(hashlib.file_digest(stream, "sha256").digest())
    return f"sha256:{total.hexdigest()}", size
