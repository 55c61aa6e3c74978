"""How long the daemon keeps what a command wrote, and who gets it."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from execd.execs import KEPT_OUTPUT, Exec, Follower, Records
from execd.http import Connection
from execd.loop import Loop
from execd.protocol import Refusal
from execd.server import Body


def end(records: Records, exec_id: str, size: int) -> None:
    record = Exec(exec_id, "main", b"", b"", 1.0, 2 * KEPT_OUTPUT)
    record.output.add(bytes(size))
    records.add(record)
    records.ended(record)


def test_a_large_output_is_kept_until_the_next_one_or_for_its_own_time() -> None:
    """The time of a large output that the next one has replaced does not end the next one's."""
    records = Records()
    for exec_id in ("first", "second"):
        end(records, exec_id, KEPT_OUTPUT + 1)
    records.drop_large("first")
    assert KEPT_OUTPUT + 1 == len(records.find("second").output)
    records.drop_large("second")
    for exec_id in ("first", "second"):
        with pytest.raises(Refusal):
            records.find(exec_id)


def test_outputs_within_the_bounds_outlive_a_large_one() -> None:
    """Only what is beyond the bounds is dropped for its size."""
    records = Records()
    end(records, "large", KEPT_OUTPUT + 1)
    end(records, "small", 1)
    for exec_id in ("large", "small"):
        records.drop_large(exec_id)
    assert 1 == len(records.find("small").output)


class Following:
    """Answers each request with what one command writes."""

    def __init__(self, loop: Loop, record: Exec) -> None:
        self.loop, self.record = loop, record
        self.unfollowed: list[Exec] = []

    def open(self, request: Any, connection: Connection) -> Body:
        def follow(_body: bytes) -> None:
            Follower(self.loop, connection, self.record, True, 0, self.unfollowed.append)

        return Body(request, 0, follow)

    def closed(self, _connection: Connection) -> None:
        """It is not asked for again."""


def test_a_client_that_left_unseen_is_no_trouble_of_the_command() -> None:
    """Where a send is the first to find that a client has gone, the output is kept and nobody follows any more."""
    errors: list[Exception] = []
    loop, (client, server) = Loop(errors.append), socket.socketpair()
    server.setblocking(False)
    record = Exec("id", "main", b"", b"", 1.0, 1 << 20)
    app = Following(loop, record)
    Connection(loop, server, app)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    loop.after(0.05, loop.stop)
    loop.run()
    assert 1 == len(record.followers)

    client.close()  # and before the loop hears of it the command writes
    record.add_output(bytes(1 << 19))
    assert ([], [record], 1 << 19) == (record.followers, app.unfollowed, record.output.total)
    assert [] == errors
