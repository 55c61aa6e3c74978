"""A persistent bash: one command after the other, its end and status known off-band.

bash reads its script from a socket (`bash -s`): for each command the daemon writes an `eval` of the quoted text and,
behind it, lines that report the status. bash reads a socket byte by byte, so that these lines are short. Laws:

- The text cannot break the frame: it is one quoted word; an unclosed quote, a heredoc, `break` or `return` end there.
- The report carries a number that lies unread in the socket while the command runs; programs can neither see it nor
  open the socket (a socket cannot be opened through /proc). What shares bash's own process can of course end itself.
- `eval` has stdin, stdout and stderr redirected and the private descriptors closed, and undoes that at its end; so each
  command starts with fresh standard descriptors, while other descriptors that it opened stay.
- Behind the text stands a line that saves the status and succeeds, since a failing `eval` would itself end the shell
  under `set -e`, and fire the ERR trap, where the text's last status is exempt (`false && true`). It is left out where
  an unfinished text would swallow it (an open heredoc, a trailing `&&`).
- A shell that ends reports its directory and environment from an EXIT trap of ours, in front of the user's own. It
  finds the socket that the redirections have put aside: the one socket that two of bash's descriptors stand for.
  Where `set -e` ends the shell bash has undone the redirections; the trap puts stderr back for the user's own.
- A command that must end early is aborted inside bash: the trap of ABORT_SIGNAL sets a DEBUG trap under `extdebug`,
  which skips every command and breaks every loop that is left of the text, until the lines behind it remove it. So
  nothing more of the text runs, and the shell is kept with its variables and functions.
- Foreground output is in the pipe before the report: on a report the daemon takes what the pipe holds at that moment.
- Behind the report bash tells its EXIT trap, directory and exported variables, line by line. The daemon does not listen
  to each line: it takes them together, before the next command starts or soon after.
"""

import fcntl
import os
import select
import sys
from _socket import AF_UNIX, SOCK_STREAM, socketpair

from . import procs
from .loop import READ, WRITE
from .protocol import Refusal

CONTROL_FD, STDIN_FD, OUTPUT_FD = 51, 52, 53
PIPE_BYTES = 1 << 18
STDIN_PIECE = 1 << 16
F_SETPIPE_SZ = 1031
FIONREAD = 0x541B
TOLD_WITHIN_S = 0.02
ENV_SAVE_LIMIT = 4 << 20

ABORT_SIGNAL = 62
RECOVER = b"builtin trap - DEBUG"
BYE = b"{ _execd_bye; } 2>/dev/null"
BEFORE_THEIRS = b"""
$_execd_again 2>&1
{ _execd_status "$_execd_saved" && builtin :; } 2>/dev/null
"""
SAVE = b"\n{ _execd_saved=$?; } 2>/dev/null"
STATE = b"builtin printf 'D%s\\0E' \"${PWD-}\"; builtin export -p; builtin printf '\\0'"
# Where a command has removed the function: that there is nothing to tell. A failing line would end a shell under -e.
TELL = b"_execd_tell || builtin printf 'N\\0' >&%d\n_execd_saved=\n" % CONTROL_FD
PRELUDE = b"""exec 51<&0
_execd_status() { builtin return "$1"; }
_execd_tell() { builtin printf T; builtin trap -p EXIT; builtin printf '\\0'; %s; } >&%d
_execd_bye() {
_execd_saved=$? _execd_again=
builtin local a b fd="/proc/$$/fd"
[[ -e $fd/%d ]] && _execd_again=exec
[[ $BASHPID == "$$" ]] && for ((a = 0; a < 256; a = a ? a + 1 : 10)); do
[[ -S $fd/$a ]] && for ((b = a + 1; b < 256; b++)); do
[[ $fd/$a -ef $fd/$b ]] && { { %s; } >&"$a"; builtin break 2; }
done
done
builtin :
}
builtin trap -- '%s' EXIT
builtin shopt -s expand_aliases
builtin trap 'builtin shopt -s extdebug; builtin trap '\\''builtin break 1000 2>/dev/null; \\
[[ $BASH_COMMAND == "%s" ]]'\\'' DEBUG; builtin break 1000 2>/dev/null' %d
""" % (STATE, CONTROL_FD, OUTPUT_FD, STATE, BYE, RECOVER, ABORT_SIGNAL)


