"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

# A busy machine is no fault of the code, hence no deadline. CI tries the same examples for the same commit; elsewhere
# each run searches further.
settings.register_profile("shared-machine", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("shared-machine")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real rows, logs and recipes, which lie beside the clone and are not part of the project."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data is not beside this clone (looked for {SHARED_DATA.name} in the shared folder)")
    return SHARED_DATA


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test runs sends the log to that test's own stderr, which is closed by the next one."""
    yield
    structlog.reset_defaults()
