"""The network guard on a real node: what a denied sandbox reaches, who reaches execd, and what an untrue policy brings.

What is not reached from a denied sandbox is reached from an open one in the same test.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from sandbox import KubernetesConfig, SandboxSpec, open_provider
from sandbox.errors import ProviderUnavailable
from sandbox.kube.api import Api
from sandbox.provider import Sandbox
from sandbox.testing import Subject
from tests.cluster.conftest import FAST, a_canary, pods_of

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.slow]

OUTSIDE = "198.51.100.7"
"""Of a range that is nobody's (RFC 5737): for a while an address of this machine, to which pods have to be routed."""

ASK_UDP = """python3 -c '
import socket, sys
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(2)
asking.sendto(b"who?", (sys.argv[1], int(sys.argv[2])))
print(asking.recv(9))
' {} {}"""

CALL_EXECD = """python3 -c '
import sys, urllib.request
call = urllib.request.Request(sys.argv[1], headers={{"Authorization": "Bearer " + sys.argv[2]}})
print(urllib.request.urlopen(call, timeout=3).status)
' http://{}:{}/health {}"""


class Echo(asyncio.DatagramProtocol):
    """Answers every datagram, as a name server would."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._transport.sendto(data, addr)


@pytest.fixture
def outside(kubeconfig: object) -> Iterator[str]:
    """An address outside of the cluster."""
    if os.environ.get("KUBECONFIG") or os.geteuid() != 0:
        pytest.skip("needs the cluster of tests/cluster/up, whose pods are routed through this machine, and root")
    argv = ["ip", "address", "add", f"{OUTSIDE}/32", "dev", "lo"]
    subprocess.run(argv, check=True)
    try:
        yield OUTSIDE
    finally:
        argv[2] = "delete"
        subprocess.run(argv, check=True)


async def answered(box: Sandbox, host: str, port: int) -> bool:
    """Whether a datagram from inside comes back."""
    return 0 == (await box.run(ASK_UDP.format(host, port), timeout_s=30)).exit_code


async def test_from_a_denied_sandbox_nothing_is_reached(subject: Subject, outside: str) -> None:
    """Neither the API server, nor the kubelet, nor another pod, nor an outside address, nor a name server; and the
    grader goes on working."""
    provider, spec = subject.provider, subject.spec
    assert subject.canary is not None
    node = subject.canary[0]
    open_spec = spec.model_copy(update={"egress": "open"})
    server = await asyncio.start_server(lambda reader, writer: writer.close(), outside, 0)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=(outside, 53))
    try:
        async with provider.sandbox(open_spec) as witness, provider.sandbox(spec) as denied:
            listening = "python3 -m http.server 8099 >/dev/null 2>&1 & sleep 1"
            await witness.run(listening, timeout_s=20)
            targets = [subject.canary, (node, 10250), server.sockets[0].getsockname()[:2]]
            for target in targets:
                assert "reached" == (await witness.facts(canary=target)).canary, target
                assert "unreachable" == (await denied.facts(canary=target)).canary, target
            for box, expected in ((witness, True), (denied, False)):
                assert expected == await answered(box, outside, 53)
            assert "unreachable" == (await denied.facts(canary=(witness.address[0], 8099))).canary
            assert b"on\n" == (await denied.run("echo on", timeout_s=10)).output
    finally:
        transport.close()
        server.close()
        await server.wait_closed()


async def test_another_pod_cannot_call_execd(subject: Subject) -> None:
    """A sandbox with open egress does not reach another's execd, with its token or without."""
    open_spec = subject.spec.model_copy(update={"egress": "open"})
    async with subject.provider.sandbox(open_spec) as caller, subject.provider.sandbox(open_spec) as called:
        token = called.client._wire._common.partition("Bearer ")[2].split()[0]
        assert "unreachable" == (await caller.facts(canary=called.address)).canary
        for known in (token, "none"):
            said = await caller.run(CALL_EXECD.format(*called.address, known), timeout_s=30)
            assert 0 != said.exit_code
            assert b"timed out" in said.output
        own = await called.run(CALL_EXECD.format("127.0.0.1", called.address[1], token), timeout_s=30)
        assert b"200\n" == own.output  # the same call, from where nothing is in the way


async def test_a_policy_that_denies_nothing_is_found_out(
    admin: Api, namespace: str, config: Callable[..., KubernetesConfig], spec: SandboxSpec
) -> None:
    """Where the policy is there and lets everything out, the proof from inside refuses sandboxes with egress denied."""
    name = "sandman-grader-egress-denied"
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/{name}"
    await admin.call("PATCH", path, {"spec": {"egress": [{}]}})

    async with open_provider(config(canary=await a_canary(admin), pacing=FAST)) as provider:
        with pytest.raises(ProviderUnavailable, match=r"egress denied reaches"):
            async with provider.sandbox(spec, acquire_timeout_s=90):
                pass
    with anyio.fail_after(20):
        while await pods_of(admin, namespace):
            await anyio.sleep(0.2)
