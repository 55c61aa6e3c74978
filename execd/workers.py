"""Work that may block (a tree, a connection attempt) runs in a forked child, so the loop never waits for it."""

import os

from . import procs
from .loop import READ
from .protocol import Refusal

COLLECT_LIMIT = 4 << 20


class Worker:
    """A child that runs `work(in_fd, out_fd)`. `in_w` and `out_r` are our ends; `in_w` is None without `feeds`."""

    def __init__(self, daemon, work, feeds=False):
        out_r, out_w = os.pipe()
        in_r, in_w = os.pipe() if feeds else (None, None)
        try:
            pid = os.fork()
        except OSError as error:
            for fd in (out_r, out_w, in_r, in_w):
                if fd is not None:
                    os.close(fd)
            raise Refusal("cannot_fork", error.strerror) from error
        if pid == 0:
            _run(work, in_r, out_w, [fd for fd in (out_r, in_w) if fd is not None])
        os.close(out_w)
        if in_r is not None:
            os.close(in_r)
            os.set_blocking(in_w, False)
        os.set_blocking(out_r, False)
        self.pid, self.out_r, self.in_w = pid, out_r, in_w
        daemon.adopt(pid, self._on_reaped)
        self._alive = True

    def _on_reaped(self, _status):
        self._alive = False

    def kill(self):
        """End the child if it still runs."""
        if self._alive:
            procs.send_signal(self.pid, 9)


def _run(work, in_fd, out_fd, others):
    """In the child: run the work and leave; nothing of the parent's is touched."""
    import _signal

    status = 1
    try:
        _signal.set_wakeup_fd(-1)
        for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGCHLD):
            _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
        for fd in others:
            os.close(fd)
        work(in_fd, out_fd)
        status = 0
    finally:
        os._exit(status)


def collect(daemon, work, done, timeout_s):
    """Run `work(None, out_fd)` in a child and call `done(bytes)` with what it wrote, or `done(None)` on a failure."""
    collect_from(daemon, Worker(daemon, work), done, timeout_s)


def collect_from(daemon, worker, done, timeout_s):
    """As `collect`, from a worker that runs already."""
    data = bytearray()
    overdue = daemon.loop.after(timeout_s, worker.kill)

    def on_readable(_events):
        piece = os.read(worker.out_r, 1 << 16)
        data.extend(piece)
        if piece and len(data) < COLLECT_LIMIT:
            return
        daemon.loop.forget(worker.out_r)
        os.close(worker.out_r)
        overdue.cancel()
        done(bytes(data) if data else None)

    daemon.loop.watch(worker.out_r, READ, on_readable)
