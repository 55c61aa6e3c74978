"""Processes: this one's protection, the trees below it, and the exec of a shell.

A shell is a child subreaper (the attribute outlives exec): whatever its commands double-fork or setsid away stays below
that shell, so that a command's tree can be found and killed as a whole.
"""

import os
from _signal import SIGCONT, SIGKILL, SIGSTOP

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
SCANS = 3
KILL_ROUNDS = 200
ROUNDS_BEFORE_STROKE = 20
SURE_ROUNDS = 3


def prctl(option, value):
    """Call prctl(2). False when this interpreter cannot call C functions or the kernel refuses."""
    try:
        import _ctypes  # the ctypes package on top of it costs several milliseconds

        return _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl"), (option, value, 0, 0, 0)) == 0
    except (ImportError, AttributeError, OSError, TypeError, ValueError):
        return False


def give_memory_back():
    """Return freed memory to the system, where the C library can; it keeps what lies between its allocations."""
    try:
        import _ctypes

        _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 2), "malloc_trim"), (0,))
    except (ImportError, AttributeError, OSError, TypeError, ValueError):
        pass


def outside_signals(numbers):
    """A descriptor from which `senders` reads the given signals, which are blocked from now on; None if impossible."""
    try:
        import _ctypes
        import _signal

        mask = sum(1 << (number - 1) for number in numbers).to_bytes(128, "little")
        function = _ctypes.dlsym(_ctypes.dlopen(None, 2), "signalfd")
        fd = _ctypes.call_function(function, (-1, mask, os.O_NONBLOCK | os.O_CLOEXEC))
        if fd >= 0:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)
            return fd
    except (ImportError, AttributeError, OSError, TypeError, ValueError):
        pass
    return None


def senders(fd):
    """The pids that sent the signals that wait on the descriptor; 0 is a process outside this pid namespace."""
    data = os.read(fd, 128 * 32)
    return [int.from_bytes(data[at + 12 : at + 16], "little") for at in range(0, len(data), 128)]


def protect_self():
    """Let nothing in the sandbox trace this process or take its descriptors; adopt orphans even when not PID 1."""
    return {"undumpable": prctl(PR_SET_DUMPABLE, 0), "subreaper": prctl(PR_SET_CHILD_SUBREAPER, 1) or os.getpid() == 1}


def _stat_fields(pid):
    """(state, parent, start tick, group) of a process, or None. The name in parentheses may hold anything.

    The state is of the first thread, and where that alone has ended while others go on, it is none that has ended.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        state = b"S" if fields[0] in b"ZX" and int(fields[17]) > 1 else fields[0]
        return state, int(fields[1]), int(fields[19]), int(fields[2])
    except (OSError, ValueError, IndexError):
        return None


def _children_by_scan():
    """{parent: [(pid, start tick)]} of all living processes. A parent that ends while it is looked for has left its
    children to another: then all is looked at again."""
    for _ in range(SCANS):
        children, listed = {}, {0}  # 0: a parent outside of this namespace
        try:
            names = os.listdir("/proc")
        except OSError:
            return {}
        for name in names:
            if name.isdigit():
                fields = _stat_fields(int(name))
                if fields is not None and fields[0] not in b"ZX":
                    listed.add(int(name))
                    children.setdefault(fields[1], []).append((int(name), fields[2]))
        if listed.issuperset(children):
            break
    return children


def children(pid):
    """The pids of a process's living children and zombies."""
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), "rb") as stream:
            return [int(child) for child in stream.read().split()]
    except OSError:
        return [child for child, _start in _children_by_scan().get(pid, [])]


def identity(pid):
    """(pid, start tick) of a living process, or None. A pid alone may soon be another's."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in b"ZX" else (pid, fields[2])


def still_there(processes):
    """The (pid, start tick) that still have their pids, zombies among them."""
    return {(pid, start) for pid, start in processes if (_stat_fields(pid) or (b"", 0, None))[2] == start}


def is_running(pid):
    """Whether a process runs or waits for nothing but a processor."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] == b"R"


