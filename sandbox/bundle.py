"""execd as one file: the zipapp's bytes, their hash, and the arguments that start it.

The sources are found but never imported: execd is shipped as bytes. The same sources give the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from functools import cache
from pathlib import Path

_START = "import sys;sys.path.insert(0,sys.argv.pop(1));from execd.server import main;sys.exit(main(sys.argv[1:]))"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def _sources() -> dict[str, bytes]:
    spec = importlib.util.find_spec("execd")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the execd package is not installed beside this one; reinstall sandman-grader")
    folder = Path(spec.submodule_search_locations[0])
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}


@cache
def bundle() -> bytes:
    """The zipapp. Raises FileNotFoundError when execd's sources are not installed."""
    sources = _sources()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sources.items():
            info = zipfile.ZipInfo("__main__.py" if name == "__main__.py" else f"execd/{name}", _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()


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
