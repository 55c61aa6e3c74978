"""What a program meets where the tests will run. Run by the tests' own Python, in their shell, as a child of it.

Shipped as text, never imported by ours; Python 3.4 syntax, standard library only. The first argument is JSON:

    nonce        begins the one line of output: `<nonce> <JSON>`, since start-up files may print too
    text         to be hashed
    instants     seconds since 1970 at which the time zone is asked
    variables    names whose values are told; a name that ends in `*` stands for all that begin so
    targets      [name, host, port] that a TCP connection is tried to
    egress       whether name servers and the gateway are tried as well
    wait_s       how long the tries may take together; the first that succeeds ends them where `egress` is false

The answer has a value per fact; what could not be read is left out.
"""

import sys

# What lies in the working directory, or beside it on the path, must not stand for the standard library.
IMPORTS = sys.path[:]
sys.path[:] = [p for p in IMPORTS if p.startswith((sys.prefix, sys.base_prefix, sys.exec_prefix))] or IMPORTS[1:]

import _socket as socket  # noqa: E402  (the module around it costs more than all the rest)
import errno  # noqa: E402
import json  # noqa: E402
import locale  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import select  # noqa: E402
import time  # noqa: E402

QUERY = b"\x5a\x17\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01"
"""A question to a name server, for the name servers of the root: any answer will do."""

GATEWAY_PORTS = (22, 10250)
"""SSH, and the kubelet's."""


def look(asked):
    """All facts, by name."""
    facts = {}
    for name, read in (
        ("clock", lambda: time.time()),
        ("python", lambda: "%s %d.%d.%d" % ((sys.implementation.name,) + tuple(sys.version_info[:3]))),
        ("executable", lambda: sys.executable),
        ("packages", packages),
        ("hash", lambda: [hash(asked["text"]), sys.hash_info.algorithm, sys.hash_info.width]),
        ("visible_cpus", lambda: len(os.sched_getaffinity(0))),
        ("cpu_count", os.cpu_count),
        ("open_files", lambda: limit(resource.RLIMIT_NOFILE)),
        ("user", os.geteuid),
        ("umask", umask),
        ("shm_bytes", shm_bytes),
        ("ipv6", ipv6),
        ("zone", lambda: [[time.localtime(at).tm_gmtoff, time.localtime(at).tm_zone] for at in asked["instants"]]),
        ("tzdata_version", tzdata_version),
        ("locale", set_locale),
        ("encoding", lambda: locale.getpreferredencoding(False)),
        ("machine", lambda: list(os.uname())),
        ("seccomp", seccomp),
        ("environment", lambda: environment(asked["variables"])),
        ("reached", lambda: reached(asked)),
    ):
        try:
            facts[name] = read()
        except Exception:  # a fact that cannot be read, whatever the image has made of the library
            continue
    return {name: value for name, value in facts.items() if value is not None}


def packages():
    """`name==version` of every distribution on the path, by the names of their metadata."""
    found = set()
    for directory in IMPORTS:
        try:
            entries = os.listdir(directory or ".")
        except OSError:
            continue
        for entry in entries:
            stem, suffix = os.path.splitext(entry)
            if suffix == ".dist-info" and "-" in stem:
                name, _, version = stem.partition("-")
                found.add(name + "==" + version)
            elif suffix == ".egg-info":
                name, _, version = stem.partition("-")
                version = version.partition("-py")[0] or egg_version(os.path.join(directory, entry, "PKG-INFO"))
                found.add(name + "==" + version)
    return sorted(found)


def egg_version(path):
    """The version that an egg's metadata names; empty where it names none."""
    try:
        with open(path, "rb") as stream:
            for line in stream.read(1 << 16).decode("utf-8", "replace").splitlines():
                if line.startswith("Version:"):
                    return line[8:].strip()
    except OSError:
        pass
    return ""


def limit(which):
    """A soft limit, or `unlimited`."""
    soft = resource.getrlimit(which)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def umask():
    """The bits that a new file lost."""
    for directory in (os.environ.get("TMPDIR"), "/tmp", "/dev/shm"):
        path = "%s/.umask-%d-%d" % (directory, os.getpid(), time.time() * 1e9)
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o777)
        except OSError:
            continue
        try:
            return 0o777 & ~os.fstat(fd).st_mode
        finally:
            os.close(fd)
            os.unlink(path)
    return None


def shm_bytes():
    """The size of the file system at /dev/shm; 0 where there is none."""
    if not os.path.isdir("/dev/shm"):
        return 0
    status = os.statvfs("/dev/shm")
    return status.f_frsize * status.f_blocks


