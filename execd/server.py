"""The daemon: listens, knows the endpoints, owns the sessions, reaps, and ends. docs/execd.md is the contract."""

import _signal
import _socket
import os
import sys
import time

from . import procs
from .execs import KEPT_OUTPUT, Exec, Follower, Records
from .http import Connection
from .loop import READ, Loop
from .protocol import Refusal, decode, encode, sha256, token_matches
from .sessions import Session

MAX_CONNECTIONS = 256
MAX_SESSIONS = 256
COMMAND_LIMIT = 64 << 20
OUTPUT_LIMIT = 64 << 20
LINGER_S = 30.0
LARGE_KEPT_S = 60.0
MAX_TIME_S = 30 * 86400.0
END_GRACE_S = 0.05


class Body:
    """A sink that keeps a bounded body and hands it to `done`."""

    def __init__(self, request, limit, done):
        if request.body_bytes is not None and request.body_bytes > limit:
            raise Refusal("too_large", "the limit is %d bytes" % limit)
        self._limit = limit
        self._done = done
        self._data = bytearray()

    def feed(self, data):
        """Take a piece."""
        if len(self._data) + len(data) > self._limit:
            raise Refusal("too_large", "the limit is %d bytes" % self._limit)
        self._data += data

    def end(self):
        """The body is whole."""
        self._done(bytes(self._data))

    def abort(self):
        """The client is gone or was refused."""


