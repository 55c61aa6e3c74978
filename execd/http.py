"""A small HTTP/1.1: one connection, its requests one after the other, every size and every wait bounded.

A handler gets the request's head and gives a sink: `feed(bytes)` for each piece of the body as it arrives, then
`end()`. The answer is given on the connection, now or later: `answer`, `answer_from` (pieces pulled as the client takes
them), or `start_chunks`/`send_chunk`/`end_chunks`.
"""

import time

from .loop import GONE, READ, WRITE
from .protocol import Refusal, parse_query, unquote

HEAD_LIMIT = 16 << 10
HEAD_WAIT_S = 15.0
BODY_WAIT_S = 60.0
IDLE_WAIT_S = 900.0
SEND_PARTS = 64  # the kernel takes 1,024 at once
SOURCE_BACKLOG = 1 << 19
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


class Request:
    """The head of a request, parsed. `query` maps names to bytes."""

    def __init__(self, method, path, query, headers):
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body_bytes = None  # None: chunked, the length is not known ahead
        self.chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        if b"transfer-encoding" in headers and not self.chunked:
            raise Refusal("malformed", "only the chunked transfer coding is known")
        if not self.chunked:
            length = headers.get(b"content-length", b"0")
            if not length.isdigit() or len(length) > 15:
                raise Refusal("malformed", "Content-Length is not a number")
            self.body_bytes = int(length)
        elif b"content-length" in headers:
            raise Refusal("malformed", "both Content-Length and a transfer coding")
        self.keep_alive = headers.get(b"connection", b"").lower() != b"close"

    def text(self, name, default=None):
        """A parameter as UTF-8 text."""
        value = self.query.get(name)
        if value is None:
            if default is None:
                raise Refusal("bad_argument", "`%s` is missing" % name)
            return default
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise Refusal("bad_argument", "`%s` is not UTF-8" % name) from None

    def number(self, name, default, low, high, kind=int):
        """A parameter as a number within its range."""
        value = self.query.get(name)
        if value is None:
            if default is None:
                raise Refusal("bad_argument", "`%s` is missing" % name)
            return default
        try:
            number = kind(value.decode("ascii"))
        except ValueError:
            raise Refusal("bad_argument", "`%s` is not a number" % name) from None
        if not low <= number <= high:
            raise Refusal("bad_argument", "`%s` is not between %s and %s" % (name, low, high))
        return number


def parse_head(data):
    """The Request of a head without its last empty line. Raises Refusal."""
    lines = data.split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not parts[0].isalpha():
        raise Refusal("malformed", "the request line")
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name in headers and name in _ONCE):
            raise Refusal("malformed", "a header line")
        headers[name] = value.strip(b" \t")
    path, _, query = parts[1].partition(b"?")
    return Request(parts[0].decode("ascii"), unquote(path).decode("latin-1"), parse_query(query), headers)


_ONCE = (b"content-length", b"transfer-encoding", b"authorization", b"host")


class Chunks:
    """Decodes a chunked body piece by piece."""

    def __init__(self):
        self._left = 0
        self._state = "size"

    def feed(self, buffer):
        """Take decoded bytes off the front of a bytearray: (bytes, whether the body has ended)."""
        out = []
        while True:
            if self._state == "data":
                piece = bytes(buffer[: self._left])
                del buffer[: len(piece)]
                self._left -= len(piece)
                out.append(piece)
                if self._left:
                    return b"".join(out), False
                self._state = "gap"
            end = buffer.find(b"\r\n")
            if end < 0:
                if len(buffer) > 1024:
                    raise Refusal("malformed", "a chunk's head")
                return b"".join(out), False
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            if self._state == "gap":
                if line:
                    raise Refusal("malformed", "a chunk is longer than its head says")
                self._state = "size"
            elif self._state == "size":
                self._left = _chunk_size(line)
                self._state = "data" if self._left else "trailer"
            elif not line:
                return b"".join(out), True


def _chunk_size(line):
    digits = line.split(b";")[0].strip()
    if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
        raise Refusal("malformed", "a chunk's size")
    return int(digits, 16)


