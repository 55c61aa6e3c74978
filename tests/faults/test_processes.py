"""The tools of the fault tests themselves."""

from __future__ import annotations

import secrets
import subprocess
import time

import pytest

from tests.faults.processes import held_asleep, sandboxes_beside
from tests.faults.room import is_root


def test_suites_that_never_sleep_at_one_moment_are_held_until_all_do() -> None:
    """Two sleeps of half a second, the second of which begins long after the first would have ended, are held together,
    and both end by themselves when they are let go."""
    mark = f"0.5{secrets.randbelow(10**8):08}"
    user = () if is_root() else ("--user", "--map-root-user")
    space = ("unshare", *user, "--pid", "--fork")
    if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace can be made here (unshare)")
    late = f"sleep 3; sleep {mark}; exit 7"

    suites = [subprocess.Popen([*space, "sh", "-c", script]) for script in (f"sleep {mark}; exit 7", late)]
    with held_asleep(f"sleep\0{mark}\0".encode(), 2) as sandboxes:
        time.sleep(1)  # longer than either would sleep
        held = set(sandboxes_beside(f"sleep\0{mark}\0".encode()))

    assert set(sandboxes) == held
    assert 2 == len({seen.space for seen in held})
    assert [7, 7] == [suite.wait(10) for suite in suites]
