"""execd as one file: the zipapp's bytes, their hash, and the arguments that start it.

The sources are found but never imported: execd is shipped as bytes. The same sources give the same bytes. Compiling
them is most of a daemon's start, so that a provider may ship byte code in their place: it runs `compile_argv` once with
an image's own Python and gives what that wrote to `bundle`. Only that Python can start what comes of it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from functools import cache
from pathlib import Path

_START = (
    "import sys,_frozen_importlib_external as f;p=sys.argv.pop(1);sys.path[:0]=[p+'/'+f.MAGIC_NUMBER.hex(),p];"
    "from execd.server import main;sys.exit(main(sys.argv[1:]))"
)
_COMPILE = """
import sys, zipimport, marshal, _frozen_importlib_external as f
head = f.MAGIC_NUMBER + bytes(12 if sys.version_info >= (3, 7) else 8)
archive = zipimport.zipimporter(sys.argv[1])
for name in sys.argv[2:]:
    text = archive.get_data(name)
    code = head + marshal.dumps(compile(text, name, "exec", dont_inherit=True, optimize=2))
    sys.stdout.buffer.write(len(code).to_bytes(4, "big") + code)
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def _sources() -> dict[str, bytes]:
    spec = importlib.util.find_spec("execd")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the execd package is not installed beside this one; reinstall sandman-grader")
    folder = Path(spec.submodule_search_locations[0])
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}


def _modules() -> list[str]:
    return [f"execd/{name}" for name in _sources() if name != "__main__.py"]


@cache
def bundle(byte_code: bytes = b"") -> bytes:
    """The zipapp: of the sources, or of the byte code that `compile_argv` wrote. What is not whole counts as none.

    Raises FileNotFoundError when execd's sources are not installed.
    """
    members = _compiled_members(byte_code)
    if not members:
        members = {name if name == "__main__.py" else f"execd/{name}": data for name, data in _sources().items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, compresslevel=9)
    return buffer.getvalue()


def _compiled_members(compiled: bytes) -> dict[str, bytes]:
    """Members under the magic number of their Python, where only that Python looks; none unless all are there."""
    members = {}
    magic, rest = compiled[4:8], compiled
    for name in _modules():
        end = 4 + int.from_bytes(rest[:4], "big")
        code, rest = rest[4:end], rest[end:]
        if len(code) < 16 or code[:4] != magic:
            return {}
        members[f"{magic.hex()}/{name}c"] = code
    return members


def compile_argv(python: str, zipapp_path: str) -> list[str]:
    """The command line that writes the byte code of the zipapp at `zipapp_path` to stdout, for this `python`.

    Tracebacks keep their lines; the columns that 3.11 and newer would add are a third of the byte code.
    """
    return [python, "-I", "-S", "-B", "-X", "no_debug_ranges", "-c", _COMPILE, zipapp_path, *_modules()]


@cache
def bundle_sha256() -> str:
    """The hex SHA-256 of `bundle()`."""
    return hashlib.sha256(bundle()).hexdigest()


def daemon_argv(
    python: str,
    zipapp_path: str,
    *,
    listen_fd: int | None = None,
    config_fd: int | None = None,
    listen: str | None = None,
    config: str | None = None,
) -> list[str]:
    """The command line that runs the zipapp at `zipapp_path` with `python`.

    Give one of `listen_fd` (an inherited listening socket) and `listen` (`HOST:PORT`), and one of `config_fd` and
    `config` (a path). The flags keep PYTHON* variables, site packages and the working directory out. `-c` starts the
    zipapp's code without `runpy`, whose imports would double the start time.
    """
    argv = [python, "-I", "-S", "-B", "-c", _START, zipapp_path]
    argv += ["--listen-fd", str(listen_fd)] if listen_fd is not None else ["--listen", str(listen)]
    argv += ["--config-fd", str(config_fd)] if config_fd is not None else ["--config", str(config)]
    return argv
