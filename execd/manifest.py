"""What a tree holds, by this daemon's own walk and hash: no program of the image, and no git, has a say in it.

Nothing is followed and nothing but regular files is opened. Every file is read whole: times are not trusted. All that
the walk runs is loaded with this module, so that once a first manifest was made, what happens to files on disk (the
interpreter's library, the daemon's own archive) changes no later one.
"""

import os
import stat

from .files import PIECE, path_of, shown
from .protocol import FRAME_ERROR, FRAME_OUTPUT, FRAME_RESULT, Refusal, encode, frame, refusal_of, sha256
from .trees import Relay, write_all
from .workers import Worker

try:
    from _hashlib import openssl_sha256 as _new_hash  # several times as fast as the interpreter's own
except ImportError:
    _new_hash = sha256

MAX_ENTRIES = 1000000
MAX_BYTES = 256 << 20
MAX_DEPTH = 200
MAX_HASHED = 1 << 30
PATHS_LIMIT = 64 << 20
TRIES = 3
FLUSH_BYTES = 1 << 16

UNREAD = b"unread"
LARGE = b"large"
MOVING = b"moving"
DEEP = b"deep"
BROKEN_OFF = b"\xff\xff\xff\xff"

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFREG: b"f",
    stat.S_IFLNK: b"l",
    stat.S_IFDIR: b"d",
    stat.S_IFIFO: b"p",
    stat.S_IFSOCK: b"s",
    stat.S_IFCHR: b"c",
    stat.S_IFBLK: b"b",
}


def send(daemon, request, connection):
    """Answer with frames: the entries in FRAME_OUTPUT, then the result or an error."""
    root = path_of(request)
    most = request.number("max_entries", MAX_ENTRIES, 1, MAX_ENTRIES)
    _relay(daemon, connection, lambda out: Walk(out, most).tree(root), root)


def send_contents(daemon, request, connection, body):
    """Answer with frames: the bytes of the files that the body lists (`size path`, each ended by NUL).

    A file is pieces, each after its length in 4 bytes, and an empty piece; a length of 2^32-1 ends a file that could
    not be read to its listed size.
    """
    root = path_of(request)
    _relay(daemon, connection, lambda out: _contents(out, root, body), root)


def _relay(daemon, connection, work, root):
    def framed(_in_fd, out_fd):
        out = _Frames(out_fd)
        try:
            result = work(out)
        except Refusal as refusal:
            out.end(FRAME_ERROR, refusal.body())
        except OSError as error:
            out.end(FRAME_ERROR, refusal_of(error, shown(root)).body())
        else:
            out.end(FRAME_RESULT, encode(result))

    Relay(daemon, Worker(daemon, framed), connection)


class _Frames:
    """Collects bytes and writes them as output frames."""

    def __init__(self, fd):
        self._fd = fd
        self._waiting = []
        self._waiting_bytes = 0
        self._offset = 0

    def write(self, data):
        """Write, some time before `end`."""
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= FLUSH_BYTES:
            self._flush()

    def end(self, kind, payload):
        """Write what waits, and the last frame."""
        self._flush()
        write_all(self._fd, frame(kind, payload))

    def _flush(self):
        data = b"".join(self._waiting)
        if data:
            write_all(self._fd, frame(FRAME_OUTPUT, self._offset.to_bytes(8, "big") + data))
        self._offset += len(data)
        self._waiting = []
        self._waiting_bytes = 0


