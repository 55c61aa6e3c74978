"""The writing end of the channel: one line per record, chained so that none can be left out, changed or put between.

A record goes to a FIFO that the grader reads from outside the tests' process tree. It is opened for each record: tests
may close descriptors, and count them. Where the FIFO cannot be written (its reader was killed) records go to a file
beside it. What tests may replace (`os.open`, `time.sleep`) is taken before any test is imported.
"""

import os
import sys
import time

try:
    from _sha256 import sha256
except ImportError:
    try:
        from _sha2 import sha256
    except ImportError:
        from hashlib import sha256
try:
    from _json import encode_basestring_ascii as _quoted
except ImportError:
    from json import dumps as _quoted

_open, _write, _close, _getpid, _sleep = os.open, os.write, os.close, os.getpid, time.sleep
_FLAGS = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)
_NONBLOCK, _APPEND = os.O_NONBLOCK, os.O_APPEND
_PATIENCE_S = 10.0
_ARGUMENT_BYTES = 1024
_BARE_SWITCHES = "bBdEiIOqsSuvx"
"""Of Python's own: those without an argument, which may stand before another in one word."""


def _encoded(fields):
    """A flat object of text and whole numbers as JSON in ASCII; text comes back exactly, lone surrogates too."""
    parts = []
    for name, value in fields:
        if value is None:
            text = "null"
        elif isinstance(value, int):
            text = "%d" % value
        else:
            text = _quoted(str.__str__(value))
        parts.append('"%s":%s' % (name, text))
    return "{" + ",".join(parts) + "}"


class Wire(object):
    """This process's stream of records. A forked child says nothing."""

    def __init__(self, here):
        self._pipe = os.path.join(here, "pipe")
        self._spill = os.path.join(here, "spill")
        with open(os.path.join(here, "key")) as stream:
            self._chain = stream.read().strip()
        self._stream = "".join("%02x" % byte for byte in bytearray(os.urandom(8)))
        self._pid = _getpid()
        self._count = 0
        self._spilling = False

    def hello(self):
        """A Python has started below the test command."""
        self.tell(("r", "hello"), ("python", sys.version.split()[0]), ("command", _command_line()))

    @staticmethod
    def is_unittest():
        """Whether this Python was started as unittest's runner or Django's, which load all tests before they begin."""
        words = [word.decode("latin-1") for word in _command_words()[1:]]
        while words and words[0].startswith("-"):
            switch = words.pop(0)[1:].lstrip(_BARE_SWITCHES)
            if switch.startswith("m"):
                return (switch[1:] or "".join(words[:1])) == "unittest"
            if switch.startswith("c"):
                return False
            if switch in ("W", "X"):
                del words[:1]
        return ("/" + "".join(words[:1])).endswith("/tests/runtests.py")

    def blind(self, runner):
        """A runner is here that our reporter does not fit."""
        self.tell(("r", "blind"), ("runner", runner))

    def begin(self, runner, version):
        """A test session begins in this process."""
        self.tests = 0
        self.tell(("r", "begin"), ("runner", runner), ("version", version))

    def test(self, test_id, outcome, phase, name=None):
        """What became of one test. `name`: what the runner calls it in its log, where that is not its id."""
        self.tests += 1
        self.tell(("r", "test"), ("id", test_id), ("outcome", outcome), ("phase", phase), ("name", name))

    def end(self, status):
        """The session is over. `status`: what the runner makes of it, 0 for success; None where it says nothing."""
        self.tell(("r", "end"), ("tests", self.tests), ("status", status))

    def tell(self, *fields):
        """Write one record. Never raises."""
        if _getpid() != self._pid:
            return
        try:
            text = _encoded(fields)
            signed = "%s %d %s" % (self._stream, self._count, text)
            self._chain = sha256((self._chain + " " + signed).encode("ascii")).hexdigest()
            self._count += 1
            self._send(("\ng1 %s %s\n" % (self._chain, signed)).encode("ascii"))
        except Exception:
            pass

    def _send(self, data):
        if not self._spilling:
            try:
                data = self._into(self._pipe, _NONBLOCK, data)
                if not data:
                    return
            except OSError:
                pass
            self._spilling = True
        self._into(self._spill, _APPEND, data)

    @staticmethod
    def _into(path, flags, data):
        """Write; gives what could not be written for a while."""
        fd = _open(path, _FLAGS | flags)
        try:
            waited_s = 0.0
            while data and waited_s < _PATIENCE_S:
                try:
                    data = data[_write(fd, data) :]
                except BlockingIOError:
                    _sleep(0.002)
                    waited_s += 0.002
            return data
        finally:
            _close(fd)


def _command_words():
    try:
        with open("/proc/self/cmdline", "rb") as stream:
            return [word for word in stream.read(_ARGUMENT_BYTES).split(b"\0") if word]
    except OSError:
        return []


def _command_line():
    return " ".join(word.decode("utf-8", "replace").replace(" ", "\\ ") for word in _command_words())
