"""Which version of a trainer is installed: an adapter refuses one that would take no verdict for a number."""

from __future__ import annotations

import re
from importlib import metadata

from grader.errors import UsageError


def refuse_older(package: str, oldest: tuple[int, int], because: str) -> None:
    """Raise `UsageError`, with `because`, where `package` is older than `oldest` (major, minor), or of no version that
    can be read. Pre-releases count as what they lead to: what an adapter needs came into them too."""
    version = metadata.version(package)
    read = re.match(r"v?(?:\d+!)?(\d+)\.(\d+)", version)
    if read is None or (int(read[1]), int(read[2])) < oldest:
        raise UsageError(f"{package} {version} {because}; install {package}>={oldest[0]}.{oldest[1]}")
