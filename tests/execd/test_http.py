"""The daemon's HTTP face: who is let in, what is bounded, what nonsense does."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.errors import DaemonError
from tests.execd.conftest import TOKEN, Running, daemon

AUTH = f"Authorization: Bearer {TOKEN}\r\n".encode()


def talk(running: Running, sent: bytes, wait_s: float = 20.0) -> bytes:
    """Everything that the daemon answers to these bytes and the end of sending."""
    with socket.create_connection(("127.0.0.1", running.port), wait_s) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(1 << 16):
                received += data
        return received


def test_health_without_a_token_says_ok_and_nothing_else(running: Running) -> None:
    """A stranger learns that the daemon is there, nothing more."""
    answer = talk(running, b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert {"ok": True} == json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    "token", [b"", b"Bearer ", b"Bearer wrong", b"Basic " + TOKEN.encode(), b"Bearer " + TOKEN[:-1].encode()]
)
def test_a_wrong_token_is_refused_everywhere(running: Running, token: bytes) -> None:
    """No endpoint but health answers without the right token; the refusal does not tell whether the endpoint exists."""
    for line in (b"POST /exec?id=1&timeout_s=1", b"GET /file?path=/etc/passwd", b"PUT /tree?path=/x", b"GET /nope"):
        answer = talk(running, line + b" HTTP/1.1\r\nAuthorization: " + token + b"\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert "unauthorized" == json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/2.0\r\n\r\n", 400, "malformed"),
        (b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", 400, "malformed"),
        (b"GET /health HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "malformed"),
        (b"GET /health HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "malformed"),
        (b"GET /health HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "malformed"),
        (b"GET /health HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "malformed"),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431, "head_too_large"),
        (b"GET /nope HTTP/1.1\r\n" + AUTH + b"\r\n", 404, "no_route"),
        (b"GET /exec HTTP/1.1\r\n" + AUTH + b"\r\n", 405, "wrong_method"),
        (b"GET /file?path=relative HTTP/1.1\r\n" + AUTH + b"\r\n", 400, "bad_argument"),
        (b"GET /file?path=%zz HTTP/1.1\r\n" + AUTH + b"\r\n", 400, "bad_argument"),
        (b"POST /exec?timeout_s=1 HTTP/1.1\r\n" + AUTH + b"\r\n", 400, "bad_argument"),
        (b"POST /exec?id=1&timeout_s=x HTTP/1.1\r\n" + AUTH + b"\r\n", 400, "bad_argument"),
        (b"POST /exec?id=1&timeout_s=-1 HTTP/1.1\r\n" + AUTH + b"\r\n", 400, "bad_argument"),
        (b"POST /exec?id=1&timeout_s=nan HTTP/1.1\r\n" + AUTH + b"\r\n", 400, "bad_argument"),
        (b"POST /exec?id=1 HTTP/1.1\r\nContent-Length: 999999999999\r\n" + AUTH + b"\r\n", 413, "too_large"),
        (b"PUT /tree?path=/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + AUTH + b"\r\nzz\r\n", 400, "malformed"),
        (b"POST /exec?id=1&timeout_s=1&boot=other HTTP/1.1\r\n" + AUTH + b"\r\n", 409, "wrong_boot"),
        (b"POST /cancel?id=nobody HTTP/1.1\r\n" + AUTH + b"\r\n", 404, "unknown_exec"),
    ],
)
def test_a_bad_request_gets_a_code(running: Running, sent: bytes, status: int, code: str) -> None:
    """Whatever is wrong with a request, the answer is a status and a code of the closed table."""
    answer = talk(running, sent.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert code == json.loads(body)["error"]


def test_a_command_with_a_nul_is_refused(running: Running) -> None:
    """bash cannot take a NUL in a command, and the daemon says so instead of cutting there."""
    head = b"POST /exec?id=nul&timeout_s=1 HTTP/1.1\r\nContent-Length: 3\r\nConnection: close\r\n" + AUTH + b"\r\n"
    assert "bad_argument" == json.loads(talk(running, head + b"a\0b").partition(b"\r\n\r\n")[2])["error"]


def test_requests_in_one_packet_are_answered_in_order(running: Running) -> None:
    """Pipelined requests on one connection get their answers one after the other."""
    one = b"POST /exec?id=pipe%d&timeout_s=9 HTTP/1.1\r\nContent-Length: 6\r\n" + AUTH
    sent = one % 1 + b"\r\necho 1" + one % 2 + b"Connection: close\r\n\r\necho 2"
    answer = talk(running, sent)
    assert 0 < answer.index(b"1\n") < answer.index(b"2\n")


def test_a_request_may_come_byte_by_byte(running: Running) -> None:
    """Where the network cuts a request makes no difference."""
    sent = b"POST /exec?id=slow&timeout_s=9 HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n" + AUTH
    sent += b"\r\n4\r\necho\r\n5;x=y\r\n slow\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), 20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(sent)):
            sock.send(sent[index : index + 1])
        received = b""
        while data := sock.recv(1 << 16):
            received += data
    assert b"slow\n" in received


def test_more_connections_than_allowed_do_not_keep_others_out(tmp_path: Path) -> None:
    """Strangers who hold every connection open make room for the one with the token."""
    with daemon(tmp_path) as running, contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port), 20))
        answer = talk(running, b"GET /health HTTP/1.1\r\nConnection: close\r\n" + AUTH + b"\r\n")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["connections"] <= 256


@pytest.mark.anyio
async def test_the_client_says_that_its_token_is_wrong(running: Running) -> None:
    """A wrong token is an error of its own, not a sandbox that is not ready yet."""
    with pytest.raises(DaemonError) as caught:
        async with running.client("wrong"):
            pass
    assert "unauthorized" == caught.value.code


FRAGMENTS = st.sampled_from(
    [
        b"GET ", b"POST ", b"PUT ", b"/exec", b"/file", b"/tree", b"/health", b"?", b"path=/dev/null", b"&", b"id=1",
        b"timeout_s=1", b"%", b"%41", b" HTTP/1.1\r\n", b"\r\n", b"\r\n\r\n", AUTH, b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n", b"5\r\n", b"0\r\n\r\n", b"Expect: 100-continue\r\n", b"\0", b"hello",
    ]
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(FRAGMENTS | st.binary(max_size=20), max_size=20))
def test_nonsense_never_hurts_the_daemon(running: Running, pieces: list[bytes]) -> None:
    """Any bytes at all: the daemon answers the next good request, and none of its callbacks has failed."""
    with socket.create_connection(("127.0.0.1", running.port), 20) as sock, contextlib.suppress(OSError):
        sock.sendall(b"".join(pieces))
    answer = talk(running, b"GET /health HTTP/1.1\r\nConnection: close\r\n" + AUTH + b"\r\n")
    assert 0 == json.loads(answer.partition(b"\r\n\r\n")[2])["failures"]


def test_the_token_is_in_no_command_line_and_no_environment(running: Running) -> None:
    """Neither the daemon's arguments nor its environment hold the token or its hash."""
    for name in ("cmdline", "environ"):
        data = Path(f"/proc/{running.process.pid}/{name}")
        if os.access(data, os.R_OK):
            assert TOKEN.encode() not in data.read_bytes()
