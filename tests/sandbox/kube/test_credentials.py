"""Credentials that a server denies: read anew once, for all who were denied, and used from then on."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from sandbox.config import KubernetesConfig
from sandbox.kube import credentials
from sandbox.kube.api import Api, ApiFailure, open_api
from tests.sandbox.kube.serving import Authority, kubeconfig, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "PAUSE_S", 0.0)


async def ask(api: Api) -> object:
    return (await api.call("GET", "/version"))["you"]


async def test_who_was_denied_by_an_old_token_is_asked_again_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late its answer comes: the reading may have been over for long, and is not repeated."""
    monkeypatch.setattr(credentials, "PAUSE_S", 60.0)
    file, heard = tmp_path / "kubeconfig", Counter[str]()

    async def handle(request: web.Request) -> web.Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        heard[token] += 1
        if token == "old":
            file.write_text(kubeconfig(url, {"token": "new"}))
            await asyncio.sleep(0.1 * heard["old"])
            return web.Response(status=401)
        return web.json_response({"you": token})

    async with serving(handle) as url:
        file.write_text(kubeconfig(url, {"token": "old"}))
        async with open_api(KubernetesConfig(kubeconfig=file)) as api:
            api.credentials._read_at -= 60.0
            assert ["new"] * 5 == await asyncio.gather(*(ask(api) for _ in range(5)))

    assert {"old": 5, "new": 5} == heard


async def test_a_watch_that_is_denied_begins_with_the_new_token(tmp_path: Path) -> None:
    """It need not wait for another request to be denied."""
    file = tmp_path / "kubeconfig"
    line = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}

    async def handle(request: web.Request) -> web.Response:
        file.write_text(kubeconfig(url, {"token": "new"}))
        is_new = request.headers["authorization"] == "Bearer new"
        return web.Response(text=json.dumps(line) + "\n") if is_new else web.Response(status=401)

    async with serving(handle) as url:
        file.write_text(kubeconfig(url, {"token": "old"}))
        async with open_api(KubernetesConfig(kubeconfig=file)) as api:
            assert ["7"] == [event.version async for event in api.watch_pods("a=b", "1", timeout_s=5.0)]


@pytest.mark.parametrize("text", ["", "clusters: [{", "null", "[]", "users: 7"])
async def test_credentials_that_cannot_be_read_leave_the_old_ones(tmp_path: Path, text: str) -> None:
    """A file may be empty or half written for a moment. Once it is whole again it is used."""
    file = tmp_path / "kubeconfig"

    async def handle(request: web.Request) -> web.Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        return web.json_response({"you": token}) if token == "new" else web.Response(status=401)

    async with serving(handle) as url:
        file.write_text(kubeconfig(url, {"token": "old"}))
        async with open_api(KubernetesConfig(kubeconfig=file)) as api:
            file.write_text(text)
            with pytest.raises(ApiFailure, match="401"):
                await ask(api)
            file.write_text(kubeconfig(url, {"token": "new"}))
            assert "new" == await ask(api)


async def test_a_plugin_that_hangs_holds_nobody_for_long_and_is_started_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was denied hears it in time. The token that the plugin gives at last is used."""
    monkeypatch.setattr(credentials, "READ_S", 0.2)
    file, starts, go_on = tmp_path / "kubeconfig", tmp_path / "starts", tmp_path / "go on"
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    plugin = tmp_path / "plugin"
    plugin.write_text(f"""#!/bin/sh
echo started >> '{starts}'
tries=0
until [ $(wc -l < '{starts}') = 1 ] || [ -e '{go_on}' ] || [ $tries = 600 ]; do sleep 0.05; tries=$((tries+1)); done
echo '{json.dumps({**credential, "status": {"token": "TOKEN"}})}' | sed "s/TOKEN/$(wc -l < '{starts}')/"
""")
    plugin.chmod(0o755)

    async def handle(request: web.Request) -> web.Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        return web.json_response({"you": token}) if token == "2" else web.Response(status=401)

    async with serving(handle) as url:
        user = {"exec": {"apiVersion": credential["apiVersion"], "command": str(plugin)}}
        file.write_text(kubeconfig(url, user))
        async with open_api(KubernetesConfig(kubeconfig=file)) as api:
            with anyio.fail_after(5):
                for _ in range(3):
                    with pytest.raises(ApiFailure, match="401"):
                        await ask(api)
            assert 2 == len(starts.read_text().splitlines())
            go_on.touch()
            with anyio.fail_after(5):
                while True:
                    try:
                        assert "2" == await ask(api)
                        break
                    except ApiFailure:
                        await anyio.sleep(0.05)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the certificates are made by openssl")
async def test_a_renewed_client_certificate_is_used(tmp_path: Path) -> None:
    """By new connections, where the server denies the old one; the file has its old name or a new one."""
    authority, file = Authority(tmp_path), tmp_path / "kubeconfig"

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        [[(_, name)]] = request.transport.get_extra_info("peercert")["subject"]
        return web.json_response({"you": name}) if name == allowed else web.Response(status=401)

    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(handle, authority.server(asks_for_certificates=True)))
        used = tmp_path / "used.crt", tmp_path / "used.key"
        for allowed, place in (("first", used), ("second", used), ("third", None)):
            signed = authority.sign(allowed)
            if place is not None:
                for source, target in zip(signed, place, strict=True):
                    shutil.copy(source, target)
            certificate, key = map(str, place or signed)
            user = {"client-certificate": certificate, "client-key": key}
            file.write_text(kubeconfig(url, user, **{"certificate-authority": str(authority.certificate)}))
            if allowed == "first":
                api = await stack.enter_async_context(open_api(KubernetesConfig(kubeconfig=file)))
            assert allowed == await ask(api)
