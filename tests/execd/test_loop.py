"""The loop's promises to who watches a descriptor."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from execd.http import Connection
from execd.loop import GONE, READ, Loop

Pair = Callable[[], tuple[socket.socket, socket.socket]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Makes connected sockets, which are closed in the end."""
    made: list[socket.socket] = []

    def make() -> tuple[socket.socket, socket.socket]:
        made.extend(both := socket.socketpair())
        return both

    yield make
    for sock in made:
        sock.close()


def test_events_of_a_closed_descriptor_are_not_told_to_who_has_its_number_next(pair: Pair) -> None:
    """Two are ready in one round; whichever is told first closes the other, and a new one gets its number."""
    errors: list[Exception] = []
    loop, told = Loop(errors.append), []
    ours, theirs = zip(pair(), pair(), strict=True)
    fresh, peer = pair()

    def replace(index: int) -> None:
        other = ours[1 - index].fileno()
        loop.forget(ours[index].fileno())
        loop.forget(other)
        os.dup2(fresh.fileno(), other)
        loop.watch(other, READ | GONE, lambda events: told.append((events, loop.stop())))
        loop.after(0.05, lambda: peer.send(b"its own"))

    for index, sock in enumerate(ours):
        loop.watch(sock.fileno(), READ | GONE, lambda _events, index=index: replace(index))
    for sock in theirs:
        sock.close()
    loop.after(10.0, loop.stop)
    loop.run()

    assert ([], [(READ, None)]) == (errors, told)


class Endless:
    """An app that begins its answers and never ends them."""

    def __init__(self) -> None:
        self.lost = 0

    def open(self, request: object, connection: Connection) -> None:
        connection.start_chunks("text/plain")
        connection.send_chunk(b"on and on")

    def closed(self, _connection: Connection) -> None:
        self.lost += 1


@pytest.mark.parametrize("first", ["the one that leaves", "the one that comes"])
def test_a_client_that_comes_as_another_leaves_is_not_cut_off(pair: Pair, first: str) -> None:
    """Its connection may get the number of the one that was closed in the same round."""
    errors: list[Exception] = []
    loop, app = Loop(errors.append), Endless()
    (leaver, theirs), (bell, ringer), (comer, accepted) = pair(), pair(), pair()
    number = theirs.fileno()
    old = Connection(loop, theirs, app)
    came: list[Connection] = []

    def accept(_events: int) -> None:
        loop.forget(bell.fileno())
        old.close()
        os.dup2(accepted.fileno(), number)
        sock = socket.socket(fileno=number)
        sock.setblocking(False)
        came.append(Connection(loop, sock, app))

    loop.watch(bell.fileno(), READ, accept)
    steps = [leaver.close, lambda: ringer.send(b"!")]
    leaver.send(b"GET / HTTP/1.1\r\n\r\n")
    comer.send(b"GET / HTTP/1.1\r\n\r\n")
    for step in steps if first == "the one that leaves" else reversed(steps):
        loop.after(0.05, step)
    loop.after(0.2, loop.stop)
    loop.run()

    assert ([], 1) == (errors, app.lost)
    assert comer.recv(1 << 16).endswith(b"on and on\r\n")
    came[0].close()
