"""What can be read about the place where the daemon runs. Every fact is None when it cannot be read."""

import os
import sys
import time

from .protocol import Refusal, encode
from .workers import collect

CANARY_WAIT_S = 2.0
UNLIMITED = "unlimited"
NO_LIMIT = 1 << 60
"""Cgroup 1 says "no limit" by a number near 2^63."""


def answer(daemon, request, connection):
    """Answer with the facts as JSON. `canary_host` and `canary_port` ask for a connection attempt."""
    canary = None
    if "canary_host" in request.query:
        canary = (request.text("canary_host"), request.number("canary_port", None, 1, 65535))

    def work(_in_fd, out_fd):
        data = encode(read(daemon.env, daemon.boot_id, canary))
        while data:
            data = data[os.write(out_fd, data) :]

    def done(data):
        if connection.closed:
            return
        if data is None:
            refusal = Refusal("internal", "the facts could not be read in time")
            connection.answer(refusal.status, refusal.body())
        else:
            connection.answer(200, data)

    collect(daemon, work, done, CANARY_WAIT_S + 10)


def read(env, boot_id, canary):
    """The facts as a dict of JSON values."""
    system = os.uname()
    cpus, memory = _cpu_quota(), _limit("memory.max", "memory", "memory.limit_in_bytes")
    return {
        "boot_id": boot_id,
        "visible_cpus": _try(lambda: len(os.sched_getaffinity(0))),
        "cpu_quota": _number(cpus),
        "memory_limit_bytes": _tightest(_number(memory), _rlimit("RLIMIT_AS")),
        "cgroup": {"cpus": cpus, "memory_bytes": memory, "processes": _limit("pids.max", "pids", "pids.max")},
        "address_space_limit_bytes": _rlimit("RLIMIT_AS"),
        "open_files_limit": _rlimit("RLIMIT_NOFILE"),
        "processes_limit": _rlimit("RLIMIT_NPROC"),
        "user_id": os.getuid(),
        "group_id": os.getgid(),
        "umask": _umask(),
        "interfaces": _try(_interfaces),
        "default_route": _try(_default_route),
        "ipv6": os.path.exists("/proc/net/if_inet6"),
        "canary": None if canary is None else _canary(canary),
        "python_version": "%d.%d.%d" % sys.version_info[:3],
        "architecture": system.machine,
        "kernel": system.release,
        "hostname": system.nodename,
        "dev_shm_bytes": _try(_dev_shm),
        "time": time.time(),
        "timezone": _timezone(env),
        "locale": env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG"),
        "hash_seed": env.get("PYTHONHASHSEED"),
        "seccomp": _status_line("Seccomp"),
        "no_new_privileges": _status_line("NoNewPrivs"),
        "env": env,
    }


def _try(function):
    try:
        return function()
    except (OSError, ValueError, IndexError, AttributeError, KeyError):
        return None


def _text(path):
    with open(path, "rb") as stream:
        return stream.read(1 << 20).decode("utf-8", "replace").strip()


def _cgroup_files(v2_name, v1_controller, v1_name):
    """Candidate files, the process's own group and its parents first for v2, then the v1 mount."""
    group = ""
    for line in (_try(lambda: _text("/proc/self/cgroup")) or "").splitlines():
        if line.startswith("0::"):
            group = line[3:].strip("/")
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield "/".join(["/sys/fs/cgroup"] + parts[:count] + [v2_name])
    yield "/sys/fs/cgroup/%s/%s" % (v1_controller, v1_name)


def _limit(v2_name, v1_controller, v1_name):
    """The tightest number of a cgroup file, `UNLIMITED` where only "no limit" was read, None where nothing was."""
    words = [_try(lambda path=path: _text(path)) for path in _cgroup_files(v2_name, v1_controller, v1_name)]
    return _decide([int(word) if word.isdigit() else NO_LIMIT for word in words if word])


def _decide(limits):
    if not limits:
        return None
    return min(limits) if min(limits) < NO_LIMIT else UNLIMITED


def _cpu_quota():
    """As `_limit`, in CPUs."""
    quotas = []
    for path in _cgroup_files("cpu.max", "cpu", "cpu.cfs_quota_us"):
        words = (_try(lambda path=path: _text(path)) or "").split()
        if words and (words[0] == "max" or int(words[0]) < 0):
            quotas.append(NO_LIMIT)
        elif words:
            period = words[1] if len(words) == 2 else _try(lambda: _text("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
            quotas.append(int(words[0]) / int(period or 100000))
    return _decide(quotas)


def _number(limit):
    return None if limit == UNLIMITED else limit


def _tightest(*limits):
    return min([limit for limit in limits if limit is not None], default=None)


def _rlimit(name):
    try:
        import resource

        soft = resource.getrlimit(getattr(resource, name))[0]
        return None if soft == resource.RLIM_INFINITY else soft
    except (ImportError, AttributeError, OSError, ValueError):
        return None


def _umask():
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _interfaces():
    return sorted(line.split(":")[0].strip() for line in _text("/proc/net/dev").splitlines()[2:])


def _default_route():
    """The interface of the default route, or "" when there is none."""
    for line in _text("/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000" and fields[7] == "00000000":
            return fields[0]
    for line in (_try(lambda: _text("/proc/net/ipv6_route")) or "").splitlines():
        fields = line.split()
        if fields[0] == "0" * 32 and fields[1] == "00" and fields[9] != "lo":
            return fields[9]
    return ""


def _canary(address):
    import socket

    try:
        socket.create_connection(address, CANARY_WAIT_S).close()
    except OSError:
        return "unreachable"
    return "reached"


def _dev_shm():
    status = os.statvfs("/dev/shm")
    return status.f_frsize * status.f_blocks if os.path.ismount("/dev/shm") else None


def _timezone(env):
    if env.get("TZ"):
        return env["TZ"]
    link = _try(lambda: os.readlink("/etc/localtime"))
    if link and "zoneinfo/" in link:
        return link.partition("zoneinfo/")[2]
    return _try(lambda: _text("/etc/timezone")) or time.tzname[0]


def _status_line(name):
    for line in (_try(lambda: _text("/proc/self/status")) or "").splitlines():
        key, _, value = line.partition(":")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
