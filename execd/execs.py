"""Execs: what a command wrote, how it ended, who follows it, and the record that answers a repeat of its id."""

from .procs import give_memory_back
from .protocol import FRAME_BEAT, FRAME_ERROR, FRAME_OUTPUT, FRAME_RESULT, Refusal, encode, frame, frame_head

BEAT_S = 5.0
STREAM_PIECE = 1 << 16
ENDED_PIECE = 1 << 20
CLIENT_BACKLOG = 1 << 18
KEPT_RESULTS = 2000
KEPT_OUTPUT = 4 << 20
KEPT_IDS = 100_000
LARGE_OUTPUT = 1 << 20


class Output:
    """The head and the tail of a command's output, and how much there was in all. Memory is bounded by `limit`."""

    def __init__(self, limit):
        self.limit = limit
        self.head_limit = limit - limit // 2
        self.tail_limit = limit // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data):
        """Take bytes in the order in which they were written."""
        self.total += len(data)
        room = self.head_limit - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if data:
            self.tail += data
            if len(self.tail) > self.tail_limit:
                del self.tail[: len(self.tail) - self.tail_limit]

    def forget(self):
        """Keep nothing but the count."""
        self.head, self.tail = bytearray(), bytearray()

    @property
    def tail_offset(self):
        """Where in the whole output the tail begins."""
        return self.total - len(self.tail)

    def __len__(self):
        return len(self.head) + len(self.tail)

    def piece(self, offset, size):
        """(offset, bytes) of the first kept bytes at or after `offset`, at most `size`; empty bytes when none."""
        offset, data = self._view(offset, size)
        return offset, bytes(data)

    def views(self, offset, size):
        """As pieces, all from `offset` on and none copied: for an output that will not grow any more."""
        while True:
            offset, data = self._view(offset, size)
            if not data:
                return
            yield offset, data
            offset += len(data)

    def _view(self, offset, size):
        if offset < len(self.head):
            return offset, memoryview(self.head)[offset : offset + size]
        offset = max(offset, self.tail_offset)
        start = offset - self.tail_offset
        return offset, memoryview(self.tail)[start : start + size]


class Exec:
    """One command: what was asked, what it wrote so far, and its result once it ended."""

    def __init__(self, exec_id, session, command, stdin, timeout_s, limit):  # noqa: PLR0917
        self.id = exec_id
        self.session = session
        self.command = command
        self.stdin = stdin
        self.timeout_s = timeout_s
        self.output = Output(limit)
        self.started_at = None
        self.looked_at = None
        self.timed_out = False
        self.cancelled = False
        self.result = None
        self.failure = None
        self.followers = []
        self.linger = None
        self.ends_shell = False

    @property
    def ended(self):
        """Whether there is a result or a failure."""
        return self.result is not None or self.failure is not None

    def add_output(self, data):
        """Take what the command wrote."""
        self.output.add(data)
        for follower in tuple(self.followers):
            follower.more()

    def finish(self, exit_code, shell_restarted, duration_s):
        """Record the result and answer everyone who follows."""
        self.result = {
            "exit_code": exit_code,
            "timed_out": self.timed_out,
            "cancelled": self.cancelled,
            "shell_restarted": shell_restarted,
            "duration_s": duration_s,
            "output_bytes": self.output.total,
            "truncated": self.output.total > len(self.output),
        }
        self._release()

    def fail(self, refusal):
        """Record that the command could not be started or that its end cannot be known."""
        self.failure = refusal
        self._release()

    def _release(self):
        self.stdin = b""
        if self.linger is not None:
            self.linger.cancel()
        followers, self.followers = self.followers, []
        for follower in followers:
            follower.ended()