def has_children(pid):
    """Whether a process has children. True when it cannot be told cheaply."""
    try:
        fd = os.open("/proc/%d/task/%d/children" % (pid, pid), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return bool(os.read(fd, 1))
    except OSError:
        return True
    finally:
        os.close(fd)


def descendants(root, spared=frozenset()):
    """{(pid, start tick)} of all living processes below `root`. Subtrees whose head is in `spared` are left out.

    One look decides who is whose child: a link of a chain of forks that has ended since still leads to the next one.
    """
    children = _children_by_scan()
    found = set()
    waiting = list(children.get(root, ()))
    while waiting:
        process = waiting.pop()
        if process not in spared and process not in found:
            found.add(process)
            waiting.extend(children.get(process[0], ()))
    return found


def kill_trees(find):
    """STOP and then KILL what `find()` gives, until it gives nothing new: what is stopped forks no more. Bounded.
    Returns {(pid, start tick)} of what got the KILL; until a parent has reaped it, it still has its pid.

    Whole process groups are stopped: the kernel does that at one stroke, which no chain of forks can outrun. Members
    that are to live (a shell, its earlier jobs) are continued at the end. A chain of which every link makes a group of
    its own can outrun that, and slip through the lists of processes: nothing found counts when no pid was given out
    meanwhile. Where that does not come, PID 1 of a namespace stops all that is in it, at one stroke, and looks then.
    """
    stopped, groups, halted = set(), set(), None
    alone = os.getpid() == 1
    for number in range(KILL_ROUNDS):
        last_pid = _last_pid()
        new = find() - stopped
        if not new and (halted is not None or last_pid == _last_pid() or (not alone and number >= SURE_ROUNDS)):
            break
        if alone and number >= ROUNDS_BEFORE_STROKE:
            halted = _halted() if halted is None else halted
            send_signal(-1, SIGSTOP)
        for pid, _start in new:
            fields = _stat_fields(pid)
            if fields is not None and fields[3] not in groups and fields[3] not in (0, os.getpgrp()):
                groups.add(fields[3])
                send_signal(-fields[3], SIGSTOP)
        signal_all(new, SIGSTOP)
        stopped |= new
    signal_all(stopped, SIGKILL)
    for group in groups:
        send_signal(-group, SIGCONT)
    if halted is not None:
        signal_all(descendants(os.getpid()) - halted, SIGCONT)
    return stopped


def _last_pid():
    """The pid that was given out last in this namespace; None when it cannot be read."""
    try:
        with open("/proc/loadavg", "rb") as stream:
            return int(stream.read().split()[4])
    except (OSError, ValueError, IndexError):
        return None


def _halted():
    """{(pid, start tick)} of the processes that somebody else has stopped."""
    everyone = descendants(os.getpid())
    return {(pid, start) for pid, start in everyone if (_stat_fields(pid) or (b"",))[0] in (b"T", b"t")}


def signal_all(processes, number):
    """Send a signal to each (pid, start tick) that is still the same process."""
    for pid, start in processes:
        fields = _stat_fields(pid)
        if fields is not None and fields[2] == start:
            send_signal(pid, number)


def send_signal(pid, number):
    """Send a signal; a process that is gone or not ours to signal is no error."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def exit_code(status):
    """0-255, or 128+N for signal N, of a wait status."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def spawn(path, argv, env, cwd, descriptors, user=None):  # noqa: PLR0917
    """Start a program in a session of its own and return its pid. `descriptors` maps its descriptors to ours.

    Returns once the program has been executed. Raises OSError with the errno of the step that failed.
    """
    report_r, report_w = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(report_r)
        os.close(report_w)
        raise
    if pid == 0:
        _become(path, argv, env, cwd, descriptors, user, report_w)
    os.close(report_w)
    with open(report_r, "rb") as stream:
        failure = stream.read(16)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)))
    return pid


def _become(path, argv, env, cwd, descriptors, user, report_w):  # noqa: PLR0917
    """In the child: never returns, never runs anything of the parent's."""
    try:
        import _signal
        import fcntl

        for number in (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGINT, _signal.SIGTERM, _signal.SIGCHLD):
            _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
        os.setsid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        report_w = fcntl.fcntl(report_w, fcntl.F_DUPFD_CLOEXEC, 100)
        above = {target: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 100) for target, source in descriptors.items()}
        for target, source in above.items():
            os.dup2(source, target)
        if user is not None:
            os.setgroups(user[2])
            os.setgid(user[1])
            os.setuid(user[0])
        try:
            os.chdir(cwd)
        except OSError:
            os.chdir("/")
        os.execve(path, argv, env)
    except OSError as error:
        os.write(report_w, b"%d" % error.errno)
    finally:
        os._exit(127)
