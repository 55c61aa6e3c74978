"""The Debian base: which apt sources it takes, what it says when it cannot be made, and the image itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sandbox import LocalConfig, SandboxSpec
from sandbox.errors import ImageError
from sandbox.local.debian import apt_sources, debian_base
from sandbox.local.provider import LocalProvider
from sandbox.local.store import ImageStore


def test_the_machines_own_sources_are_taken_and_third_parties_left(tmp_path: Path) -> None:
    """Both forms of apt's sources, the release with its updates and security; nothing else, nothing disabled."""
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://no.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://one.example/debian bookworm main contrib # mirror\n"
        "deb-src http://no.example/debian bookworm main\n"
        "deb http://no.example/cloud cloud-sdk-bookworm main\n"
    )
    (tmp_path / "sources.list.d/debian.sources").write_text(
        "Types: deb\n# a comment\nURIs: http://two.example/debian\nSuites: bookworm bookworm-updates\n"
        "Components: main\nSigned-By: /k2.gpg\n\n"
        "Types: deb\nURIs: http://three.example/security\nSuites: bookworm-security\nComponents: main\n\n"
        "Types: deb\nEnabled: no\nURIs: http://no.example\nSuites: bookworm\n"
    )
    (tmp_path / "sources.list.d/old.sources.save").write_text("Types: deb\nURIs: http://no.example\nSuites: bookworm\n")

    found = apt_sources(tmp_path, "bookworm")

    assert ["one.example", "two.example", "three.example"] == [one.split("://")[1].split("/")[0] for one in found]
    assert (
        "Types: deb\nURIs: http://one.example/debian\nSuites: bookworm\nComponents: main contrib\nSigned-By: /k.gpg"
        == (found[0])
    )
    assert "Signed-By: /k2.gpg" in found[1]


def test_a_release_without_a_source_is_said(tmp_path: Path) -> None:
    """The message says what to do, before mmdebstrap is run."""
    with pytest.raises(ImageError, match="no source for trixie"):
        apt_sources(tmp_path, "trixie")


def test_an_absent_mmdebstrap_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package to install."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ImageError, match="apt-get install mmdebstrap"):
        debian_base(ImageStore(tmp_path / "store"))


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(1800)
async def test_the_base_runs_what_recipes_need(tmp_path: Path) -> None:
    """bash, git, certificates, Python with its libraries; no mirror and no log of this machine's stays in it."""
    if shutil.which("mmdebstrap") is None or not Path("/etc/debian_version").exists():
        pytest.skip("needs mmdebstrap on Debian")
    async with LocalProvider(LocalConfig(state_dir=tmp_path / "s")) as provider:
        record = debian_base(provider.store)
        async with provider.sandbox(SandboxSpec(image=record.digest)) as box:
            for command in (
                "python3 -c 'import ssl, sqlite3, ctypes, bz2, lzma, readline, curses, venv, ensurepip, pyexpat'",
                "git --version && test -s /etc/ssl/certs/ca-certificates.crt && test -e /usr/share/zoneinfo/Asia/Tokyo",
                "! ls /etc/apt/sources.list.d/* /etc/apt/sources.list /var/log/* 2>/dev/null",
            ):
                result = await box.run(command, timeout_s=60)
                assert 0 == result.exit_code, result.output
