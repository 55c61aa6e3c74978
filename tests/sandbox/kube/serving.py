"""A server of few words in place of a cluster's, the kubeconfig that leads to it, and certificates for both."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web


@asynccontextmanager
async def serving(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The server's URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def kubeconfig(url: str, user: dict[str, Any], **cluster: str) -> str:
    """The text of a kubeconfig. `user` is who we are."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "here"}}],
        "current-context": "c",
    }
    return yaml.safe_dump(document)


class Authority:
    """An authority whose own certificate says nothing of what its key is for, as many a cluster's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate = folder / "ca.crt"
        plain = folder / "plain.cnf"
        plain.write_text(
            "[req]\ndistinguished_name=d\nx509_extensions=e\n[d]\n[e]\nbasicConstraints=critical,CA:true\n"
        )
        self._openssl("req", "-x509", *_NEW, "-config", plain, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")

    def sign(self, name: str) -> tuple[Path, Path]:
        """Certificate and key for this machine's loopback address and for whoever has the name."""
        (self._folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        self._openssl("req", *_NEW, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")
        return self._folder / f"{name}.crt", self._folder / f"{name}.key"

    def server(self, *, asks_for_certificates: bool = False) -> ssl.SSLContext:
        """For a server at the loopback address."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*self.sign("server"))
        if asks_for_certificates:
            tls.verify_mode = ssl.CERT_REQUIRED
            tls.load_verify_locations(self.certificate)
        return tls

    def _openssl(self, *words: str | Path) -> None:
        subprocess.run(["openssl", *words], cwd=self._folder, check=True, capture_output=True)


_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
