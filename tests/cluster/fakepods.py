"""Pods that run on no node: a status that says so of one, and one server that answers for the execd of all.

Each pod has a loopback address of its own. The server answers at all of them as execd would to a health check and to a
command, which it does not run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from sandbox.kube.manifest import CONTAINER

PORT = 18080
"""The provider's own choice."""
MERGE = {"Content-Type": "application/merge-patch+json"}
"""How a status is patched."""

_addresses = itertools.count(1 << 16)
"""Less 127.0.0.0."""


@asynccontextmanager
async def answering(port: int) -> AsyncIterator[int]:
    """A server at all addresses of the loopback device, and at no other's. Gives its port; 0 takes any."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        listener.bind(("", port))
        server = await asyncio.get_running_loop().create_server(Execd, sock=listener, backlog=4096)
        async with server:
            yield int(listener.getsockname()[1])


def running() -> dict[str, Any]:
    """The status of a pod that runs, at a loopback address that no other of this process has."""
    number = next(_addresses)
    ip = f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    conditions = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": now,
        "conditions": [{"type": one, "status": "True", "lastTransitionTime": now} for one in conditions],
        "containerStatuses": [
            {
                "name": CONTAINER,
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": "fake",
                "imageID": "fake",
                "containerID": "fake://fake",
                "state": {"running": {"startedAt": now}},
            }
        ],
    }


class Execd(asyncio.Protocol):
    """Answers as the daemon of the address that was called. One request at a time, as our client sends them."""

    execs: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._address = str(transport.get_extra_info("sockname")[0])
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        length = head.lower().rpartition(b"content-length: ")
        size = int(length[2].split(b"\r\n")[0]) if length[1] else 0
        if not end or len(rest) < size:
            return
        self._data = rest[size:]
        if head.startswith(b"GET /health"):
            body = json.dumps(
                {
                    "boot_id": self._address,
                    "execs": self.execs[self._address],
                    "python_version": "3.11.0",
                    "uptime_s": 1.0,
                }
            ).encode()
        else:
            self.execs[self._address] += 1
            result = {"exit_code": 0, "truncated": False, "timed_out": False, "shell_restarted": False}
            payload = json.dumps({**result, "duration_s": 0.0, "output_bytes": 0}).encode()
            body = b"r" + len(payload).to_bytes(4, "big") + payload
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