class Daemon:
    """Everything that lives as long as the sandbox. `config` is the parsed start document."""

    def __init__(self, listener, config):
        self.loop = Loop(self._on_error)
        self.env = {str(k): str(v) for k, v in config.get("env", {}).items()}
        self.workdir = config.get("workdir") or "/"
        self.user = _user_of(config.get("user"))
        self.boot_id = "".join("%02x" % byte for byte in os.urandom(16))
        self.protection = procs.protect_self()
        self._token_sha256 = config["token_sha256"]
        self._started_at = time.monotonic()
        self._listener = listener
        self._connections = set()
        self._sessions = {}
        self._workers = {}
        self._records = Records()
        self._all_jobs = None
        self._edits = None
        self._failures = 0
        self._ending = False
        listener.setblocking(False)
        self.loop.watch(listener.fileno(), READ, self._on_client)
        self._watch_signals()
        self.loop.after(float(config.get("lifetime_s", 4 * 3600)), self.end)

    def run(self):
        """Serve until the end."""
        self.loop.run()

    def _watch_signals(self):
        """Children's ends wake the loop; SIGTERM and its like end the daemon. PID 1 heeds them only from outside its
        pid namespace (as a runtime sends them): `pkill python` inside must not end the sandbox."""
        wake_r, wake_w = os.pipe()
        os.set_blocking(wake_r, False)
        os.set_blocking(wake_w, False)
        self.loop.watch(wake_r, READ, lambda _events: self._on_signal(os.read(wake_r, 512)))
        endings = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)
        outside = procs.outside_signals(endings) if os.getpid() == 1 else None
        if outside is not None:
            self.loop.watch(outside, READ, lambda _events: 0 in procs.senders(outside) and self.end())
            endings = ()
        for number in (_signal.SIGCHLD,) + endings:
            _signal.signal(number, lambda _number, _frame: None)
        _signal.set_wakeup_fd(wake_w)

    def open(self, request, connection):
        """The sink of a request's body. Raises Refusal."""
        trusted = self._trusts(request)
        connection.trusted = trusted
        if request.path == "/health" and request.method == "GET":
            answer = self._health() if trusted else {"ok": True}
            return Body(request, 0, lambda _body: connection.answer(200, encode(answer)))
        if not trusted:
            raise Refusal("unauthorized")
        if self._ending:
            raise Refusal("shutting_down")
        boot = request.query.get("boot")
        if boot is not None and boot.decode("latin-1") != self.boot_id:
            raise Refusal("wrong_boot")
        methods = _ROUTES.get(request.path)
        if methods is None:
            raise Refusal("no_route")
        if request.method not in methods:
            raise Refusal("wrong_method")
        return methods[request.method](self, request, connection)

    def closed(self, connection):
        """A connection is closed."""
        self._connections.discard(connection)

    @property
    def ending(self):
        """Whether the daemon takes everything along now: how a command ends then is no result of its own."""
        return self._ending

    def exec_ended(self, record):
        """A session has finished an exec."""
        self._records.ended(record)
        if len(record.output) > KEPT_OUTPUT:
            exec_id = record.id  # the record itself would be kept by its timer
            self.loop.after(LARGE_KEPT_S, lambda: self._records.drop_large(exec_id))

    def adopt(self, pid, on_end):
        """Call `on_end(wait status)` when a worker process of ours is reaped."""
        self._workers[pid] = on_end

    def end(self):
        """Take every process below along and stop serving."""
        if self._ending:
            return
        self._ending = True
        everyone = procs.descendants(os.getpid())
        procs.signal_all(everyone, _signal.SIGTERM)
        procs.signal_all(everyone, _signal.SIGHUP)
        self.loop.after(END_GRACE_S, self._end_now)

    def _end_now(self):
        for _ in range(20):
            everyone = procs.descendants(os.getpid())
            if not everyone:
                break
            procs.signal_all(everyone, _signal.SIGKILL)
        self.loop.stop()

    def _trusts(self, request):
        scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and token_matches(token.strip(), self._token_sha256)

    def _health(self):
        return {
            "ok": True,
            "boot_id": self.boot_id,
            "execs": self._records.count,
            "running": len(self._records.running()),
            "sessions": sorted(self._sessions),
            "python_version": "%d.%d.%d" % sys.version_info[:3],
            "uptime_s": time.monotonic() - self._started_at,
            "connections": len(self._connections),
            "failures": self._failures,
            "protection": self.protection,
        }

    def _exec(self, request, connection):
        return Body(request, COMMAND_LIMIT, lambda body: self._start(request, connection, body))

    def _start(self, request, connection, body):
        exec_id = request.text("id")
        streaming = request.number("stream", 0, 0, 1) == 1
        offset = request.number("offset", 0, 0, 1 << 62)
        digest = sha256(body).digest()
        record = self._records.find(exec_id)
        if record is None:
            record = self._new_exec(exec_id, request, body)
            record.digest = digest
            self._records.add(record)
            try:
                self._session(record.session).submit(record)
            except Refusal as refusal:
                record.fail(refusal)
                self._records.ended(record)
        elif record.digest != digest:
            raise Refusal("id_reused")
        if record.linger is not None:
            record.linger.cancel()
        Follower(self.loop, connection, record, streaming, offset, self._on_nobody_follows)

    def _job(self, request, connection):
        from . import jobs

        if request.method == "GET":
            return Body(request, 0, lambda _body: jobs.Poll(self, request, connection, self._jobs().find(request)))

        def start(body):
            record = self._new_exec(request.text("id"), request, body, timeout_s=MAX_TIME_S)
            record.digest = sha256(body).digest()
            record.ends_shell = True
            job = self._jobs().start(record, self._sessions.get(request.text("session", "main")))
            connection.answer(200, encode(job.state()))

        return Body(request, COMMAND_LIMIT, start)

    def _job_signal(self, request, connection):
        def done(_body):
            from . import jobs

            number = request.number("signal", None, 1, 64)
            connection.answer(200, encode({"signalled": jobs.signal(self._jobs().find(request), number)}))

        return Body(request, 0, done)

    def _job_list(self, request, connection):
        return Body(request, 0, lambda _body: connection.answer(200, encode({"jobs": self._jobs().states()})))

    def _jobs(self):
        if self._all_jobs is None:
            from .jobs import Jobs

            self._all_jobs = Jobs(self)
        return self._all_jobs

    def _every_session(self):
        jobs = () if self._all_jobs is None else self._all_jobs.sessions()
        return list(self._sessions.values()) + list(jobs)

    def _edit(self, request, connection):
        from . import edit

        if request.method == "GET":
            return Body(request, 0, lambda _body: edit.view(self, request, connection))
        if self._edits is None:
            self._edits = edit.Edits(self)
        return Body(request, edit.TEXT_LIMIT, lambda body: self._edits.apply(request, connection, body))

    def _new_exec(self, exec_id, request, body, timeout_s=None):
        command_bytes = request.number("command_bytes", len(body), 0, len(body))
        command = body[:command_bytes]
        if b"\0" in command:
            raise Refusal("bad_argument", "a bash command cannot hold a NUL byte")
        return Exec(
            exec_id,
            request.text("session", "main"),
            command,
            body[command_bytes:],
            request.number("timeout_s", timeout_s, 0.0, MAX_TIME_S, float),
            request.number("max_output_bytes", 1 << 20, 0, OUTPUT_LIMIT),
        )

    def _session(self, name):
        session = self._sessions.get(name)
        if session is None:
            if len(self._sessions) >= MAX_SESSIONS:
                raise Refusal("too_many")
            session = self._sessions[name] = Session(name, self)
        return session

    def _on_nobody_follows(self, record):
        session = self._sessions[record.session]
        record.linger = self.loop.after(LINGER_S, lambda: session.cancel(record))

    def _cancel(self, request, connection):
        def done(_body):
            record = self._records.find(request.text("id"))
            if record is None:
                raise Refusal("unknown_exec")
            if not record.ended:
                self._sessions[record.session].cancel(record)
            connection.answer(200, encode({"ended": record.ended}))

        return Body(request, 0, done)

    def _reset(self, request, connection):
        def done(_body):
            session = self._sessions.get(request.text("session", "main"))
            if session is None:
                connection.answer(200, encode({"reset": False}))
            else:
                session.reset(lambda: gone(session))

        def gone(session):
            self._forget_if_blank(session)
            if not connection.closed:
                connection.answer(200, encode({"reset": True}))

        return Body(request, 0, done)

    def _file(self, request, connection):
        from . import files

        return files.read(request, connection) if request.method == "GET" else files.Write(self, request, connection)

    def _tree(self, request, connection):
        from . import trees

        if request.method == "GET":
            return Body(request, 0, lambda _body: trees.send(self, request, connection))
        return trees.Receive(self, request, connection)

    def _manifest(self, request, connection):
        from . import manifest

        if request.method == "GET":
            return Body(request, 0, lambda _body: manifest.send(self, request, connection))
        send = manifest.send_contents
        return Body(request, manifest.PATHS_LIMIT, lambda body: send(self, request, connection, body))

    def _facts(self, request, connection):
        from . import facts

        return Body(request, 0, lambda _body: facts.answer(self, request, connection))

    def _on_client(self, _events):
        for _ in range(16):
            try:
                fd, _address = self._listener._accept()
            except BlockingIOError:
                return
            except OSError:
                break  # no descriptors left, or the client has gone already
            sock = _socket.socket(fileno=fd)
            sock.setblocking(False)
            try:
                sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            except OSError:
                pass  # not TCP
            if len(self._connections) >= MAX_CONNECTIONS and not self._make_room():
                sock.close()
                continue
            self._connections.add(Connection(self.loop, sock, self))

    def _make_room(self):
        for connection in self._connections:
            if connection.idle and not connection.trusted:
                connection.close()
                return True
        return False

    def _on_signal(self, numbers):
        if any(number != _signal.SIGCHLD for number in numbers):
            self.end()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._reaped(pid, status)

    def _reaped(self, pid, status):
        on_end = self._workers.pop(pid, None)
        if on_end is not None:
            on_end(status)
            return
        for session in self._every_session():
            if session.owns(pid):
                session.adopt(self._foundlings())
                if session.shell_pid == pid:
                    session.on_process_ended(status)
                    self._forget_if_blank(session)
                return

    def _forget_if_blank(self, session):
        if session.blank and self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    def _foundlings(self):
        """Children of ours that are nobody's: what a process that was just reaped has left behind."""
        known = set(self._workers)
        for session in self._every_session():
            known.add(session.shell_pid)
            known.update(pid for pid, _start in session.orphans)
        found = {procs.identity(pid) for pid in procs.children(os.getpid()) if pid not in known}
        return found - {None}

    def _on_error(self, error):
        self._failures += 1
        import traceback

        try:
            sys.stderr.write("".join(traceback.format_exception(type(error), error, error.__traceback__)))
            sys.stderr.flush()
        except OSError:
            pass


