"""Runs first in the pod, before execd: makes the daemon's start document out of what only the container knows.

Shipped as text beside the zipapp, never imported by ours. Python 3.6 syntax, standard library only. `SANDMAN_START`
holds the JSON that sandbox/kube/manifest.py writes: `argv` (of the daemon, with `argv[0]` to be replaced), `config_fd`,
`document` (the daemon's, to be completed), `defaults` (variables that the image may override), `cpus` and `pick` (see
`_limit_cpus`), `umask`, and `open_files` (or null). The image's own environment and working directory are kept; what
Kubernetes adds is left out.
"""

import json
import os
import sys

PIPE_BYTES = 1 << 20


def main() -> None:
    """Complete the document, hand it over through a pipe, and become the daemon under the same process id."""
    environment = dict(os.environ)
    start = json.loads(environment.pop("SANDMAN_START"))
    document = start["document"]
    given = document.get("env") or {}
    document["env"] = dict(start["defaults"])
    document["env"].update(item for item in environment.items() if not _is_kubernetes(item[0]))
    document["env"].update(given)
    if not document.get("workdir"):
        document["workdir"] = os.getcwd()
    if start.get("cpus"):
        _limit_cpus(start["cpus"], start["pick"])
    if start.get("open_files"):
        _limit_open_files(start["open_files"])
    os.umask(start["umask"])
    _hand_over(json.dumps(document).encode("ascii"), start["config_fd"])
    os.execve(sys.executable, [sys.executable] + start["argv"][1:], environment)


def _is_kubernetes(name: str) -> bool:
    return name.startswith("KUBERNETES_") or name in ("HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_")


def _limit_cpus(count: int, pick: int) -> None:
    """Let the sandbox see `count` of the node's CPUs, from the one that `pick` chooses; the quota is the kernel's."""
    allowed = sorted(os.sched_getaffinity(0))
    if count < len(allowed):
        first = pick % len(allowed)
        os.sched_setaffinity(0, {allowed[(first + index) % len(allowed)] for index in range(count)})


def _limit_open_files(count: int) -> None:
    """As many as asked for, or as the node allows; the provider reads back which."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))


def _hand_over(data: bytes, fd: int) -> None:
    """Put `data` into a pipe whose reading end is `fd`, to be inherited. It must fit into the pipe."""
    import fcntl

    read_end, write_end = os.pipe()
    if len(data) > 65536:
        fcntl.fcntl(write_end, 1031, PIPE_BYTES)  # F_SETPIPE_SZ
    os.set_blocking(write_end, False)
    if os.write(write_end, data) != len(data):
        sys.exit("sandman: the start document of %d bytes does not fit into a pipe; give fewer variables" % len(data))
    os.close(write_end)
    os.dup2(read_end, fd, inheritable=True)
    if read_end != fd:
        os.close(read_end)


if __name__ == "__main__":
    main()
