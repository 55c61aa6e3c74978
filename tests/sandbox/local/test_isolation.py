"""Nothing of the host is in a sandbox's reach but the programs that it is given. Each test tries, as root inside."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from sandbox import LocalConfig, SandboxSpec, open_provider
from sandbox.local.provider import LocalProvider
from sandbox.local.seccomp import ARCHITECTURES, DENIED
from sandbox.provider import Sandbox
from sandbox.testing import output

pytestmark = pytest.mark.anyio

HOST = SandboxSpec(image="host")
TIMEOUT_S = 30.0


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(LocalConfig(state_dir=tmp_path)) as provider:
        yield provider


@pytest.fixture
async def box(provider: LocalProvider) -> AsyncIterator[Sandbox]:
    async with provider.sandbox(HOST) as box:
        yield box


@pytest.fixture(
    params=[Path.home(), Path("/home"), Path("/tmp"), Path("/var/tmp"), Path("/opt"), Path("/srv")], ids=str
)
def canary_file(request: pytest.FixtureRequest) -> Iterator[Path]:
    path = request.param / f"canary-{secrets.token_hex(8)}"
    try:
        path.write_text("secret")
    except OSError as error:
        pytest.skip(f"this user may not write to {request.param}: {error.strerror}")
    yield path
    path.unlink()


async def status(box: Sandbox, command: str) -> int:
    return (await box.run(command, timeout_s=TIMEOUT_S)).exit_code


async def test_files_of_the_host_are_out_of_reach(box: Sandbox, canary_file: Path) -> None:
    """A file in the host's home, temporary or data directories is neither at its path nor anywhere else."""
    assert 0 != await status(box, f"cat {canary_file}")
    found = await output(
        box, f"find / -xdev -name {canary_file.name} 2>/dev/null; ls -d /oldroot /newroot 2>/dev/null || :"
    )
    assert b"" == found


async def test_files_below_the_state_directory_are_out_of_reach(box: Sandbox, tmp_path: Path) -> None:
    """The provider's own directories do not exist inside."""
    assert 0 != await status(box, f"ls {tmp_path}")


async def test_password_files_are_our_own(box: Sandbox) -> None:
    """The sandbox has no shadow file, and no users but its own."""
    assert 0 != await status(box, "cat /etc/shadow")
    assert b"root\nnobody\n" == await output(box, "cut -d: -f1 /etc/passwd")


async def test_private_keys_of_the_host_are_out_of_reach(box: Sandbox) -> None:
    """CA certificates are there; the directory of private keys and ssh's configuration are not."""
    assert 0 != await status(box, "ls /etc/ssl/private")
    assert 0 != await status(box, "ls /etc/ssh")


async def test_programs_of_the_host_are_read_only(box: Sandbox) -> None:
    """Root inside can write neither to `/usr` nor through the links into it, nor remount it."""
    for command in ("touch /usr/canary", "touch /bin/canary", "mount -o remount,rw /usr", "umount -l /usr"):
        assert 0 != await status(box, command), command