def ipv6():
    """Whether a socket can be bound to ::1."""
    try:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return False
    try:
        listener.bind(("::1", 0))
    except OSError:
        return False
    finally:
        listener.close()
    return True


def tzdata_version():
    """The version of the zone files that the C library reads."""
    root = os.environ.get("TZDIR") or "/usr/share/zoneinfo"
    for name, prefix in (("tzdata.zi", "# version "), ("+VERSION", ""), ("version", "")):
        try:
            with open(os.path.join(root, name), "rb") as stream:
                line = stream.readline(100).decode("ascii", "replace").strip()
        except OSError:
            continue
        if line.startswith(prefix):
            return line[len(prefix) :]
    return None


def set_locale():
    """The locale that a program gets which asks for the environment's; `C` where the system has not got that."""
    try:
        return locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        return "C"


def seccomp():
    """The mode of /proc/self/status: 0 off, 1 strict, 2 filtered."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Seccomp:"):
                return int(line.split()[1])
    return None


def environment(wanted):
    """Values of the wanted variables that are there."""
    starts = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return {
        name: value.encode("utf-8", "replace").decode("utf-8")
        for name, value in os.environ.items()
        if name in wanted or (starts and name.startswith(starts))
    }


def reached(asked):
    """Names of those targets that something answered from."""
    tries = {}
    for name, host, port in asked["targets"]:
        begin(tries, name, host, port, socket.SOCK_STREAM)
    if asked["egress"]:
        for server in name_servers():
            begin(tries, "dns", server, 53, socket.SOCK_DGRAM)
        for gateway in gateways():
            for port in GATEWAY_PORTS:
                begin(tries, "gateway", gateway, port, socket.SOCK_STREAM)
    return wait_for(tries, asked["wait_s"], not asked["egress"])


def begin(tries, name, host, port, kind):
    """Begin one try; one that is refused at once is over."""
    trial = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    trial.setblocking(False)
    error = trial.connect_ex((host, port))
    if error not in (0, errno.EINPROGRESS):
        trial.close()
        return
    if kind == socket.SOCK_DGRAM:
        try:
            trial.send(QUERY)
        except OSError:
            trial.close()
            return
    tries[trial.fileno()] = (name, trial, kind)


def wait_for(tries, wait_s, one_is_enough):
    """Names of the tries that succeeded in time."""
    found, poll, end = set(), select.poll(), time.monotonic() + wait_s
    for fd, (_, _, kind) in tries.items():
        poll.register(fd, select.POLLIN if kind == socket.SOCK_DGRAM else select.POLLOUT)
    while tries and time.monotonic() < end and not (found and one_is_enough):
        for fd, _ in poll.poll(max(0, (end - time.monotonic()) * 1000)):
            name, trial, kind = tries.pop(fd)
            poll.unregister(fd)
            if answered(trial, kind):
                found.add(name)
            trial.close()
    for _, trial, _ in tries.values():
        trial.close()
    return sorted(found)


def answered(trial, kind):
    """Whether it was connected, or has an answer. A refusal may be the guard's own, so it counts for nothing."""
    if trial.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        return False
    if kind == socket.SOCK_DGRAM:
        try:
            trial.recv(512)
        except OSError:
            return False
    return True


def name_servers():
    """Addresses of /etc/resolv.conf."""
    try:
        with open("/etc/resolv.conf", "rb") as stream:
            lines = stream.read(1 << 16).decode("ascii", "replace").splitlines()
    except OSError:
        return []
    return [words[1] for words in map(str.split, lines) if len(words) > 1 and words[0] == "nameserver"][:3]


def gateways():
    """IPv4 addresses of the default routes' gateways."""
    try:
        with open("/proc/net/route", "rb") as stream:
            routes = [line.split() for line in stream.read(1 << 16).decode("ascii", "replace").splitlines()[1:]]
    except OSError:
        return []
    return [
        socket.inet_ntoa(int(words[2], 16).to_bytes(4, sys.byteorder))
        for words in routes
        if words[1] == "00000000" and words[2] != "00000000"
    ]


def main():
    """Look, and say it in one line."""
    asked = json.loads(sys.argv[1])
    line = "\n%s %s\n" % (asked["nonce"], json.dumps(look(asked)))
    os.write(1, line.encode("ascii"))  # whatever became of sys.stdout


if __name__ == "__main__":
    main()
