"""A fuzzer of execd's HTTP face: `python -m tests.execd.fuzz --seconds 600`.

It sends a real daemon whole, cut, glued and mutated requests, with and without the token, over many connections, and
checks after each round that the daemon answers, that none of its callbacks failed, and that it keeps no connection. At
the end it prints the counts and the daemon's resident memory at the beginning and at the end. Exit code 1 on a finding.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import re
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.execd.conftest import TOKEN, Running, daemon

AUTH = f"Authorization: Bearer {TOKEN}\r\n".encode()
PATHS = [
    "/health",
    "/exec",
    "/cancel",
    "/reset",
    "/file",
    "/tree",
    "/facts",
    "/job",
    "/job/signal",
    "/jobs",
    "/edit",
    "/x",
]
NAMES = "id timeout_s session command_bytes max_output_bytes stream offset boot path mode limit op line old_bytes first"
NAMES += " last wait_s until_end signal expect_sha256 canary_host canary_port"
VALUES = [
    b"",
    b"0",
    b"1",
    b"-1",
    b"7",
    b"0.1",
    b"1e999",
    b"nan",
    b"99999999999999999999",
    b"%00",
    b"%zz",
    b"%ff",
    b"x" * 3000,
]
WORDS = [b"replace", b"insert", b"undo", b"create", b"main", b"no", b"644", b"/dev/null", b"/proc/self/status", b"/"]
BODIES = [
    b"",
    b"true",
    b"echo a; exit 3",
    b"cat",
    b"kill -9 $$",
    b"a\0b",
    b"'",
    b"sleep 0.05",
    b"\xff" * 100,
    b"x" * 70_000,
]
HEADERS = [
    b"Connection: close\r\n",
    b"Expect: 100-continue\r\n",
    b"Content-Length: 5\r\n",
    b"X: " + b"y" * 17_000 + b"\r\n",
]
HEADERS += [
    b"Transfer-Encoding: gzip\r\n",
    b"no colon\r\n",
    b": \r\n",
    b"Content-Length: 99999999999\r\n",
    b"\0: \0\r\n",
]
GROWTH_KIB = 8192  # the results and ids that are kept for repeats fill up meanwhile; a leak goes on after them
WAIT_S = 30.0


@dataclass
class Counts:
    """What was sent and what came back."""

    requests: int = 0
    connections: int = 0
    answers: collections.Counter[str] = field(default_factory=collections.Counter)
    closed: int = 0
    """Connections that the daemon ended without an answer."""


def good_request(rng: random.Random, folder: str) -> bytes:
    """A request that means something; what it names may or may not be there."""
    path = f"path={folder}/{rng.choice(['a', 'b', 'c/d', 'a/e'])}"
    some_id, old_id = f"id={rng.getrandbits(64)}", f"id={rng.randrange(50)}"
    text = rng.choice(["x", "a\nb", "\u00e9\r\n", "new\n" * 99])
    session = f"session={rng.randrange(4)}"
    line, body = rng.choice(
        [
            ("GET /health", ""),
            ("GET /facts", ""),
            (f"POST /exec?{some_id}&timeout_s=5&{session}&stream={rng.randrange(2)}", "echo a; exit 3"),
            (f"POST /exec?{some_id}&timeout_s=0.05&{session}", "sleep 9"),
            (f"POST /exec?{old_id}&timeout_s=5&{session}&command_bytes=3", "cat stdin"),
            (f"POST /cancel?{old_id}", ""),
            (f"POST /reset?{session}", ""),
            (f"POST /job?{old_id}&timeout_s=1&{session}", "echo job; sleep 0.1"),
            (f"GET /job?{old_id}&wait_s=0.2&until_end={rng.randrange(2)}", ""),
            (f"POST /job/signal?{old_id}&signal=15", ""),
            ("GET /jobs", ""),
            (f"PUT /file?{path}", text),
            (f"GET /file?{path}&offset={rng.randrange(9)}", ""),
            (f"GET /tree?{path}", ""),
            (f"GET /edit?{path}", ""),
            (f"POST /edit?{path}&{some_id}&op=create", text),
            (f"POST /edit?{path}&{some_id}&op=insert&line=0", text),
            (f"POST /edit?{path}&{some_id}&op=replace&old_bytes=1", "x" + text),
            (f"POST /edit?{path}&{some_id}&op=undo", ""),
        ]
    )
    data = body.encode()
    return f"{line} HTTP/1.1\r\nContent-Length: {len(data)}\r\n".encode() + AUTH + b"\r\n" + data


def request_of(rng: random.Random, folder: str) -> bytes:
    """One request, more or less well-formed."""
    if rng.random() < 0.5:
        return good_request(rng, folder)
    path = rng.choice(PATHS).encode()
    names = rng.sample(NAMES.split(), rng.randrange(7))
    pairs = [name.encode() + b"=" + _value(rng, name, folder) for name in names]
    if path in (b"/exec", b"/job") and rng.random() < 0.7:
        pairs += [
            b"id=%d" % rng.getrandbits(64),
            b"timeout_s=%g" % rng.choice([0.05, 1, 5]),
            b"session=%d" % rng.randrange(4),
        ]
    body = rng.choice(BODIES)
    head = rng.choice([b"GET ", b"POST ", b"PUT "]) + path + b"?" + b"&".join(pairs) + b" HTTP/1.1\r\n"
    if rng.random() < 0.9:
        head += AUTH
    if rng.random() < 0.2:
        head += rng.choice(HEADERS)
    if rng.random() < 0.3:
        size = rng.choice([len(body), len(body), 1, 0xFFFFFFF])
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + body + b"\r\n0\r\n\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % (len(body) if rng.random() < 0.9 else rng.randrange(9)) + body


def _value(rng: random.Random, name: str, folder: str) -> bytes:
    if name == "path" and rng.random() < 0.8:
        return f"{folder}/{rng.choice(['a', 'b', 'c/d', 'a/e', ''])}".encode()
    if name == "session":
        return b"%d" % rng.randrange(4)
    return rng.choice(VALUES + WORDS)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a few of them changed, removed, doubled or cut off."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            out[at:at] = rng.randbytes(rng.randrange(8))
        elif kind == 1:
            del out[at : at + rng.randrange(20)]
        elif kind == 2:
            out[at:at] = out[at : at + 30]
        else:
            del out[at:]
    return bytes(out)


def one_connection(rng: random.Random, port: int, folder: str, counts: Counts) -> None:
    """Send a few requests in pieces, then take what comes until the daemon is done with us."""
    count = rng.randrange(1, 5)
    data = b"".join(request_of(rng, folder) for _ in range(count))
    if rng.random() < 0.5:
        data = mutated(rng, data)
    counts.connections += 1
    counts.requests += count
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
        try:
            for piece in _cut(rng, data):
                sock.sendall(piece)
            if rng.random() < 0.2:
                return  # gone without waiting
            if rng.random() < 0.5:
                with contextlib.suppress(OSError):  # it has closed already
                    sock.shutdown(socket.SHUT_WR)
            else:
                sock.settimeout(rng.choice([0.02, 0.2]))
            while piece := sock.recv(1 << 16):
                received += piece[: 1 << 16]
        except ConnectionError:
            pass
        except TimeoutError:
            if sock.gettimeout() == WAIT_S:
                raise TimeoutError(f"the daemon neither answers nor closes after {data[:3000]!r}") from None
    counts.answers.update(code.decode() for code in re.findall(rb"HTTP/1\.1 (\d\d\d) ", received))
    counts.closed += not received


def _cut(rng: random.Random, data: bytes) -> list[bytes]:
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(3)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def health(running: Running) -> dict[str, object]:
    """What the daemon says, over a fresh connection; a daemon that is gone or hangs raises OSError."""
    with socket.create_connection(("127.0.0.1", running.port), WAIT_S) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n" + AUTH + b"\r\n")
        received = b""
        while piece := sock.recv(1 << 16):
            received += piece
    value: dict[str, object] = json.loads(received.partition(b"\r\n\r\n")[2])
    return value


def resident_kib(running: Running) -> int:
    """The daemon's resident memory."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+)", status)
    assert match is not None
    return int(match.group(1))


