"""Single files: read by range, written atomically and verified on disk."""

import os
import stat

from .protocol import Refusal, encode, refusal_of, sha256

PIECE = 1 << 18
WRITE_LIMIT = 4 << 30


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
            self._connection.answer(200, data, "application/octet-stream")
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


class Write:
    """A sink that writes a file: temporary file beside it, fsync, read back and compared, renamed over it.

    A symlink is followed: its target is replaced and the link stays. Mode (unless given) and owner of an old file are
    kept. Parents are made. On any refusal the old file is as it was.
    """

    def __init__(self, request, connection):
        self._connection = connection
        path = path_of(request)
        self._shown = shown(path)
        mode = request.query.get("mode")
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
            os.makedirs(parent, exist_ok=True)
            self._temporary = parent + b"/.execd-" + "".join("%02x" % byte for byte in os.urandom(8)).encode()
            self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(self._fd, old.st_uid, old.st_gid)
            if mode is not None:
                os.fchmod(self._fd, int(mode, 8) & 0o7777)
            else:
                os.fchmod(self._fd, 0o644 if old is None else stat.S_IMODE(old.st_mode))
        except ValueError:
            self.abort()
            raise Refusal("bad_argument", "`mode` is not octal") from None
        except OSError as error:
            self.abort()
            raise refusal_of(error, self._shown) from error

    def feed(self, data):
        """Write a piece."""
        self._hash.update(data)
        self._length += len(data)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise refusal_of(error, self._shown) from error

    def end(self):
        """Verify, rename, answer."""
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
            self._temporary = None
        except OSError as error:
            raise refusal_of(error, self._shown) from error
        self.abort()
        self._connection.answer(200, encode({"bytes": length, "sha256": found.hexdigest()}))

    def abort(self):
        """Remove what was not renamed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._temporary is not None:
            try:
                os.unlink(self._temporary)
            except OSError:
                pass
            self._temporary = None


def _status_of(path):
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