class Follower:
    """Answers one connection with an exec's frames: at its end, or (streaming) as they come."""

    def __init__(self, loop, connection, record, streaming, offset, on_gone):  # noqa: PLR0917
        self._loop = loop
        self._connection = connection
        self._record = record
        self._streaming = streaming
        self._offset = offset
        self._on_gone = on_gone
        self._chunked = False
        self._beat = None
        connection.on_drained = self.more
        connection.on_gone = self.gone
        if record.ended:
            self.ended()
            return
        record.followers.append(self)
        self._beat = loop.after(BEAT_S, self._send_beat)
        self.more()

    def more(self):
        """Send what is there, as far as the client keeps up."""
        if not self._streaming:
            return
        while self._connection is not None and self._connection.backlog < CLIENT_BACKLOG:  # a send may find it gone
            offset, data = self._record.output.piece(self._offset, STREAM_PIECE)
            if not data:
                return
            self._offset = offset + len(data)
            self._send(frame(FRAME_OUTPUT, offset.to_bytes(8, "big") + data))

    def ended(self):
        """Send the rest and the result."""
        connection, self._connection = self._connection, None
        if self._beat is not None:
            self._beat.cancel()
        record = self._record
        if record.failure is not None and not self._chunked:
            connection.answer(record.failure.status, record.failure.body())
            return
        rest = []
        for offset, data in record.output.views(self._offset, ENDED_PIECE):
            rest += [frame_head(FRAME_OUTPUT, 8 + len(data)) + offset.to_bytes(8, "big"), data]
        if record.failure is not None:
            rest.append(frame(FRAME_ERROR, record.failure.body()))
        else:
            rest.append(frame(FRAME_RESULT, encode(record.result)))
        if self._chunked:
            connection.send_chunk(*rest)
            connection.end_chunks()
        else:
            connection.answer(200, *rest, kind="application/octet-stream")

    def gone(self):
        """The connection is gone; the command goes on until nobody has come back for it for a while."""
        self._connection = None
        if self._beat is not None:
            self._beat.cancel()
        if self in self._record.followers:
            self._record.followers.remove(self)
        if not self._record.ended and not self._record.followers:
            self._on_gone(self._record)

    def _send(self, data):
        if not self._chunked:
            self._chunked = True
            self._connection.start_chunks("application/octet-stream")
        self._connection.send_chunk(data)

    def _send_beat(self):
        if self._connection is not None:
            self._send(frame(FRAME_BEAT))
            self._beat = self._loop.after(BEAT_S, self._send_beat)


class Records:
    """Every exec by id. An id is not run twice: an old record may be dropped, its id is remembered (the last 100,000).

    Outputs are kept to 4 MiB in all. One that is larger by itself is kept until the next exec ends, or `drop_large`.
    """

    def __init__(self):
        self._records = {}
        self._ended = []
        self._dropped = {}
        self._kept_bytes = 0
        self.count = 0

    def find(self, exec_id):
        """The record of an id, or None when the id is new. Raises Refusal when it was dropped."""
        if exec_id in self._dropped:
            raise Refusal("result_dropped")
        return self._records.get(exec_id)

    def add(self, record):
        """Remember a new exec."""
        self._records[record.id] = record
        self.count += 1

    def ended(self, record):
        """Keep the record of an ended exec within the bounds; the oldest ones go."""
        self._ended.append(record)
        self._kept_bytes += len(record.output)
        while len(self._ended) > 1 and (len(self._ended) > KEPT_RESULTS or self._kept_bytes > KEPT_OUTPUT):
            self._drop_oldest()

    def drop_large(self, exec_id):
        """Drop this exec's record, if it is the one that is kept beyond the bounds because it came last."""
        if self._kept_bytes > KEPT_OUTPUT and self._ended[0].id == exec_id:
            self._drop_oldest()

    def _drop_oldest(self):
        oldest = self._ended.pop(0)
        size = len(oldest.output)
        self._kept_bytes -= size
        del self._records[oldest.id]
        self._dropped[oldest.id] = None
        if len(self._dropped) > KEPT_IDS:
            del self._dropped[next(iter(self._dropped))]
        if size > LARGE_OUTPUT:
            oldest.output.forget()
            give_memory_back()

    def running(self):
        """The execs that have not ended."""
        return [record for record in self._records.values() if not record.ended]