def find_bash(env):
    """The path of bash, by the PATH of the commands' own environment. Raises Refusal when there is none."""
    directories = env.get("PATH", "").split(":") + ["/bin", "/usr/bin", "/usr/local/bin"]
    for directory in directories:
        path = directory + "/bash"
        if directory.startswith("/") and os.access(path, os.X_OK):
            return path
    raise Refusal("no_shell", "no bash in PATH, /bin, /usr/bin or /usr/local/bin")


def quoted(text):
    """One bash word that stands for exactly these bytes."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def ends_whole(text):
    """Whether a line behind the text is a command of its own. False in doubt: an open heredoc or operator takes it."""
    last_line = text.rstrip(b" \t\n").rpartition(b"\n")[2]
    for end in (last_line, last_line.partition(b"#")[0].rstrip(b" \t")):
        if end.endswith((b"&&", b"|", b"|&", b"\\", b"()")) or b"function" in end:
            return False
    lines = text.split(b"\n") if b"<<" in text else ()
    last_place = {line.strip(b"\t"): number for number, line in enumerate(lines)}
    for number, line in enumerate(lines):
        for piece in line.replace(b"<<<", b"").split(b"<<")[1:]:
            words = piece.lstrip(b"- \t").split(None, 1)
            name = words[0].strip(b"'\"\\;)&|") if words else b""
            if last_place.get(name, -1) <= number:
                return False
    return True


def _nonce():
    return str(int.from_bytes(os.urandom(8), "big")).encode("ascii")


def _waiting_bytes(fd):
    return int.from_bytes(fcntl.ioctl(fd, FIONREAD, b"\0\0\0\0"), sys.byteorder)


class Shell:
    """One bash process and its descriptors. `owner` gets `on_output(bytes)` and `on_report(status)`."""

    def __init__(self, loop, owner, env, cwd, user):
        self._loop = loop
        self._owner = owner
        self._unread = b""
        self._nonce = None
        self._exit_trap = b"trap -- '" + BYE
        self._state_told = True
        self._pending = None
        self._later = None
        self._unsent = b""
        self._stdin_left = b""
        self._stdin_w = None
        self._output_ended = False
        self.exports = None
        self.directory = None
        self._control, theirs = socketpair(AF_UNIX, SOCK_STREAM)
        self._output_r, output_w = os.pipe()
        self._stdin_r, stdin_w = os.pipe()
        try:
            if user is not None:
                os.fchown(self._stdin_r, user[0], user[1])
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            descriptors = {0: theirs.fileno(), 1: output_w, 2: null, STDIN_FD: self._stdin_r, OUTPUT_FD: output_w}
            try:
                bash = find_bash(env)
                self.pid = procs.spawn(bash, ["bash", "--norc", "--noprofile", "-s"], env, cwd, descriptors, user)
            finally:
                os.close(null)
        except OSError as error:
            self._close_all()
            raise Refusal("cannot_fork" if error.errno == 11 else "no_shell", error.strerror) from error
        except Refusal:
            self._close_all()
            raise
        finally:
            theirs.close()
            os.close(output_w)
            os.close(stdin_w)
        try:
            fcntl.fcntl(self._output_r, F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # the user's share of pipe memory is used up; a small pipe works as well
        os.set_blocking(self._output_r, False)
        self._control.setblocking(False)
        loop.watch(self._output_r, READ, self._on_output)
        loop.watch(self._control.fileno(), READ, self._on_control)
        self._write(PRELUDE)

    def restore(self, exports, directory):
        """Give a new shell the environment and the directory of the one that it replaces."""
        if exports is not None:
            self._write(exports)
        if directory is not None:
            self._write(b"builtin cd -- " + quoted(directory) + b"\n")
        self._write(b"builtin :\n")  # whatever these say, `$?` is 0

    def start(self, command, last_status, stdin, ends_shell=False):
        """Run a command; its end is told to the owner by `on_report`, or by the end of the process. With `ends_shell`
        the shell exits behind it, with its status."""
        self._listen()
        self._discard_output()
        self._nonce = _nonce()
        source = b"/dev/null"
        if stdin:
            self._open_stdin(stdin)
            source = b"/proc/self/fd/%d" % STDIN_FD
        text = command + SAVE if ends_whole(command) else command
        private = b"%d<&- %d<&- %d>&-" % (CONTROL_FD, STDIN_FD, OUTPUT_FD)
        self._pending = (
            (b"_execd_status %d && builtin :\n" % last_status if last_status else b"")
            + b"builtin eval -- %s <%s >&%d 2>&1 %s\n" % (quoted(text), source, OUTPUT_FD, private)
            + (b'builtin exit "${_execd_saved:-$?}"\n' if ends_shell else self._report(b'"${_execd_saved:-$?}"'))
        )
        self._send_pending()

    def _send_pending(self):
        """Send the command when its shell has told the EXIT trap that the one before it has left."""
        if self._pending is None or not self._state_told:
            return
        script, self._pending = self._hook() + self._pending, None
        self._state_told = False
        self._write(script)

    def abort(self, exit_code):
        """Skip what is left of the command and report its end with `exit_code`. Its processes are not touched."""
        self._pending = None
        procs.send_signal(self.pid, ABORT_SIGNAL)
        self._nonce = _nonce()
        self._write(RECOVER + b"\nbuiltin shopt -u extdebug\n" + self._report(b"%d" % exit_code))

    def _report(self, status):
        """Script lines that report a status, then the state.

        The first is a simple command: behind an unfinished text bash takes a reserved word for an ordinary one.
        """
        return b"builtin printf 'S%%s %%s\\0' %s %s >&%d\n%s" % (status, self._nonce, CONTROL_FD, TELL)

    def _hook(self):
        """Script lines that put our EXIT trap in front of one that the last command has set."""
        head = b"trap -- '"
        told, self._exit_trap = self._exit_trap, head + BYE
        if told.startswith(head + BYE):
            return b""
        if not told.startswith(head):  # removed
            return b"builtin trap -- '%s' EXIT\n" % BYE
        return b"builtin %s%s%s%s\n" % (head, BYE, BEFORE_THEIRS, told[len(head) :].rstrip(b"\n"))

    def settle(self):
        """Between commands: wait, a fifth of a second at most, for the state that bash tells behind each status."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        for _ in range(20):
            if self._state_told or self._nonce is not None:
                return
            if poll.poll(10):
                self._listen()

    def look(self):
        """Note in which directory bash is now: one that is killed does not tell it any more."""
        try:
            here = os.readlink(b"/proc/%d/cwd" % self.pid)
            if self.directory is None or not os.path.samestat(os.stat(self.directory), os.stat(here)):
                self.directory = here
        except OSError:
            pass  # it is gone, or not ours to look at, or its directory was deleted

    def _listen(self):
        """Take what bash has told, and listen to it again."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._control is not None:
            self._loop.watch(self._control.fileno(), READ | WRITE if self._unsent else READ, self._on_control)
            self._on_control(READ)

    def drain(self):
        """Take what the pipe holds at this moment."""
        left = _waiting_bytes(self._output_r)
        while left > 0:
            try:
                data = self._loop.read(self._output_r)
            except OSError:
                return
            if not data:
                return
            left -= len(data)
            self._owner.on_output(data)

    def process_ended(self):
        """The process is reaped: read what it still said, then only go on draining for its background children."""
        if self._control is not None:
            self._on_control(READ)
        self.drain()
        self._close_control()
        self._close_stdin()
        os.close(self._stdin_r)
        self._owner = _Nobody
        self._control = None
        if self._output_ended:
            os.close(self._output_r)

    def _on_output(self, _events):
        try:
            data = self._loop.read(self._output_r)
        except BlockingIOError:
            return
        if data:
            self._owner.on_output(data)
            return
        self._loop.forget(self._output_r)  # every writer is gone; the shell's end is told by its process
        self._output_ended = True
        if self._owner is _Nobody:
            os.close(self._output_r)

    def _on_control(self, events):
        if events & WRITE and self._unsent:
            unsent, self._unsent = self._unsent, b""
            self._write(unsent)
        while self._control is not None:
            try:
                data = self._control.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.forget(self._control.fileno())
                return
            self._take(data)

    def _take(self, data):
        self._unread += data
        while b"\0" in self._unread:
            message, self._unread = self._unread.split(b"\0", 1)
            kind, body = message[:1], message[1:]
            if kind == b"S":
                self._take_report(body)
            elif kind == b"T":
                self._exit_trap = body
            elif kind == b"D":
                self.directory = body
            elif kind in (b"E", b"N"):
                self.exports = body if kind == b"E" else self.exports
                self._state_told = True
                self._send_pending()
        if len(self._unread) > ENV_SAVE_LIMIT:
            self._unread = b""

    def _take_report(self, body):
        status, _, nonce = body.partition(b" ")
        if nonce != self._nonce or not status.isdigit():
            return
        self._nonce = None
        self.drain()
        self._close_stdin()
        if not self._unsent:
            self._loop.watch(self._control.fileno(), 0, self._on_control)
            self._later = self._loop.after(TOLD_WITHIN_S, self._listen)
        self._owner.on_report(int(status))

    def _write(self, data):
        if self._unsent:
            self._unsent += data
            return
        sent = 0
        try:
            sent = self._control.send(data)
        except BlockingIOError:
            pass
        except OSError:
            return  # the shell is ending; its process tells
        self._unsent = data[sent:]
        self._loop.watch(self._control.fileno(), READ | WRITE if self._unsent else READ, self._on_control)

    def _open_stdin(self, data):
        self._discard_stdin()
        try:
            self._stdin_w = os.open("/proc/self/fd/%d" % self._stdin_r, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Refusal("os_error", "stdin needs /proc: %s" % error.strerror) from error
        self._stdin_left = data
        self._on_stdin(WRITE)

    def _on_stdin(self, _events):
        try:
            while self._stdin_left:
                sent = os.write(self._stdin_w, self._stdin_left[:STDIN_PIECE])
                self._stdin_left = self._stdin_left[sent:]
        except BlockingIOError:
            self._loop.watch(self._stdin_w, WRITE, self._on_stdin)
            return
        except OSError:
            pass
        self._close_stdin()

    def _close_stdin(self):
        if self._stdin_w is not None:
            self._loop.forget(self._stdin_w)
            os.close(self._stdin_w)
            self._stdin_w = None
            self._stdin_left = b""

    def _discard_stdin(self):
        """Throw away what an earlier command left unread."""
        left = _waiting_bytes(self._stdin_r)
        while left > 0:
            left -= len(os.read(self._stdin_r, left))

    def _discard_output(self):
        """Throw away what background children wrote while no command ran."""
        owner, self._owner = self._owner, _Nobody
        self.drain()
        self._owner = owner

    def _close_control(self):
        if self._control is not None:
            self._loop.forget(self._control.fileno())
            self._control.close()

    def _close_all(self):
        self._control.close()
        os.close(self._output_r)
        os.close(self._stdin_r)


class _Nobody:
    """Takes the output of background children that belongs to no command."""

    @staticmethod
    def on_output(data):
        """Drop it."""

    @staticmethod
    def on_report(status):
        """A report that nobody waits for."""
