"""Who we are to a cluster. The official client reads kubeconfigs, plugins and service accounts; here they stay fresh.

They are read anew when the server denies them, in one task for all who were denied, and used only if they were read
whole: till then the old ones stand, for what fails is their reading as often as they themselves.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from sandbox.config import KubernetesConfig
from sandbox.errors import ProviderUnavailable
from sandbox.log import Log

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAUSE_S = 5.0
READ_S = 20.0
"""So long those who were denied wait for a plugin."""
FIRST_S = 120.0
"""And so long a run's opening: a person may have to log in."""


@dataclass(frozen=True)
class Identity:
    """Credentials as they were read at one moment."""

    configuration: Any
    """The official client's."""
    tls: ssl.SSLContext
    """What connections are opened with: the cluster's authorities and our certificate, if we have one."""
    namespace: str | None
    """The one that they name."""

    async def headers(self) -> dict[str, str]:
        """What a request says of us. May read a token's file; raises whatever the client does where it cannot."""
        settings = (await self.configuration.auth_settings()).values()
        return {one["key"]: one["value"] for one in settings if one["value"] is not None}


class Credentials:
    """Of one cluster: the identity to use now. Made by `open_credentials`; `aclose` it last."""

    def __init__(self, config: KubernetesConfig, first: Identity) -> None:
        self.now = first
        self._config = config
        self._read_at = time.monotonic()
        self._reading: asyncio.Task[None] | None = None

    async def renewed(self, denied: Identity) -> bool:
        """Whether there is a newer identity than the one that was denied. It is read for that, but just once in a
        while, and waited for within `READ_S`."""
        if self.now is denied and self._reading is None:
            if time.monotonic() - self._read_at < PAUSE_S:
                return False
            self._reading = asyncio.get_running_loop().create_task(self._read())
        if self._reading is not None:  # if it takes longer, the next who is denied finds it under way
            await asyncio.wait({self._reading}, timeout=READ_S)
        return self.now is not denied

    async def aclose(self) -> None:
        """Give up reading them."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            self.now = await _load(self._config)
        except ProviderUnavailable as error:
            Log("sandbox.kube.credentials").warning("credentials not read anew", said=str(error))
        finally:
            self._read_at = time.monotonic()
            self._reading = None


async def open_credentials(config: KubernetesConfig) -> Credentials:
    """Read them for the first time. Raises `ProviderUnavailable`."""
    try:
        async with asyncio.timeout(FIRST_S):
            return Credentials(config, await _load(config))
    except TimeoutError as error:
        raise _no_way(f"the credentials were not read within {FIRST_S:g} s") from error


async def _load(config: KubernetesConfig) -> Identity:
    """Raises `ProviderUnavailable`, whatever went wrong: half a file makes the client raise anything."""
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.client.rest import RESTClientObject
    from kubernetes.aio.config import incluster_config, kube_config

    configuration = Configuration()
    inside = config.kubeconfig is None and config.context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if inside and "KUBECONFIG" not in os.environ:
            incluster_config.load_incluster_config(client_configuration=configuration)
            namespace = await asyncio.to_thread(_read_if_there, SERVICE_ACCOUNT / "namespace")
        else:
            file = str(config.kubeconfig or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
            loader = await kube_config.load_kube_config(
                config_file=file, context=config.context, client_configuration=configuration, persist_config=False
            )
            namespace = loader.current_context["context"].get("namespace")
        # A certificate that kubectl takes is taken. Python 3.13 on its own asks for more than many clusters' own have.
        configuration.disable_strict_ssl_verification = True
        configuration.proxy = configuration.proxy or _proxy_of_the_environment(str(configuration.host))
        return Identity(configuration, RESTClientObject(configuration).ssl_context, str(namespace or "") or None)
    except Exception as error:
        raise _no_way(f"{type(error).__name__}: {error}") from error


def _no_way(why: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"no way to a cluster: {why}; set `kubeconfig` in the provider's config or $KUBECONFIG to a file that "
        "`kubectl` works with"
    )


def _proxy_of_the_environment(server: str) -> str | None:
    """As `HTTPS_PROXY` and `NO_PROXY` say."""
    parts = urlsplit(server)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def _read_if_there(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except OSError:
        return None
