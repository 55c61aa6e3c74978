"""The package registry settings of this machine, read from pip, for builds only. They never enter an image.

Taken over: the index, extra indexes that are not files, the proxy, trusted hosts, time-outs, and the CA certificates
as a copy. Not taken over: links to local files and constraints, which a recipe could not rely on elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_FROM_PIP = {
    "index-url": "PIP_INDEX_URL",
    "extra-index-url": "PIP_EXTRA_INDEX_URL",
    "trusted-host": "PIP_TRUSTED_HOST",
    "proxy": "PIP_PROXY",
    "timeout": "PIP_DEFAULT_TIMEOUT",
    "default-timeout": "PIP_DEFAULT_TIMEOUT",
}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True)
class Registry:
    """Variables for pip in a build sandbox, and the certificate file to copy in. Values may be secret."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificates: Path | None = None

    def inside(self, scratch: str) -> dict[str, str]:
        """The variables, with the certificates where `certificates_inside` puts them."""
        env = dict(self.env)
        if self.certificates is not None:
            env |= dict.fromkeys(("PIP_CERT", *_CERTIFICATES), certificates_inside(scratch))
        return env


def certificates_inside(scratch: str) -> str:
    """Where the copied certificates lie in the build sandbox."""
    return f"{scratch}/ca-certificates.pem"


def this_machines_registry(environ: Mapping[str, str] | None = None) -> Registry:
    """What pip and the environment of this process say."""
    environ = os.environ if environ is None else environ
    return parse_settings(_pip_settings(environ), environ)


def parse_settings(listing: str, environ: Mapping[str, str]) -> Registry:
    """From the output of `pip config list` and an environment. Later lines of the listing do not override earlier
    ones of the environment, as in pip."""
    settings: dict[str, str] = {}
    for line in listing.splitlines():
        name, separator, value = line.partition("=")
        place, _, key = name.strip().rpartition(".")
        if separator and place in {"global", "site", "user", ":env:", "install", "download"}:
            text = value.strip().strip("'\"").replace("\\n", " ")
            if place == ":env:" or key not in settings:
                settings[key] = text
    env = {}
    for key, variable in _FROM_PIP.items():
        words = [word for word in settings.get(key, "").split() if not word.startswith("file:")]
        if words:
            env[variable] = " ".join(words)
    for name in _PROXIES:
        env |= {spelt: environ[spelt] for spelt in (name, name.upper()) if environ.get(spelt)}
    named = [settings.get("cert"), *(environ.get(name) for name in _CERTIFICATES)]
    existing = [Path(name) for name in named if name and Path(name).is_file()]
    return Registry(env, existing[0] if existing else None)


def _pip_settings(environ: Mapping[str, str]) -> str:
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
            env=dict(environ),
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
