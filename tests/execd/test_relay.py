"""What a worker writes, passed on to a client that may leave."""

from __future__ import annotations

import os
import socket
import struct
from types import SimpleNamespace
from typing import Any

from execd.http import Connection
from execd.loop import Loop
from execd.trees import Relay


class App:
    """Answers with what `worker` writes."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.killed = self.lost = 0
        out_r, self.out_w = os.pipe()
        os.set_blocking(out_r, False)
        self.worker: Any = SimpleNamespace(out_r=out_r, kill=self._kill)

    def _kill(self) -> None:
        self.killed += 1

    def open(self, _request: object, connection: Connection) -> None:
        Relay(self, self.worker, connection)

    def closed(self, _connection: Connection) -> None:
        self.lost += 1


def test_a_client_that_leaves_as_the_worker_ends_is_told_once() -> None:
    """Both in one round: the worker's pipe is closed once, and the connection does not count any more."""
    errors: list[Exception] = []
    loop = Loop(errors.append)
    app = App(loop)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
    sock.setblocking(False)
    Connection(loop, sock, app)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")

    def both() -> None:
        os.close(app.out_w)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    loop.after(0.1, both)
    loop.after(0.3, loop.stop)
    loop.run()

    assert ([], 1, 0) == (errors, app.lost, app.killed)
