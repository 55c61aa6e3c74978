"""One thread, one epoll: descriptors and timers call back. No thread is ever made, so a fork bomb cannot stop it."""

import heapq
import os
import select
import time

READ_BYTES = 1 << 18
READ = select.EPOLLIN
WRITE = select.EPOLLOUT
GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class Timer:
    """A callback that is due. `cancel()` makes it void."""

    __slots__ = ("callback", "due")

    def __init__(self, due, callback):
        self.due = due
        self.callback = callback

    def cancel(self):
        """Make the timer void; it may be called at any time, more than once."""
        self.callback = None


class Loop:
    """Calls back for ready descriptors and due timers until `stop()`."""

    def __init__(self, on_error):
        self._epoll = select.epoll()  # close-on-exec by default
        self._callbacks = {}
        self._round = 0
        self._timers = []
        self._live_timers = 0
        self._sequence = 0
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._running = True
        self._on_error = on_error

    def watch(self, fd, events, callback):
        """Call `callback(events)` whenever one of `events` is there. A second call changes events and callback."""
        known = self._callbacks.get(fd)
        since = self._round if known is None else known[2]
        if known is None:
            self._epoll.register(fd, events)
        elif known[0] != events:
            self._epoll.modify(fd, events)
        self._callbacks[fd] = events, callback, since

    def forget(self, fd):
        """Watch `fd` no more. Must be called before it is closed; unknown descriptors are ignored."""
        if self._callbacks.pop(fd, None) is not None:
            try:
                self._epoll.unregister(fd)
            except OSError:
                pass

    def read(self, fd):
        """What waits on `fd`, 256 KiB at most: a view that is good until the next read; empty at the end of file.

        Raises BlockingIOError when nothing waits. A fresh object for each read would cost several times the copying.
        """
        return self.buffer[: os.readv(fd, (self.buffer,))]

    def after(self, delay_s, callback):
        """Call `callback()` once, in `delay_s` seconds."""
        if len(self._timers) > 2 * self._live_timers + 64:  # most are void, and may be due in days
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._live_timers = len(self._timers)
        timer = Timer(time.monotonic() + delay_s, callback)
        self._sequence += 1
        heapq.heappush(self._timers, (timer.due, self._sequence, timer))
        return timer

    def stop(self):
        """End `run` after the present round."""
        self._running = False

    def run(self):
        """Serve until `stop()`. An exception in a callback goes to `on_error` and nothing else happens.

        A descriptor that is watched since this round may have the number of one that was closed in it: the round's
        events are the closed one's. Its own come with the next round.
        """
        while self._running:
            ready = self._epoll.poll(self._wait_s(), 64)
            self._round += 1
            for fd, events in ready:
                known = self._callbacks.get(fd)
                if known is not None and known[2] != self._round:
                    self._call(known[1], events)
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                callback = heapq.heappop(self._timers)[2].callback
                if callback is not None:
                    self._call(callback)

    def _wait_s(self):
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return -1
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _call(self, callback, *arguments):
        try:
            callback(*arguments)
        except Exception as error:
            self._on_error(error)
