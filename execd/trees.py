"""Trees of files, up and down, as tar streams. The tar work runs in a child, so a large tree never holds up the loop.

Regular files, directories and symlinks travel, with mode and time. A hard link travels as a copy; sockets, devices and
pipes are skipped and named in the answer. Unpacking never follows a symlink and never leaves its root.
"""

import os
import stat

from .files import answer_told, make_directories, path_of, shown, tell
from .loop import READ, WRITE
from .protocol import (
    FRAME_ERROR,
    FRAME_OUTPUT,
    FRAME_RESULT,
    Refusal,
    encode,
    frame,
    refusal_of,
)
from .workers import Worker, collect_from

RELAY_BYTES = 1 << 18
BACKLOG = 1 << 20
UNPACK_IDLE_S = 600.0


def send(daemon, request, connection):
    """Answer with frames: the tar stream in FRAME_OUTPUT, then the result (skipped members) or an error."""
    path = path_of(request)
    Relay(daemon, Worker(daemon, lambda _in_fd, out_fd: _pack(path, out_fd)), connection)


class Relay:
    """Passes what a worker writes to a connection, as fast as the client takes it."""

    def __init__(self, daemon, worker, connection):
        self._loop = daemon.loop
        self._worker = worker
        self._connection = connection
        connection.on_gone = self._gone
        connection.on_drained = self._resume
        connection.start_chunks("application/octet-stream")
        self._resume()

    def _resume(self):
        self._loop.watch(self._worker.out_r, READ, self._on_readable)

    def _on_readable(self, _events):
        data = os.read(self._worker.out_r, RELAY_BYTES)
        if not data:
            self._connection.on_gone = None  # a client that has left is not to end it a second time
            self._close()
            self._connection.end_chunks()
            return
        self._connection.send_chunk(data)
        if self._connection.backlog > BACKLOG and not self._connection.closed:
            self._loop.forget(self._worker.out_r)  # until the client has taken what waits

    def _gone(self):
        self._worker.kill()
        self._close()

    def _close(self):
        self._loop.forget(self._worker.out_r)
        os.close(self._worker.out_r)


class _Framed:
    """A file to write to, whose bytes leave as output frames."""

    def __init__(self, fd):
        self._fd = fd
        self._offset = 0

    def write(self, data):
        """Write one frame."""
        write_all(self._fd, frame(FRAME_OUTPUT, self._offset.to_bytes(8, "big") + bytes(data)))
        self._offset += len(data)
        return len(data)


def write_all(fd, data):
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _pack(path, out_fd):
    import tarfile

    try:
        os.lstat(path)
        with tarfile.open(
            mode="w|", fileobj=_Framed(out_fd), format=tarfile.GNU_FORMAT, encoding="utf-8", bufsize=RELAY_BYTES
        ) as tar:
            skipped = _add_all(tar, os.fsdecode(path))
    except OSError as error:
        what = error.filename if error.filename is not None else path
        refusal = refusal_of(error, shown(os.fsencode(what)) if not isinstance(what, int) else shown(path))
        write_all(out_fd, frame(FRAME_ERROR, refusal.body()))
        return
    write_all(out_fd, frame(FRAME_RESULT, encode({"skipped": [shown(os.fsencode(name)) for name in skipped]})))


def _add_all(tar, root):
    skipped = []
    waiting = [(root, ".")]
    while waiting:
        name, inside = waiting.pop()
        tar.inodes = {}  # a hard link travels as a copy
        tar.dereference = inside == "."  # the root may be a symlink to what is wanted; below it, links stay links
        member = tar.gettarinfo(name, inside)
        if member is None or not (member.isreg() or member.isdir() or member.issym()):
            skipped.append(inside)
        elif member.isreg():
            with open(name, "rb") as stream:
                tar.addfile(member, stream)
        else:
            tar.addfile(member)
            if member.isdir():
                waiting.extend((name + "/" + entry, inside + "/" + entry) for entry in sorted(os.listdir(name)))
    return skipped


