"""A small Debian image, made with mmdebstrap from this machine's own apt sources.

It has what a recipe and the daemon need: bash, git, certificates, time zones, and Python with the libraries that a
pyenv Python is linked to. Of this machine's apt settings (mirrors, proxies) nothing stays in it. The digest is the same
while the mirror's packages are.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandbox.errors import ImageError
from sandbox.local.store import ImageRecord, ImageStore

PACKAGES = ("bash", "ca-certificates", "git", "patch", "python3", "python3-venv", "tzdata", "procps")
"""`patch` is the last way by which a submission may go in. python3 brings the libraries (TLS, libffi, SQLite,
readline, bzip2, xz, ncurses) under whatever names they have."""

TIMEOUT_S = 1800.0
_EPOCH = 1577836800  # 2020-01-01: files that the installation writes get this time
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
_CLEAN = (
    'rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap '
    '"$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap "$1"/var/log/* "$1"/var/cache/debconf/* "$1"/etc/resolv.conf '
    '"$1"/etc/hostname "$1"/etc/machine-id "$1"/var/lib/dbus/machine-id'
)


def debian_base(store: ImageStore, *, suite: str | None = None, include: Sequence[str] = ()) -> ImageRecord:
    """Make the image of `suite` (None: this machine's own release) and put it into the store. Takes a minute or two.

    `include` names further packages. Raises `ImageError` when mmdebstrap is absent or fails, with the end of its log.
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ImageError("making a Debian image needs mmdebstrap, which is not installed: apt-get install mmdebstrap")
    suite = suite or _own_suite()
    sources = apt_sources(Path("/etc/apt"), suite)
    packages = sorted({*PACKAGES, *include})
    with store.staging() as staging:
        staging.chmod(0o755)
        listed = staging / "apt.sources"
        listed.write_text("\n\n".join(sources) + "\n")
        layer = staging / "layer.tar"
        _run(_command(program, suite, packages, layer, listed), staging / "log", suite)
        layout = staging / "layout"
        _write_layout(layer, layout, f"debian-{suite}")
        return store.import_oci(str(layout))


def _own_suite() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    suite = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not suite:
        name = release.get("PRETTY_NAME", "an unknown system")
        raise ImageError(f"this machine runs {name}, not Debian; name the release with --suite")
    return suite


def _command(program: str, suite: str, packages: Sequence[str], layer: Path, sources: Path) -> list[str]:
    return [
        program,
        "--variant=essential",
        f"--include={','.join(packages)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
        *(f"--aptopt={option}" for option in _apt_options()),
        "--aptopt=Acquire::Languages none",
        f"--customize-hook={_CLEAN}",
        "--format=tar",
        suite,
        str(layer),
        str(sources),
    ]


def _run(command: list[str], log: Path, suite: str) -> None:
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH), "LC_ALL": "C.UTF-8"}
    with log.open("wb") as out:
        try:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, timeout=TIMEOUT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            raise ImageError(f"mmdebstrap did not end within {TIMEOUT_S:.0f} s; look at the mirror's reach") from None
    if status != 0:
        tail = "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-30:])
        raise ImageError(
            f"mmdebstrap ended with exit code {status} for {suite}; its log ends:\n{tail}\n"
            "as an ordinary user it needs entries in /etc/subuid and /etc/subgid and the package uidmap; "
            "else look at the mirror's reach",
            exit_code=status,
        )


def apt_sources(etc_apt: Path, suite: str) -> tuple[str, ...]:
    """This machine's sources for `suite` and its updates, each a stanza in deb822 form; third parties' are left out.

    Raises `ImageError` when there are none.
    """
    found: list[str] = []
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]:
        if path.suffix in {".list", ".sources"} and path.is_file():
            text = path.read_text(errors="replace")
            stanzas = _stanzas(text) if path.suffix == ".sources" else map(_stanza_of_line, text.splitlines())
            found.extend(stanza for stanza in stanzas if stanza and _is_of(stanza, suite))
    if not found:
        raise ImageError(f"{etc_apt} has no source for {suite}; add one, or name a release that it has with --suite")
    return tuple(found)


def _stanzas(text: str) -> Iterator[str]:
    for block in re.split(r"\n[ \t]*\n", text):
        lines = [line for line in block.splitlines() if line.strip() and not line.startswith("#")]
        if any(line.lower().startswith("enabled:") and line.split(":", 1)[1].strip() == "no" for line in lines):
            continue
        yield "\n".join(lines)


def _stanza_of_line(line: str) -> str:
    """A one-line source as a stanza; empty for a comment or a source of source packages."""
    match = re.match(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<parts>[^#]*)", line)
    if match is None:
        return ""
    lines = ["Types: deb", f"URIs: {match['uri']}", f"Suites: {match['suite']}"]
    if match["parts"].strip():
        lines.append(f"Components: {match['parts'].strip()}")
    signed = re.search(r"signed-by=(\S+)", match["options"] or "")
    return "\n".join([*lines, f"Signed-By: {signed[1]}"] if signed else lines)


def _is_of(stanza: str, suite: str) -> bool:
    suites = re.search(r"(?im)^suites:\s*(.+)$", stanza)
    names = {suite, f"{suite}-updates", f"{suite}-security", f"{suite}/updates"}
    return suites is not None and any(name in names for name in suites[1].split())


def _apt_options() -> Iterator[str]:
    """How apt reaches its mirrors here: proxies and certificates."""
    answer = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=60, check=False)
    for line in answer.stdout.splitlines():
        if re.match(r"Acquire::https?(::.*)?::(Proxy|CAInfo|CAPath|Verify-Peer)\S* \"[^\"]+\";", line):
            yield line.removesuffix(";")


def _write_layout(layer: Path, layout: Path, name: str) -> None:
    """An OCI layout of one uncompressed layer, which is moved in."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    with layer.open("rb") as stream:
        diff_id = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
    size = layer.stat().st_size
    layer.rename(blobs / diff_id.removeprefix("sha256:"))
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Env": [f"PATH={path}"], "Cmd": ["/bin/bash"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }
    layers = [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": diff_id, "size": size}]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **_blob(blobs, config)},
        "layers": layers,
    }
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        **_blob(blobs, manifest),
        "platform": {"architecture": machine, "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": name},
    }
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')


def _blob(blobs: Path, value: object) -> dict[str, object]:
    data = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}