def rest_of(parts, sent):
    """What is left of byte strings of which `sent` bytes have been sent."""
    for number, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:]] + parts[number + 1 :]
        sent -= len(part)
    return []


class Connection:
    """One client. `app.open(request, connection)` gives the sink of each request's body."""

    def __init__(self, loop, sock, app):
        self._loop = loop
        self._socket = sock
        self._fd = sock.fileno()
        self._app = app
        self._in = bytearray()
        self._out = []
        self._request = None
        self._sink = None
        self._chunks = None
        self._left = 0
        self._source = None
        self._answered = False
        self._closing = False
        self._paused = False
        self._timer = None
        self._overdue_at = None
        self.on_drained = None
        self.on_gone = None
        self.backlog = 0
        self.trusted = False
        self.closed = False
        self._wait(HEAD_WAIT_S)
        self._watch()

    @property
    def idle(self):
        """Whether no request is being read or answered."""
        return self._request is None

    def answer(self, status, *parts, kind="application/json"):
        """Answer the request with a whole body, given in parts; they are sent as they are, without a copy."""
        size = sum(map(len, parts))
        self._begin(status, kind, "Content-Length: %d" % size)
        self._out += parts
        self.backlog += size
        self._finish()

    def answer_from(self, source, length, kind="application/octet-stream"):
        """Answer with the pieces of an iterator, pulled as the client takes them. `length` None: chunked."""
        self._begin(200, kind, "Transfer-Encoding: chunked" if length is None else "Content-Length: %d" % length)
        self._source = (source, length is None)
        self._pull()

    def start_chunks(self, kind):
        """Begin an answer whose length is not known."""
        self._begin(200, kind, "Transfer-Encoding: chunked")

    def send_chunk(self, *parts):
        """Send one piece of it, given in parts."""
        size = sum(map(len, parts))
        if size:
            self._put(b"%x\r\n" % size, *parts, b"\r\n")

    def end_chunks(self):
        """End it."""
        self._put(b"0\r\n\r\n")
        self._finish()

    def pause(self):
        """Read no more of the body until `resume`."""
        self._paused = True
        self._watch()

    def resume(self):
        """Go on reading the body."""
        if self._paused and not self.closed:
            self._paused = False
            self._watch()
            self._loop.after(0.0, self._advance)

    def close(self):
        """Close now, whatever is unsent."""
        if self.closed:
            return
        self.closed = True
        self._loop.forget(self._fd)
        self._socket.close()
        if self._timer is not None:
            self._timer.cancel()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort()
        if self._source is not None:
            self._source[0].close()
        gone, self.on_gone = self.on_gone, None
        if gone is not None:
            gone()
        self._app.closed(self)

    def _begin(self, status, kind, framing):
        if self._request is None or not self._request.keep_alive:
            self._closing = True
        head = "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%s\r\n%s\r\n" % (
            status,
            REASONS.get(status, "Error"),
            kind,
            framing,
            "Connection: close\r\n" if self._closing else "",
        )
        self._out.append(head.encode("ascii"))  # sent with what follows
        self.backlog += len(self._out[-1])

    def _finish(self):
        self._answered = True
        self.on_drained = self.on_gone = None
        if (
            self._sink is not None or self._left
        ):  # answered before the body was read: the rest cannot be skipped cheaply
            self._closing = True
        self._flush()

    def _put(self, *parts):
        if not self.closed:
            self._out += parts
            self.backlog += sum(map(len, parts))
            if self._source is None:
                self._flush()

    def _flush(self):
        while self._out and not self.closed:
            try:
                sent = self._socket.sendmsg(self._out[:SEND_PARTS])
            except BlockingIOError:
                self._wait(BODY_WAIT_S)
                break
            except OSError:
                self.close()
                return
            self.backlog -= sent
            self._out = rest_of(self._out, sent)
        if not self._out and self._answered:
            self._next_request()
        elif not self.closed:
            self._watch()

    def _next_request(self):
        self._answered = False
        self._request = None
        self._paused = False  # the last request's sink may have ended while it was full
        if self._closing:
            self._shut()
            return
        self._wait(IDLE_WAIT_S if not self._in else HEAD_WAIT_S)
        self._watch()
        if self._in:
            self._loop.after(0.0, self._advance)

    def _shut(self):
        """Close so that the answer still arrives when the client has sent more than was read."""
        try:
            self._socket.shutdown(1)
            for _ in range(16):
                if not self._socket.recv(1 << 16):
                    break
        except OSError:
            pass
        self.close()

    def _pull(self):
        source, chunked = self._source
        try:
            while self.backlog < SOURCE_BACKLOG:
                piece = next(source, None)
                if piece is None:
                    self._source = None
                    if chunked:
                        self._put(b"0\r\n\r\n")
                    self._finish()
                    return
                if piece:
                    data = b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece
                    self._out.append(data)
                    self.backlog += len(data)
                else:
                    break  # nothing yet; asked again when the socket takes more
        except Exception:
            self.close()  # the answer has begun; only a broken connection can say that it is not whole
            raise
        self._flush()

    def _watch(self):
        events = GONE
        if self._request is None or (self._sink is not None and not self._paused):
            events |= READ
        if self._out or self._source is not None:
            events |= WRITE
        self._loop.watch(self._fd, events, self._on_event)

    def _wait(self, seconds):
        """Give the client so long from now. A timer that is due earlier is kept, and looks again when it is due."""
        self._overdue_at = time.monotonic() + seconds
        if self._timer is None or self._timer.due > self._overdue_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.after(seconds, self._on_timer)

    def _on_timer(self):
        self._timer = None
        left_s = self._overdue_at - time.monotonic()
        if left_s > 0:
            self._timer = self._loop.after(left_s, self._on_timer)
        else:
            self._on_wait_over()

    def _on_wait_over(self):
        if self._request is None and not self._in:
            self.close()
        elif self._paused:
            self._wait(BODY_WAIT_S)  # it is we who are slow
        elif self._request is None or self._sink is not None:
            self._refuse(Refusal("slow_client"))
        elif self._out:
            self.close()

    def _on_event(self, events):
        if events & READ:
            self._read()
        elif events & GONE:
            self.close()
            return
        if events & WRITE and not self.closed:
            self._flush()
            if self._source is not None and not self.closed:
                self._pull()
            elif self.on_drained is not None and not self._out:
                self.on_drained()

    def _read(self):
        try:
            data = self._loop.read(self._fd)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self._request is None and not self._in:
            self._wait(HEAD_WAIT_S)
        self._in += data
        self._advance()

    def _advance(self):
        if self.closed:
            return
        try:
            if self._request is None and not self._take_head():
                return
            if self._sink is not None and not self._paused:
                self._take_body()
        except Refusal as refusal:
            self._refuse(refusal)
        except OSError as error:
            self._refuse(Refusal("os_error", error.strerror))
        except Exception:
            self._refuse(Refusal("internal"))
            raise

    def _take_head(self):
        end = self._in.find(b"\r\n\r\n")
        if end > HEAD_LIMIT or (end < 0 and len(self._in) > HEAD_LIMIT):
            raise Refusal("head_too_large")
        if end < 0:
            return False
        head = bytes(self._in[:end])
        del self._in[: end + 4]
        request = self._request = parse_head(head)
        self._wait(BODY_WAIT_S)
        sink = self._app.open(request, self)
        self._chunks = Chunks() if request.chunked else None
        self._left = request.body_bytes or 0
        self._sink = sink
        if request.headers.get(b"expect", b"").lower() == b"100-continue":
            self._put(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _take_body(self):
        if self._chunks is not None:
            data, ended = self._chunks.feed(self._in)
        else:
            data = bytes(self._in[: self._left])
            del self._in[: len(data)]
            self._left -= len(data)
            ended = not self._left
        if data:
            self._sink.feed(data)
            self._wait(BODY_WAIT_S)
        if ended:
            sink, self._sink = self._sink, None
            self._watch()
            try:
                sink.end()
            except BaseException:
                sink.abort()
                raise

    def _refuse(self, refusal):
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort()
            self._closing = True
        if self._request is None or self._left or refusal.code in ("malformed", "too_large", "unauthorized"):
            self._closing = True
        if self._answered or self._source is not None:
            self.close()
            return
        self.answer(refusal.status, refusal.body())
