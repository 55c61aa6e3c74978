"""How the daemon starts in a pod: bash, the image's Python, boot.py, execd under the same process id."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox.bundle import bundle
from sandbox.client import ExecdClient
from sandbox.config import KubernetesConfig
from sandbox.kube.manifest import BOOT_KEY, MOUNT, ZIPAPP_KEY, Mark, pod
from sandbox.local.pythons import pyenv_versions
from sandbox.spec import SandboxSpec

TOKEN = "a token"
IMAGE = "name@sha256:" + "0" * 64


class Booted:
    """The pod's command, run here with its files in a directory of the test."""

    def __init__(self, mount: Path, spec: SandboxSpec, python: str, env: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (mount / ZIPAPP_KEY).write_bytes(bundle())
        (mount / BOOT_KEY).write_bytes(files("sandbox.kube").joinpath(BOOT_KEY).read_bytes())
        config = KubernetesConfig(pythons=("no-such-python", python), port=self.port)
        mark = Mark("name", "nonce", "run", "lease")
        manifest = pod(spec, config, mark, token_sha256=hashlib.sha256(TOKEN.encode()).hexdigest(), config_map="execd")
        [container] = manifest["spec"]["containers"]
        [variable] = container["env"]
        value = variable["value"].replace("$$", "$").replace(MOUNT, str(mount)).replace("0.0.0.0", "127.0.0.1")
        command = [part.replace(MOUNT, str(mount)) for part in container["command"]]
        self.process = subprocess.Popen(command, env={**env, "SANDMAN_START": value}, cwd=mount)

    def client(self) -> ExecdClient:
        return ExecdClient("127.0.0.1", self.port, TOKEN)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=10)


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Any]:
    started: list[Booted] = []

    def start(spec: SandboxSpec, python: str = "python3", **env: str) -> Booted:
        bash = Path(shutil.which("bash") or "/bin/bash").parent
        booted = Booted(tmp_path, spec, python, {"PATH": f"{Path(shutil.which('python3') or '').parent}:{bash}", **env})
        started.append(booted)
        return booted

    yield start
    for booted in started:
        booted.stop()


def pythons() -> list[str]:
    """Every Python from 3.6 on that is found here: one for each line of versions."""
    found: dict[str, str] = {}
    for path in [*pyenv_versions().glob("3.*/bin/python3"), *Path("/usr/bin").glob("python3.[0-9]*")]:
        minor = re.search(r"python3\.(\d+)$", str(path.resolve()))
        if minor and int(minor[1]) >= 6:
            found[minor[1]] = str(path)
    return sorted(found.values()) or ["python3"]


@pytest.mark.anyio
@pytest.mark.parametrize("python", pythons())
async def test_execd_answers_under_the_containers_first_process(boot: Any, python: str) -> None:
    """bash becomes the Python, which becomes execd: one process, and it answers with the token."""
    booted = boot(SandboxSpec(image=IMAGE), python)
    client = booted.client()

    health = await client.wait_ready(timeout_s=20)
    parent = await client.run("echo $PPID", timeout_s=10)
    await client.aclose()

    assert 0 == health.execs
    assert b"%d\n" % booted.process.pid == parent.output


@pytest.mark.anyio
async def test_the_images_environment_stays_and_the_clusters_goes(boot: Any, tmp_path: Path) -> None:
    """Variables and directory of the image reach commands, the spec's win, and what Kubernetes adds is left out."""
    spec = SandboxSpec(image=IMAGE, env={"GIVEN": "$(IMAGE) 'q' \n$$", "BOTH": "spec"})
    booted = boot(spec, IMAGE="image", BOTH="image", KUBERNETES_SERVICE_HOST="10.0.0.1", HOSTNAME="pod")
    client = booted.client()
    await client.wait_ready(timeout_s=20)

    show = 'for name in GIVEN BOTH IMAGE KUBERNETES_SERVICE_HOST SANDMAN_START; do echo "${!name-none}"; done; pwd'
    shown = (await client.run(show, timeout_s=10)).output.decode()
    exported = (await client.run("env", timeout_s=10)).output.decode()
    await client.aclose()

    assert f"$(IMAGE) 'q' \n$$\nspec\nimage\nnone\nnone\n{tmp_path}\n" == shown
    assert "token" not in exported.lower()


@pytest.mark.anyio
async def test_the_sandbox_sees_as_many_cpus_as_it_was_given(boot: Any) -> None:
    """`cpus=1` lets commands count one CPU, whatever the node has."""
    client = boot(SandboxSpec(image=IMAGE, cpus=1)).client()
    await client.wait_ready(timeout_s=20)
    counted = await client.run("nproc", timeout_s=10)
    await client.aclose()

    assert b"1\n" == counted.output


@pytest.mark.anyio
async def test_umask_and_open_files_are_as_the_spec_says(boot: Any) -> None:
    """Both hold for commands; more files than the node allows become as many as it allows, which can be read back."""
    client = boot(SandboxSpec(image=IMAGE, umask=0o077, open_files=300)).client()
    await client.wait_ready(timeout_s=20)
    shown = await client.run("umask; ulimit -Sn; ulimit -Hn", timeout_s=10)
    await client.aclose()

    assert b"0077\n300\n300\n" == shown.output


@pytest.mark.anyio
async def test_a_large_environment_is_handed_over_whole(boot: Any) -> None:
    """Variables of 100 kB, as Kubernetes allows them, arrive."""
    value = "x" * 100_000
    client = boot(SandboxSpec(image=IMAGE, env={"LARGE": value})).client()
    await client.wait_ready(timeout_s=20)
    counted = await client.run("echo ${#LARGE}", timeout_s=10)
    await client.aclose()

    assert b"100000\n" == counted.output


@pytest.mark.anyio
async def test_a_stranger_without_the_token_is_refused(boot: Any) -> None:
    """A request that has no token gets 401 and runs nothing."""
    booted = boot(SandboxSpec(image=IMAGE))
    client = booted.client()
    await client.wait_ready(timeout_s=20)
    async with httpx.AsyncClient(trust_env=False) as stranger:
        answer = await stranger.get(f"http://127.0.0.1:{booted.port}/facts")
    health = await client.health()
    await client.aclose()

    assert 401 == answer.status_code
    assert 0 == health.execs


def test_a_start_without_a_document_ends_at_once(tmp_path: Path) -> None:
    """boot.py without its variable fails, it does not serve unguarded."""
    boot_file = tmp_path / BOOT_KEY
    boot_file.write_bytes(files("sandbox.kube").joinpath(BOOT_KEY).read_bytes())
    began = time.monotonic()
    ended = subprocess.run(
        ["python3", "-I", "-S", str(boot_file)], check=False, capture_output=True, timeout=20, env={}
    )

    assert 0 != ended.returncode
    assert b"SANDMAN_START" in ended.stderr
    assert time.monotonic() - began < 10


def test_the_start_document_is_one_variable() -> None:
    """The pod has a single variable of ours, and it is JSON."""
    manifest = pod(
        SandboxSpec(image=IMAGE), KubernetesConfig(), Mark("n", "o", "r", "l"), token_sha256="x", config_map="c"
    )
    [variable] = manifest["spec"]["containers"][0]["env"]

    assert "SANDMAN_START" == variable["name"]
    keys = {"argv", "config_fd", "document", "defaults", "cpus", "pick", "umask", "open_files"}
    assert keys == json.loads(variable["value"]).keys()
