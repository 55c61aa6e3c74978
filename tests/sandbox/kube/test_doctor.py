"""What the doctor makes of a server's answers. What it finds on a real cluster is in tests/cluster/test_doctor.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from sandbox.kube.api import Api, ApiFailure
from sandbox.kube.doctor import namespace_found


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "level"), [(404, "error"), (403, "ok"), (503, "failure"), (0, "failure")])
async def test_a_namespace_that_cannot_be_looked_at_is_told_as_the_server_answers(status: int, level: str) -> None:
    """One that is not there is to be mended, one that the role may not look at is no trouble, and a server that fails
    is infrastructure."""

    async def call(method: str, path: str) -> None:
        raise ApiFailure(f"{method} {path}", status, "Reason", "said")

    found = await namespace_found(cast("Api", SimpleNamespace(namespace="here", call=call)))

    assert ("namespace", level) == (found.check, found.level)