def fuzz(seconds: float, seed: int) -> int:
    """Fuzz one daemon for so long; 0 when nothing was found."""
    rng = random.Random(seed)
    counts = Counts()
    findings = []
    with tempfile.TemporaryDirectory() as name, daemon(Path(name), lifetime_s=seconds + 300) as running:
        began = time.monotonic()
        settled, said = 0, health(running)
        while not findings and time.monotonic() - began < seconds:
            try:
                for _ in range(50):
                    one_connection(rng, running.port, name, counts)
                said = health(running)
            except OSError as error:
                findings.append(f"the daemon does not answer: {error!r}")
                break
            if said["failures"]:
                findings.append(f"{said['failures']} callbacks failed; the daemon's stderr says how")
            if not settled and time.monotonic() - began > min(60.0, seconds / 5):
                settled = resident_kib(running)
        grown = resident_kib(running) - settled
        if settled and grown > GROWTH_KIB:
            findings.append(f"memory grew by {grown} KiB")
        print(
            f"seed {seed}: {time.monotonic() - began:.0f} s, {counts.connections} connections, {counts.requests} "
            f"requests, answers {dict(sorted(counts.answers.items()))}, {counts.closed} connections without an answer;"
            f" resident {settled} KiB after a fifth, {resident_kib(running)} KiB at the end; execs {said['execs']}"
        )
    print(
        "\n".join(findings)
        or f"no crash, no hang, no failed callback, memory grew by {grown} KiB (at most {GROWTH_KIB})"
    )
    return 1 if findings else 0


def main() -> int:
    """Parse the arguments and fuzz."""
    parser = argparse.ArgumentParser(prog="python -m tests.execd.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    return fuzz(arguments.seconds, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
