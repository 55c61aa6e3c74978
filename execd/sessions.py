"""Sessions: a named shell, the commands that wait for it, its time-outs, and its replacement when it ends."""

import _signal
import time

from . import procs
from .protocol import Refusal
from .shell import ABORT_SIGNAL, Shell

GRACE_S = 0.5
BUSY_S = 4.0
SWEEP_S = 0.02
ASK_S = 0.001
LOOK_S = 0.1
GONE_S = 5.0
MAX_WAITING = 64


class Session:
    """Runs one exec at a time in its shell. `host` gives the loop, the base environment and takes ended records."""

    def __init__(self, name, host):
        self.name = name
        self._host = host
        self._shell = None
        self._waiting = []
        self._current = None
        self._deadline = None
        self._old_processes = frozenset()
        self._last_status = 0
        self._exports = None
        self._directory = None
        self._killing = False
        self._dying = False
        self._resets = 0
        self.orphans = set()

    @property
    def shell_pid(self):
        """The pid of the shell, or None while there is none."""
        return None if self._shell is None else self._shell.pid

    @property
    def blank(self):
        """Whether there is nothing to keep: a session that was reset and runs nothing."""
        busy = self._current is not None or self._waiting or self._resets
        return self._shell is None and self._directory is None and not busy

    def start_like(self, other):
        """Begin with the directory and the exported variables that another session has now."""
        if other._shell is not None:
            other._shell.settle()
        self._exports, self._directory = other.exports_and_directory()

    def exports_and_directory(self):
        """As the last command that ended left them; None where none has."""
        shell = self._shell
        exports = self._exports if shell is None or shell.exports is None else shell.exports
        directory = self._directory if shell is None or shell.directory is None else shell.directory
        return exports, directory

    def processes(self):
        """What a signal to the session reaches: the processes below its shell or, without any, the shell."""
        found = self._orphan_trees()
        if self._shell is not None:
            found |= procs.descendants(self._shell.pid) or {procs.identity(self._shell.pid)} - {None}
        return found

    def end_shell(self):
        """End the shell if it is still there, and nothing else."""
        if self._shell is not None:
            procs.send_signal(self._shell.pid, _signal.SIGKILL)

    def prepare(self):
        """Start the shell ahead of the first command."""
        if self._shell is None:
            shell = Shell(self._host.loop, self, self._host.env, self._host.workdir, self._host.user)
            shell.restore(self._exports, self._directory)
            self._shell = shell

    def submit(self, record):
        """Run an exec when those before it have ended."""
        if len(self._waiting) >= MAX_WAITING:
            raise Refusal("too_many")
        self._waiting.append(record)
        self._next()

    def cancel(self, record):
        """Kill a running exec's tree, or take a waiting one out of the queue."""
        record.cancelled = True
        if record is self._current:
            self._kill_command()
        elif record in self._waiting:
            self._waiting.remove(record)
            record.fail(Refusal("cancelled"))
            self._host.exec_ended(record)

    def _next(self):
        while self._current is None and self._waiting and not self._dying and not self._resets:
            record = self._waiting.pop(0)
            try:
                self.prepare()
                spared = procs.descendants(self._shell.pid) if procs.has_children(self._shell.pid) else frozenset()
                self._shell.start(record.command, self._last_status, record.stdin, record.ends_shell)
            except Refusal as refusal:
                record.fail(refusal)
                self._host.exec_ended(record)
                continue
            self._current = record
            self._old_processes = spared
            record.started_at = record.looked_at = time.monotonic()
            self._deadline = self._host.loop.after(record.timeout_s, self._on_deadline)

    def on_output(self, data):
        """The shell's commands wrote something."""
        if self._current is not None:
            self._current.add_output(data)
            if self._current.looked_at + LOOK_S < time.monotonic():
                self._current.looked_at = time.monotonic()
                self._shell.look()

    def on_report(self, status):
        """The shell reported the end of the command. One that was aborted ends when its last process has."""
        if self._killing:
            self._kill_rest(self._shell, status, time.monotonic() + GRACE_S)
            return
        self._last_status = status
        self._finish(status, False)

    def _kill_rest(self, shell, status, until):
        if shell is not self._shell or self._current is None:
            return
        rest = self._command_processes()
        if rest and time.monotonic() < until + GRACE_S:
            if time.monotonic() > until:
                status = 128 + _signal.SIGKILL
                procs.kill_trees(self._command_processes)
            self._host.loop.after(SWEEP_S, lambda: self._kill_rest(shell, status, until))
            return
        procs.kill_trees(self._command_processes)  # none was seen; this makes sure
        shell.drain()
        self._last_status = status
        self._finish(status, False)

    def on_process_ended(self, wait_status):
        """The shell's process was reaped: that is the result of the command that ran."""
        shell = self._shell
        shell.process_ended()
        self._exports, self._directory = (None, None) if self._dying else self.exports_and_directory()
        self._shell = None
        self._last_status = 0
        self._dying = False
        if self._current is not None:
            code = procs.exit_code(wait_status)
            self._finish(128 + _signal.SIGTERM if code == 128 + ABORT_SIGNAL else code, True)
        self._next()

    def _finish(self, exit_code, restarted):
        record, self._current = self._current, None
        if record is None:
            return
        self._deadline.cancel()
        self._killing = False
        if self._host.ending:
            record.fail(Refusal("shutting_down"))
        else:
            record.finish(exit_code, restarted and not record.ends_shell, time.monotonic() - record.started_at)
        self._host.exec_ended(record)
        self._next()

    def _on_deadline(self):
        if self._current is not None:
            self._current.timed_out = True
            self._kill_command()

    def _kill_command(self):
        """End the command: what is left of its text is skipped, its processes get TERM, after a grace KILL."""
        if self._killing or self._shell is None:
            return
        self._killing = True
        self._shell.abort(128 + _signal.SIGTERM)
        procs.signal_all(self._command_processes(), _signal.SIGTERM)
        self._host.loop.after(SWEEP_S, lambda record=self._current: self._sweep(record, time.monotonic() + GRACE_S))

    def _command_processes(self):
        """Everything below the shell that was not there before the command."""
        return procs.descendants(self._shell.pid, self._old_processes)

    def _sweep(self, record, until):
        """Until the aborted command's end is reported: at the end of the grace its processes are killed, later the
        shell as well (a builtin that waits cannot be aborted); one that would go on if it or its dying processes got a
        processor has more time."""
        if record is not self._current or self._shell is None:
            return
        now = time.monotonic()
        if now > until + (BUSY_S if self._still_busy() else GRACE_S):
            self.kill_tree(self._old_processes)
            return
        if now > until:
            procs.kill_trees(self._command_processes)
        self._host.loop.after(SWEEP_S, lambda: self._sweep(record, until))

    def _still_busy(self):
        return procs.is_running(self._shell.pid) or bool(self._command_processes())

    def kill_tree(self, spared=frozenset()):
        """KILL the shell and everything below it except `spared`. Returns {(pid, start tick)} of what was killed."""
        if self._shell is None:
            return set()
        self._shell.look()
        pid = self._shell.pid
        shell = {procs.identity(pid)} - {None}
        return procs.kill_trees(lambda: procs.descendants(pid, spared) | shell)

    def owns(self, pid):
        """Whether a process that has just ended was the shell or an orphan of a shell that ended before."""
        return pid == self.shell_pid or any(pid == orphan for orphan, _start in self.orphans)

    def adopt(self, orphans):
        """Remember processes that an ended shell, or an orphan of one, has left: a reset kills them as well."""
        self.orphans = {orphan for orphan in self.orphans if procs.identity(orphan[0]) == orphan} | orphans

    def _orphan_trees(self):
        found = {orphan for orphan in self.orphans if procs.identity(orphan[0]) == orphan}
        for pid, _start in tuple(found):
            found |= procs.descendants(pid)
        return found

    def reset(self, on_gone):
        """Kill everything of the session; the next command gets a new shell with the base environment.

        `on_gone()` is called, and the next command begins, when nothing that was killed has its pid any more. One that
        hangs in the kernel is waited for `GONE_S` seconds, a shell that does as long as it takes.
        """
        for record in self._waiting:
            record.fail(Refusal("cancelled"))
            self._host.exec_ended(record)
        self._waiting = []
        if self._current is not None:
            self._current.cancelled = True
        self._exports = self._directory = None
        self._dying = self._shell is not None
        killed = self.kill_tree() | procs.kill_trees(self._orphan_trees)
        self._resets += 1
        self._ask_if_gone(killed, time.monotonic() + GONE_S, ASK_S, on_gone)

    def _ask_if_gone(self, killed, until, pause_s, on_gone):
        killed = procs.still_there(killed)
        if (killed or self._dying) and time.monotonic() < until:
            later = min(2 * pause_s, SWEEP_S)
            self._host.loop.after(pause_s, lambda: self._ask_if_gone(killed, until, later, on_gone))
            return
        self._resets -= 1
        on_gone()
        self._next()
