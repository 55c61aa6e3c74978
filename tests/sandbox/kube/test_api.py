"""The way to the API server, where server or credentials are not as they should be."""

from __future__ import annotations

import json
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from aiohttp import web

from sandbox.config import KubernetesConfig
from sandbox.errors import ProviderUnavailable
from sandbox.kube import credentials
from sandbox.kube.api import Absent, ApiFailure, CreateAnswer, DeleteAnswer, ReadAnswer, Throttled, Unknown, open_api
from tests.sandbox.kube.serving import Authority, kubeconfig, serving

pytestmark = pytest.mark.anyio

Answer = Callable[[Path], web.Response]


def refused_and(change: Callable[[Path], object]) -> Answer:
    """401, and the file of the credentials is no longer what it was."""

    def answer(file: Path) -> web.Response:
        change(file)
        return web.Response(status=401)

    return answer


TROUBLES: dict[str, Answer] = {
    "a redirect with a password": lambda _file: web.Response(
        status=307, headers={"Location": "http://a:b@127.0.0.1:1/"}
    ),
    "a time to wait that is no number": lambda _file: web.Response(status=429, headers={"Retry-After": "\u00b2"}),
    "an answer that is no JSON": lambda _file: web.Response(body=b"\xff{\n"),
    "credentials that are gone": refused_and(lambda file: file.unlink(missing_ok=True)),
    "credentials that are empty": refused_and(lambda file: file.write_text("")),
    "credentials half written": refused_and(lambda file: file.write_text("clusters: [{")),
    "a token that no header holds": refused_and(
        lambda file: file.write_text(file.read_text().replace("token: t", 'token: "a\\nb"'))
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_whatever_server_and_credentials_do_requests_answer_and_reads_fail_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Else an owner would wait for an answer for ever, and a watch would end for good."""
    monkeypatch.setattr(credentials, "PAUSE_S", 0.0)
    file = tmp_path / "kubeconfig"

    async def handle(_request: web.Request) -> web.Response:
        return TROUBLES[trouble](file)

    async with serving(handle) as url:
        file.write_text(kubeconfig(url, {"token": "t"}))
        async with open_api(KubernetesConfig(kubeconfig=file)) as api:
            assert isinstance(await api.create_pod(b"{}"), get_args(CreateAnswer))
            assert isinstance(await api.read_pod("sb"), get_args(ReadAnswer))
            deleted = await api.delete_pod("sb", "u", grace_s=1)
            assert isinstance(deleted, get_args(DeleteAnswer))
            assert isinstance(deleted, Throttled) == (trouble == "a time to wait that is no number")
            with pytest.raises(ApiFailure):
                await api.list_pods("a=b")
            with pytest.raises(ApiFailure):
                async for _ in api.watch_pods("a=b", "1", timeout_s=5.0):
                    pass
            with pytest.raises(ApiFailure):
                await api.call("GET", "/version")


def a_status(reason: str, **details: str) -> str:
    return json.dumps({"kind": "Status", "reason": reason, "message": "no", "details": details})


NOT_FOUND = {
    "of the pod": (a_status("NotFound", name="sb"), True),
    "of nothing by name": (a_status("NotFound"), True),
    "of something else": (a_status("NotFound", name="here"), False),
    "of another kind": (a_status("Gone", name="sb"), False),
    "a proxy's": ("404 page not found", False),
    "a proxy's JSON": ('{"reason": "NotFound"}', False),
}


@pytest.mark.parametrize("answer", NOT_FOUND)
async def test_a_pod_is_absent_when_the_server_itself_says_so(tmp_path: Path, answer: str) -> None:
    """What stands before the API server answers 404 too: that leaves the pod unknown."""
    text, is_absent = NOT_FOUND[answer]

    async def handle(_request: web.Request) -> web.Response:
        return web.Response(status=404, text=text)

    file = tmp_path / "kubeconfig"
    async with serving(handle) as url:
        file.write_text(kubeconfig(url, {"token": "t"}))
        async with open_api(KubernetesConfig(kubeconfig=file)) as api:
            told = await api.read_pod("sb"), await api.delete_pod("sb", "u", grace_s=1)

    assert [Absent if is_absent else Unknown] * 2 == [type(one) for one in told]


async def test_a_kubeconfig_that_is_no_yaml_is_said_to_be_none(tmp_path: Path) -> None:
    """With what to do."""
    file = tmp_path / "kubeconfig"
    file.write_text("clusters: [{")
    with pytest.raises(ProviderUnavailable, match="set `kubeconfig`"):
        async with open_api(KubernetesConfig(kubeconfig=file)):
            pass


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the certificates are made by openssl")
async def test_a_clusters_certificate_that_kubectl_takes_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many a cluster's authority says nothing of what its key is for; Python 3.13 by itself insists that it does."""

    lenient = ssl.create_default_context

    def strict(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        context = lenient(*args, **kwargs)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"major": "1"})

    monkeypatch.setattr(ssl, "create_default_context", strict)
    authority, file = Authority(tmp_path), tmp_path / "kubeconfig"
    async with serving(version, authority.server()) as url:
        file.write_text(kubeconfig(url, {"token": "t"}, **{"certificate-authority": str(authority.certificate)}))
        async with open_api(KubernetesConfig(kubeconfig=file)) as api:
            assert {"major": "1"} == await api.call("GET", "/version")


async def test_who_asks_after_the_connections_were_closed_hears_it_as_ours(tmp_path: Path) -> None:
    """A provider can close while somebody still asks why a sandbox was lost."""
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig("http://127.0.0.1:1", {"token": "t"}))
    async with open_api(KubernetesConfig(kubeconfig=file)) as api:
        pass

    assert isinstance(await api.create_pod(b"{}"), get_args(CreateAnswer))
    assert isinstance(await api.read_pod("sb"), get_args(ReadAnswer))
    with pytest.raises(ApiFailure, match="closed"):
        await api.list_pods("a=b")