async def test_the_environment_of_the_host_does_not_enter(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable of the provider's process is in any process's environment inside."""
    monkeypatch.setenv("CANARY_TOKEN", "canary-value")
    async with provider.sandbox(HOST) as box:
        seen = await output(box, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
        assert b"CANARY" not in seen
        assert b"canary-value" not in seen
        assert b"SANDMAN_INSTANCE" not in seen


async def test_processes_of_the_host_are_invisible(box: Sandbox) -> None:
    """The only processes are the sandbox's own: its first is execd, and there are a handful."""
    pids = [int(pid) for pid in (await output(box, "cd /proc; echo [0-9]*")).split()]
    assert 1 in pids
    assert len(pids) < 10
    assert b"execd" in await output(box, "tr '\\0' ' ' < /proc/1/cmdline")


async def test_processes_of_the_host_cannot_be_signalled(box: Sandbox) -> None:
    """`kill -9 -1` and a kill of the provider's own pid, as root inside, hit nothing outside and not execd."""
    await box.run(f"kill -9 {os.getpid()}; kill -9 -1", timeout_s=TIMEOUT_S)
    assert b"alive\n" == await output(box, "echo alive")


@pytest.mark.parametrize(
    "path", ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger"]
)
async def test_kernel_settings_cannot_be_written(box: Sandbox, path: str) -> None:
    """Writing a setting of the whole machine fails, even where the sandbox's root is the machine's."""
    before = await _setting(path)
    assert 0 != await status(box, f"echo canary > {path}")
    assert before == await _setting(path)


async def _setting(path: str) -> bytes:
    with suppress(OSError):
        return Path(path).read_bytes()
    return b""


async def test_no_setting_at_all_can_be_opened_for_writing(box: Sandbox) -> None:
    """Of all files below /proc/sys, /proc/fs, /proc/irq, /proc/bus and /sys none can be opened for writing."""
    await box.write("/tmp/control/file", b"")
    script = """
import os
for top in ("/proc/sys", "/proc/fs", "/proc/irq", "/proc/bus", "/proc/acpi", "/sys", "/tmp/control"):
    for folder, _, names in os.walk(top):
        for name in names:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                continue
            print(folder, name)
"""
    assert b"/tmp/control file\n" == await output(box, "python3 -", stdin=script.encode())


async def test_no_more_power_can_be_had(box: Sandbox) -> None:
    """No further user namespace, mount, device node or kernel log; set-user-id programs give nothing."""
    commands = ("unshare -U true", "unshare -m true", "mount -t tmpfs x /mnt", "mknod /tmp/sda b 8 0", "dmesg")
    for command in commands:
        assert 0 != await status(box, command), command
    assert b"NoNewPrivs:\t1\n" == await output(box, "grep NoNewPrivs /proc/self/status")


@pytest.mark.parametrize("name", sorted(DENIED))
async def test_calls_that_no_namespace_divides_are_denied(box: Sandbox, name: str) -> None:
    """Keyrings, BPF, performance events, io_uring and userfaultfd answer EPERM; other calls are not touched."""
    if os.uname().machine not in ARCHITECTURES:
        pytest.skip(f"no filter is known for {os.uname().machine}")
    number = DENIED[name][ARCHITECTURES[os.uname().machine][0][1]]
    call = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall({}, 0, -3, 0), ctypes.get_errno())"
    assert b"-1 1\n" == await output(box, f"python3 -c '{call.format(number)}'")
    allowed = {"x86_64": 39, "aarch64": 172}[os.uname().machine]  # getpid
    assert b"-1" not in await output(box, f"python3 -c '{call.format(allowed)}'")


async def test_the_first_process_keeps_its_limits(box: Sandbox) -> None:
    """No command can end the daemon by its resource limits; a process sets its own as ever."""
    if os.uname().machine not in ARCHITECTURES:
        pytest.skip(f"no filter is known for {os.uname().machine}")
    for limit in ("AS", "NOFILE"):
        script = f"import resource; resource.prlimit(1, resource.RLIMIT_{limit}, (1, 1))"
        assert b"PermissionError" in (await box.run(f"python3 -c '{script}'", timeout_s=TIMEOUT_S)).output
    own = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (99, 99)); print(r.getrlimit(r.RLIMIT_NOFILE))"
    assert b"(99, 99)\n77\n" == await output(box, f"python3 -c '{own}'; (ulimit -n 77; ulimit -n)")


async def test_the_root_cannot_be_left(box: Sandbox) -> None:
    """The classic way out of a chroot ends at the sandbox's own root."""
    script = """
import os
os.makedirs("/tmp/jail"); fd = os.open("/", os.O_RDONLY); os.chroot("/tmp/jail"); os.fchdir(fd)
for _ in range(64):
    os.chdir("..")
os.chroot(".")
print(sorted(os.listdir("/")))
"""
    inside = await output(box, "python3 -c 'import os; print(sorted(os.listdir(\"/\")))'")
    assert inside == await output(box, "python3 -", stdin=script.encode())


async def test_the_first_process_cannot_be_traced(box: Sandbox) -> None:
    """Its memory, descriptors and trace are closed to root inside, so nobody can take its listening socket."""
    assert 0 != await status(box, "head -c 1 /proc/1/mem")
    assert 0 != await status(box, "ls /proc/1/fd/0")
    trace = "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0)"
    assert b"" == await output(box, f'python3 -c "{trace}"')


