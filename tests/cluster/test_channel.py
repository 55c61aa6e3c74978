"""The result channel in a pod: what the test runner tells arrives as it does here."""

from __future__ import annotations

import pytest

from grader.channel import open_channel
from sandbox.testing import Subject

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.slow]

TESTS = """\
import os, unittest

class A(unittest.TestCase):
    def test_passes(self):
        print("x" * 100000)

    def test_fails(self):
        self.fail("test_passes (t.A) ... ok")
"""


async def test_a_runner_in_a_pod_is_heard(subject: Subject) -> None:
    """Each test's outcome and the runner's status come out of a pod, whole and without noise."""
    async with subject.provider.sandbox(subject.spec, acquire_timeout_s=300) as box:
        await box.write("/tmp/suite/t.py", TESTS.encode())
        async with open_channel(box, time_limit_s=60) as channel:
            ran = await box.run(f"{channel.export}cd /tmp/suite && python3 -m unittest t", timeout_s=60)
    assert ran.exit_code == 1, ran.output[-2000:]
    assert channel.heard.outcomes == {"t.A.test_passes": "passed", "t.A.test_fails": "failed"}
    assert [(True, 1)] == [(suite.whole, suite.status) for suite in channel.heard.suites]
    assert (None, (), 0) == (channel.heard.closed, channel.heard.faults, channel.heard.noise_bytes)