_ROUTES = {
    "/exec": {"POST": Daemon._exec},
    "/cancel": {"POST": Daemon._cancel},
    "/reset": {"POST": Daemon._reset},
    "/job": {"GET": Daemon._job, "POST": Daemon._job},
    "/job/signal": {"POST": Daemon._job_signal},
    "/jobs": {"GET": Daemon._job_list},
    "/edit": {"GET": Daemon._edit, "POST": Daemon._edit},
    "/file": {"GET": Daemon._file, "PUT": Daemon._file},
    "/tree": {"GET": Daemon._tree, "PUT": Daemon._tree},
    "/manifest": {"GET": Daemon._manifest, "POST": Daemon._manifest},
    "/facts": {"GET": Daemon._facts},
}


def _user_of(value):
    """(uid, gid, groups) of the start document's `user`: `name`, `uid` or `uid:gid`. None: stay who we are."""
    if value is None or os.geteuid() != 0:
        return None
    name, _, group = str(value).partition(":")
    if name.isdigit():
        return int(name), int(group or name), []
    import pwd

    entry = pwd.getpwnam(name)
    return entry.pw_uid, entry.pw_gid, os.getgrouplist(name, entry.pw_gid)


def _listen(options):
    if "--listen-fd" in options:
        fd = int(options["--listen-fd"])
        os.set_inheritable(fd, False)
        return _socket.socket(fileno=fd)
    host, _, port = options["--listen"].rpartition(":")
    family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
    listener = _socket.socket(family, _socket.SOCK_STREAM)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    listener.bind((host.strip("[]"), int(port)))
    listener.listen(256)
    return listener


def main(argv):
    """Run the daemon; returns its exit code. `argv` as sandbox/bundle.py makes it."""
    options = dict(zip(argv[::2], argv[1::2]))  # noqa: B905
    try:
        fd = int(options["--config-fd"]) if "--config-fd" in options else os.open(options["--config"], os.O_RDONLY)
        with open(fd, "rb") as stream:
            config = decode(stream.read())
        listener = _listen(options)
        daemon = Daemon(listener, config)
    except (KeyError, ValueError, OSError) as error:
        sys.stderr.write(
            "execd: cannot start: %r; it needs --listen-fd FD or --listen HOST:PORT, and --config-fd FD or"
            " --config FILE with at least token_sha256\n" % error
        )
        return 2
    daemon.run()
    return 0
