"""Single files: read by range, written atomically and verified on disk."""

import os
import stat

from .protocol import Refusal, encode, refusal_of, sha256
from .workers import collect

PIECE = 1 << 18
COMMIT_WAIT_S = 600.0


def path_of(request, name="path"):
    """The absolute path, as bytes, that a parameter names."""
    path = request.query.get(name)
    if not path or not path.startswith(b"/") or b"\0" in path:
        raise Refusal("bad_argument", "`%s` must be an absolute path" % name)
    return path


def shown(path):
    """A path for a message."""
    return path.decode("utf-8", "backslashreplace")


class read:
    """A sink for an empty body that answers with the file's bytes from `offset`, at most `limit`. Follows symlinks."""

    def __init__(self, request, connection):
        if request.body_bytes != 0:
            raise Refusal("too_large", "this endpoint takes no body")
        self._request = request
        self._connection = connection

    def feed(self, data):
        """There is no body."""

    def abort(self):
        """Nothing is open."""

    def end(self):
        """Answer."""
        path = path_of(self._request)
        offset = self._request.number("offset", 0, 0, 1 << 62)
        limit = self._request.number("limit", 1 << 62, 0, 1 << 62)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise refusal_of(error, shown(path)) from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise Refusal("is_directory" if stat.S_ISDIR(status.st_mode) else "not_a_file", shown(path))
        if status.st_size == 0 and limit:  # /proc and the like have no size of their own
            with open(fd, "rb") as stream:
                data = stream.read(64 << 20)[offset : offset + limit]
            self._connection.answer(200, data, kind="application/octet-stream")
            return
        length = max(0, min(limit, status.st_size - offset))
        self._connection.answer_from(_pieces(fd, offset, length), length)


def _pieces(fd, offset, length):
    try:
        while length:
            data = os.pread(fd, min(PIECE, length), offset)
            if not data:
                raise OSError(5, "the file became shorter while it was read")
            offset += len(data)
            length -= len(data)
            yield data
    finally:
        os.close(fd)


class Replacement:
    """A file that is written beside its target and renamed over it once it is whole on disk.

    A symlink is followed: its target is replaced and the link stays. Mode (unless given) and owner of an old file are
    kept; a new file, and parents that are made, belong to `user` (uid, gid, ...) or, when None, to the daemon's own.
    Until `commit` the old file is as it was. Raises Refusal.
    """

    def __init__(self, path, mode=None, user=None):
        self._shown = shown(path)
        self._hash = sha256()
        self._length = 0
        self._temporary = None
        self._fd = None
        try:
            self._target = os.path.realpath(path)
            old = _status_of(self._target)
            if old is not None and not stat.S_ISREG(old.st_mode):
                raise Refusal("is_directory" if stat.S_ISDIR(old.st_mode) else "not_a_file", self._shown)
            parent = os.path.dirname(self._target)
            make_directories(parent, user)
            self._temporary = parent + b"/.execd-" + "".join("%02x" % byte for byte in os.urandom(8)).encode()
            self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            owner = (old.st_uid, old.st_gid) if old is not None else user[:2] if user is not None else None
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(self._fd, owner[0], owner[1])
            if mode is None:
                mode = 0o644 if old is None else stat.S_IMODE(old.st_mode)
            os.fchmod(self._fd, mode)
        except OSError as error:
            self.abort()
            raise refusal_of(error, self._shown) from error

    def write(self, data):
        """Write a piece."""
        self._hash.update(data)
        self._length += len(data)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise refusal_of(error, self._shown) from error

    def commit(self):
        """Put it on disk, compare what lies there with what was written, and rename: the answer's JSON value."""
        try:
            os.fsync(self._fd)
            found = sha256()
            length = 0
            while True:
                data = os.pread(self._fd, PIECE, length)
                if not data:
                    break
                found.update(data)
                length += len(data)
            if length != self._length or found.digest() != self._hash.digest():
                raise Refusal("not_verified", self._shown)
            os.rename(self._temporary, self._target)
        except OSError as error:
            raise refusal_of(error, self._shown) from error
        return {"bytes": length, "sha256": found.hexdigest()}

    def abort(self):
        """Close, and remove what was not renamed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._temporary is not None:
            try:
                os.unlink(self._temporary)
            except OSError:
                pass
            self._temporary = None


class Write:
    """A sink that writes a file. The disk's part, which may take long, is done in a child where one can be had."""

    def __init__(self, daemon, request, connection):
        self._daemon = daemon
        self._connection = connection
        mode = request.query.get("mode")
        try:
            mode = None if mode is None else int(mode, 8) & 0o7777
        except ValueError:
            raise Refusal("bad_argument", "`mode` is not octal") from None
        self._file = Replacement(path_of(request), mode, daemon.user)

    def feed(self, data):
        """Write a piece."""
        self._file.write(data)

    def end(self):
        """Verify, rename, answer."""
        try:
            collect(self._daemon, lambda _in_fd, out_fd: tell(out_fd, self._file.commit), self._done, COMMIT_WAIT_S)
        except Refusal:  # no process can be had: the loop waits for the disk
            value = self._file.commit()
            self.abort()
            self._connection.answer(200, encode(value))

    def _done(self, said):
        self.abort()
        answer_told(self._connection, said, "the file could not be written")

    def abort(self):
        """Remove what was not renamed."""
        self._file.abort()


def tell(out_fd, work):
    """In a child: write `work()`'s JSON value, or the refusal that it raised, for `answer_told`."""
    try:
        said = b"200 " + encode(work())
    except Refusal as refusal:
        said = b"%d %s" % (refusal.status, refusal.body())
    while said:
        said = said[os.write(out_fd, said) :]


def answer_told(connection, said, failure):
    """Answer with what a child told. `failure` says what has not been done when it told nothing."""
    if connection.closed:
        return
    if not said:
        refusal = Refusal("internal", failure)
        connection.answer(refusal.status, refusal.body())
        return
    status, _, body = said.partition(b" ")
    connection.answer(int(status), body)


def make_directories(path, user):
    """Make a directory and its parents where they are missing; what is made belongs to `user`. Raises OSError."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        os.mkdir(directory)
        if user is not None:
            os.chown(directory, user[0], user[1])


def _status_of(path):
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