async def test_the_token_cannot_be_found(provider: LocalProvider) -> None:
    """Searching every readable file, as root inside, meets the daemon's token only where the test put it."""
    async with provider.sandbox(HOST) as box:
        token = provider._cells[box.identity.sandbox_id].token
        await box.write("/tmp/control", token.encode())
        search = f"""
import os
needle = "".join(({token[:20]!r}, {token[20:]!r})).encode()
mine = (str(os.getpid()), "self", "thread-self")
for top in ("/proc", "/dev/shm", "/dev/execd.pyz", "/run", "/tmp", "/etc", "/root", "/var"):
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in mine]
        for name in names:
            path = os.path.join(folder, name)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                data = b""
                while name != "pagemap" and len(data) < 1 << 22 and (piece := os.read(fd, 1 << 16)):
                    data += piece
                os.close(fd)
            except OSError:
                continue
            if needle in data:
                print(path)
"""
        assert b"/tmp/control\n" == await output(box, "python3 -", stdin=search.encode())
        assert 0 != await status(box, "cat /proc/1/environ | grep .")


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()


async def test_the_hosts_loopback_is_out_of_reach(box: Sandbox, listener: tuple[str, int]) -> None:
    """With egress denied a service on the host's 127.0.0.1 is not there, and neither is execd's port of a neighbour."""
    assert 0 != await status(box, f"exec 9<>/dev/tcp/127.0.0.1/{listener[1]}")
    assert "unreachable" == (await box.facts(canary=listener)).canary


async def test_no_address_but_loopback_can_be_reached(box: Sandbox) -> None:
    """With egress denied there is no interface but lo and no route: a connect fails at once with that reason."""
    assert ("lo",) == (await box.facts()).interfaces
    addresses = [("192.0.2.1", 80), *_host_addresses()]
    for address, port in addresses:
        script = f"""
import errno, socket
try:
    socket.create_connection(({address!r}, {port}), timeout=5)
except OSError as error:
    print(errno.errorcode[error.errno])
"""
        assert await output(box, "python3 -", stdin=script.encode()) in {b"ENETUNREACH\n", b"EADDRNOTAVAIL\n"}, address


def _host_addresses() -> list[tuple[str, int]]:
    """The host's own addresses, where it has one that is not loopback."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses a source address
        return [(probe.getsockname()[0], 80)]
    return []


async def test_abstract_sockets_of_the_host_are_out_of_reach(box: Sandbox) -> None:
    """An abstract unix socket of the host, which has no path to hide, does not exist inside."""
    name = f"canary-{secrets.token_hex(8)}"
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        script = f'import socket; socket.socket(socket.AF_UNIX).connect("\\0{name}")'
        assert 0 != await status(box, f"python3 -c '{script}'")
        assert name.encode() not in await output(box, "cat /proc/net/unix")


async def test_shared_memory_of_the_host_is_out_of_reach(box: Sandbox) -> None:
    """/dev/shm is the sandbox's own, and so are System V segments."""
    path = Path("/dev/shm", f"canary-{secrets.token_hex(8)}")
    path.write_text("secret")
    try:
        assert b"0\n" == await output(box, "ls -A /dev/shm | wc -l")
    finally:
        path.unlink()
    await output(box, "echo x > /dev/shm/mine && rm /dev/shm/mine")


async def test_a_python_outside_usr_is_bound_alone(tmp_path: Path) -> None:
    """When the host's Python lies elsewhere, its prefix is there, read-only, and its neighbours are not."""
    import sys

    from sandbox.local.host import survey

    if Path(sys.base_prefix).is_relative_to("/usr"):
        pytest.skip("this interpreter lies under /usr")
    programs = survey(python=Path(sys.base_prefix, "bin", "python3"))
    binds = [bind for bind in programs.binds if not str(bind.source).startswith(("/usr", "/etc"))]
    assert [(Path(sys.base_prefix), sys.base_prefix, False)] == [(b.source, b.target, b.writable) for b in binds]


async def test_open_provider_gives_what_these_tests_open(tmp_path: Path) -> None:
    """The public door opens the same provider."""
    async with open_provider(LocalConfig(state_dir=tmp_path)) as provider, provider.sandbox(HOST) as box:
        assert "local" == box.identity.provider