class Receive:
    """A sink that unpacks a tar stream at `path` (a directory, or one file when the tar's root is a file)."""

    def __init__(self, daemon, request, connection):
        self._loop = daemon.loop
        self._connection = connection
        path = path_of(request)
        self._worker = Worker(
            daemon, lambda in_fd, out_fd: tell(out_fd, lambda: _receive(path, daemon.user, in_fd)), feeds=True
        )
        self._unsent = b""
        self._ended = False
        collect_from(daemon, self._worker, self._done, UNPACK_IDLE_S)
        connection.on_gone = self._worker.kill

    def feed(self, data):
        """Pass a piece on; the client waits while the child is busy."""
        self._unsent += data
        self._push()

    def end(self):
        """The body is whole; the child's verdict is the answer."""
        self._ended = True
        self._push()

    def abort(self):
        """The client is gone: what was unpacked stays, nothing more is."""
        self._worker.kill()
        self._close_in()

    def _push(self):
        if self._worker.in_w is None:
            return
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._worker.in_w, self._unsent) :]
        except BlockingIOError:
            self._connection.pause()
            self._loop.watch(self._worker.in_w, WRITE, lambda _events: self._push())
            return
        except OSError:
            self._unsent = b""  # the child has ended early and says why
        self._loop.forget(self._worker.in_w)
        if self._ended:
            self._close_in()
        else:
            self._connection.resume()

    def _close_in(self):
        if self._worker.in_w is not None:
            self._loop.forget(self._worker.in_w)
            os.close(self._worker.in_w)
            self._worker.in_w = None

    def _done(self, data):
        self._close_in()
        answer_told(self._connection, data, "the tree could not be unpacked")


def _receive(path, user, in_fd):
    import tarfile

    try:
        with open(in_fd, "rb", buffering=RELAY_BYTES) as stream:
            with tarfile.open(mode="r|", fileobj=stream, encoding="utf-8", bufsize=RELAY_BYTES) as tar:
                skipped = _unpack(tar, os.fsdecode(path), user)
            while stream.read(RELAY_BYTES):
                pass  # the padding behind the end of the archive
    except OSError as error:
        raise refusal_of(error, shown(path)) from error
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise Refusal("bad_argument", "the body is not a whole tar stream (%s)" % error) from error
    return {"skipped": skipped}


def _unpack(tar, root, user):
    make_directories(os.path.dirname(root) or "/", user)
    skipped = []
    directories = []
    for member in tar:
        target = _target_of(member.name, root, user)
        if member.isdir():
            if not (os.path.isdir(target) and (target == root or not os.path.islink(target))):
                _remove(target)
                os.mkdir(target)
            directories.append((target, member))
        elif member.isreg():
            _remove(target)
            _write_file(tar.extractfile(member), target, member)
        elif member.issym():
            _remove(target)
            os.symlink(member.linkname, target)
        else:
            skipped.append(shown(os.fsencode(member.name)))
            continue
        if user is not None:
            os.lchown(target, user[0], user[1])
            if member.isreg():
                os.chmod(target, member.mode & 0o7777)  # a change of owner takes the set-id bits
    for target, member in reversed(directories):
        os.chmod(target, member.mode & 0o7777)
        os.utime(target, (member.mtime, member.mtime))
    return skipped


def _target_of(name, root, user):
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise Refusal("unsafe_member", shown(os.fsencode(name)))
    target = root
    for part in parts[:-1]:
        target += "/" + part
        if os.path.islink(target):
            raise Refusal("unsafe_member", "a link lies in the way of %s" % shown(os.fsencode(name)))
        make_directories(target, user)
    return target + "/" + parts[-1] if parts else target


def _remove(target):
    try:
        status = os.lstat(target)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        os.rmdir(target)
    else:
        os.unlink(target)


def _write_file(source, target, member):
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        left = member.size
        while left:
            data = source.read(min(left, RELAY_BYTES))
            if not data:
                raise EOFError("it ends inside %s" % shown(os.fsencode(member.name)))
            write_all(fd, data)
            left -= len(data)
        os.fchmod(fd, member.mode & 0o7777)
        os.utime(fd, (member.mtime, member.mtime))
    finally:
        os.close(fd)