class Walk:
    """One walk. An entry is `kind mode uid gid links device inode size digest`, NUL, path, NUL, link target, NUL.

    Kinds are those of `_KINDS`, and `g` for what is named `.git` (a file has a hash, all else the letter of its kind)
    and `m` for a directory of another file system: neither is entered. The digest of a regular file is its SHA-256, or
    says why there is none: it cannot be read (`unread`), has more than a GiB (`large`), or did not hold still
    (`moving`). A directory has `-`, or `unread`, or `deep` when it lies deeper than is walked.
    """

    def __init__(self, out, max_entries):
        self._out = out
        self._left = max_entries
        self._left_bytes = MAX_BYTES
        self._entries = 0
        self._device = None

    def tree(self, root):
        """Walk `root`, a directory that may be reached by links. The root's own path is empty."""
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(fd)
        self._device = status.st_dev
        self._entry(b"d", status, b"-", b"")
        self._directory(fd, b"", 1)
        return {"entries": self._entries}

    def _entry(self, kind, status, digest, path, target=b""):
        self._entries += 1
        self._left -= 1
        if self._left < 0:
            raise Refusal("tree_too_large", "the tree has more entries than the limit")
        facts = b"%o %d %d %d %d %d %d" % (
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
            status.st_nlink,
            status.st_dev,
            status.st_ino,
            status.st_size,
        )
        entry = b"%s %s %s\0%s\0%s\0" % (kind, facts, digest, path, target)
        self._left_bytes -= len(entry)
        if self._left_bytes < 0:
            raise Refusal("tree_too_large", "the paths and links of the tree have more than %d bytes" % MAX_BYTES)
        self._out.write(entry)

    def _directory(self, fd, prefix, depth):
        try:
            names = os.listdir(fd)
            for name in sorted(names):
                try:
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    self._one(fd, name, prefix + os.fsencode(name), status, depth)
                except FileNotFoundError:
                    pass  # it is gone, as if it had gone before
        finally:
            os.close(fd)

    def _one(self, fd, name, path, status, depth):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), b"?")
        if name.lower() == ".git":
            status, digest = _hashed(fd, name, status) if kind == b"f" else (status, kind)
            self._entry(b"g", status, digest, path)
        elif kind == b"f":
            status, digest = _hashed(fd, name, status)
            self._entry(kind, status, digest, path)
        elif kind == b"l":
            self._entry(kind, status, b"-", path, os.fsencode(os.readlink(name, dir_fd=fd)))
        elif kind != b"d":
            self._entry(kind, status, b"-", path)
        elif status.st_dev != self._device:
            self._entry(b"m", status, b"-", path)
        elif depth >= MAX_DEPTH:
            self._entry(kind, status, DEEP, path)
        else:
            try:
                inner = _open_directory(fd, name)
            except PermissionError:
                self._entry(kind, status, UNREAD, path)
                return
            self._entry(kind, status, b"-", path)
            self._directory(inner, path + b"/", depth + 1)


def _open_directory(parent, name):
    """Open a directory that may be both listed and searched. Raises OSError."""
    fd = os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    try:
        os.stat(".", dir_fd=fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _hashed(parent, name, status):
    """(status, digest) of a regular file, both of one moment."""
    for _ in range(TRIES):
        if status.st_size > MAX_HASHED:
            return status, LARGE
        try:
            fd = os.open(name, _FILE_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            raise
        except OSError:  # no permission; or a link or a socket has taken its place
            return status, UNREAD
        try:
            digest = _digest(fd, status.st_size)
            after = os.fstat(fd)
        except OSError:
            return status, UNREAD
        finally:
            os.close(fd)
        if digest is not None and _state(after) == _state(status):
            return status, digest
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return status, MOVING
    return status, MOVING


def _state(status):
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(fd, size):
    """The hash of the file's bytes, or None when they are not `size` bytes."""
    found = _new_hash()
    left = size
    while True:
        data = os.read(fd, min(left + 1, PIECE))
        found.update(data)
        left -= len(data)
        if not data or left < 0:
            break
        if left == 0 and len(data) < PIECE:
            break  # a short read of a regular file: its end
    return found.hexdigest().encode() if left == 0 else None


def _contents(out, root, body):
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    files = 0
    for wanted in body.split(b"\0"):
        if not wanted:
            continue
        size, _, path = wanted.partition(b" ")
        files += 1
        out.write(b"\0\0\0\0" if _send_file(out, fd, path, int(size)) else BROKEN_OFF)
    return {"files": files}


def _send_file(out, root_fd, path, size):
    """Write the first `size` bytes of a file as pieces. False when there are fewer, or it is no regular file."""
    try:
        fd = _open_beneath(root_fd, path)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        while size:
            data = os.read(fd, min(size, PIECE))
            if not data:
                return False
            out.write(len(data).to_bytes(4, "big"))
            out.write(data)
            size -= len(data)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _open_beneath(root_fd, path):
    """Open a file for reading without following a link on the way. Raises OSError."""
    *parents, name = path.split(b"/")
    fd = os.dup(root_fd)
    try:
        for parent in parents:
            inner = os.open(parent, _DIRECTORY_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = inner
        return os.open(name, _FILE_FLAGS, dir_fd=fd)
    finally:
        os.close(fd)
