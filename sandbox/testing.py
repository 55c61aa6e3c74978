"""The conformance suite: what every provider must do, as checks that any test runner can call.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_conformance(check, subject):
        await check(subject)

A check takes a `Subject` (an open provider, a spec that works with it, the facts that only its tester knows) and
raises `AssertionError` when the provider does otherwise. `LIFECYCLE_CHECKS` open and close providers of their own.
Nothing here is particular to one provider; each check's docstring is the claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.errors import AcquireTimeout, FileRefused, ImageError, SandboxError, SandboxLost
from sandbox.provider import Provider, Sandbox
from sandbox.spec import Chunk, ExecResult, SandboxSpec

ALL_BYTES = bytes(range(256))
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Subject:
    """A provider under test."""

    provider: Provider
    spec: SandboxSpec
    """Works with the provider; egress denied."""
    canary: tuple[str, int] | None = None
    """An address at which something listens that `egress="open"` reaches and `denied` must not. None: not checked."""
    missing_image: str = "sha256:" + "0" * 64
    """A well-formed reference that leads nowhere."""


@dataclass(frozen=True)
class LifecycleSubject:
    """How to open the provider under test, and how to find what it left, without asking it."""

    open: Callable[[], AbstractAsyncContextManager[Provider]]
    spec: SandboxSpec
    leftovers: Callable[[], Sequence[str]]
    """A line per process, mount, directory or remote object that is still there."""
    settle_s: float = 10.0
    """How long a released sandbox may take to disappear while its provider stays open."""


Check = Callable[[Subject], Awaitable[None]]
LifecycleCheck = Callable[[LifecycleSubject], Awaitable[None]]


async def output(box: Sandbox, command: str, **options: Any) -> bytes:
    """What a command that must succeed wrote."""
    result = await box.run(command, **{"timeout_s": TIMEOUT_S, **options})
    expect(0, result.exit_code, f"exit code of {command!r}, which wrote {result.output[-500:]!r}")
    return result.output


def expect(expected: object, found: object, what: str) -> None:
    """Raise `AssertionError` unless both are equal."""
    if expected != found:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


@contextlib.contextmanager
def expect_raises(kind: type[BaseException], what: str) -> Any:
    """Raise `AssertionError` unless the body raises `kind`."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{what}: expected {kind.__name__}, and nothing was raised")


# -- identity ----------------------------------------------------------------------------------------------------------


async def a_sandbox_was_never_used(subject: Subject) -> None:
    """The identity proves that no command ran and no caller had it before, and names two sandboxes apart."""
    async with subject.provider.sandbox(subject.spec) as first, subject.provider.sandbox(subject.spec) as second:
        for box in (first, second):
            expect(True, box.identity.never_used, "never used")
            expect(subject.spec.image, box.identity.image_ref, "the image asked for")
            expect(True, box.identity.image_digest.startswith("sha256:"), "an image digest")
        expect(True, first.identity.sandbox_id != second.identity.sandbox_id, "distinct sandbox ids")
        expect(True, first.identity.boot_id != second.identity.boot_id, "distinct boot ids")


async def phases_are_timed(subject: Subject) -> None:
    """Each phase of the create has its own time, in seconds, and none is longer than the whole."""
    began = time.monotonic()
    async with subject.provider.sandbox(subject.spec) as box:
        took = time.monotonic() - began
        times = [value for value in vars(box.phases).values() if value is not None]
        expect(True, box.phases.daemon_s is not None, "the daemon phase is timed")
        expect(True, all(0 <= value <= took for value in times) and sum(times) <= took, f"phases {times} within {took}")


async def two_sandboxes_do_not_see_each_other(subject: Subject) -> None:
    """Files and processes of one sandbox do not exist in another."""
    async with subject.provider.sandbox(subject.spec) as first, subject.provider.sandbox(subject.spec) as second:
        await first.write("/tmp/mine", b"mine")
        await output(first, "sleep 987654 & echo started")
        with expect_raises(FileRefused, "reading another sandbox's file"):
            await second.read("/tmp/mine")
        seen = await output(second, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
        expect(False, b"987654" in seen, "another sandbox's process is visible")


# -- commands ----------------------------------------------------------------------------------------------------------


async def output_is_bytes_in_order(subject: Subject) -> None:
    """stdout and stderr come as written, byte for byte, in one order."""
    async with subject.provider.sandbox(subject.spec) as box:
        result = await box.run(r"printf 'a\r\n\0\377'; printf b >&2; printf c", timeout_s=TIMEOUT_S)
        expect(b"a\r\n\0\xffbc", result.output, "output")
        expect((0, False, False), (result.exit_code, result.truncated, result.timed_out), "exit, truncated, timed out")


async def the_shell_keeps_its_state(subject: Subject) -> None:
    """Directory, variables, functions and `$?` last from call to call; another session has its own."""
    async with subject.provider.sandbox(subject.spec) as box:
        await box.run("cd /tmp; x=5; f() { echo f$x; }; (exit 4)", timeout_s=TIMEOUT_S)
        expect(b"4 /tmp f5\n", await output(box, 'echo "$? $PWD $(f)"'), "state")
        expect(b"\n", await output(box, 'echo "$x"', session="other"), "another session's variable")


async def a_failing_command_is_a_result(subject: Subject) -> None:
    """Exit codes, signals, unknown commands and syntax errors are results, not exceptions."""
    async with subject.provider.sandbox(subject.spec) as box:
        for command, code in (("(exit 3)", 3), ("bash -c 'kill -9 $$'", 137), ("no-such-command-here", 127)):
            result = await box.run(command, timeout_s=TIMEOUT_S)
            expect((code, False), (result.exit_code, result.shell_restarted), command)
        result = await box.run("if then", timeout_s=TIMEOUT_S)
        expect(False, result.exit_code == 0, "a syntax error succeeds")


async def a_shell_that_ends_is_replaced(subject: Subject) -> None:
    """`exit 7` is a result with 7, and the next command runs in the same directory."""
    async with subject.provider.sandbox(subject.spec) as box:
        await output(box, "cd /usr; export KEPT=yes")
        result = await box.run("exit 7", timeout_s=TIMEOUT_S)
        expect((7, True), (result.exit_code, result.shell_restarted), "exit 7")
        expect(b"/usr yes\n", await output(box, "echo $PWD $KEPT"), "directory and environment")


async def stdin_is_what_was_given(subject: Subject) -> None:
    """A command reads exactly the bytes given, and end of file when none are; the next command is not eaten."""
    async with subject.provider.sandbox(subject.spec) as box:
        expect(ALL_BYTES, await output(box, "cat", stdin=ALL_BYTES), "stdin")
        expect(b"", await output(box, "cat"), "no stdin")
        expect(b"next\n", await output(box, "echo next"), "the next command")


async def a_time_out_keeps_the_partial_output(subject: Subject) -> None:
    """At the time-out the command's whole tree is killed and what it wrote is in the result."""
    async with subject.provider.sandbox(subject.spec) as box:
        began = time.monotonic()
        result = await box.run("echo before; (sleep 876543 & sleep 876543)", timeout_s=1)
        expect((True, b"before\n"), (result.timed_out, result.output[:7]), "timed out, output")
        expect(True, time.monotonic() - began < 15, "the time-out ends the wait")
        expect(b"0\n", await output(box, "grep -l 87654[3] /proc/[0-9]*/cmdline 2>/dev/null | wc -l"), "killed")


async def long_output_keeps_head_and_tail(subject: Subject) -> None:
    """Output above the cap loses its middle only, is flagged, and its whole length is known."""
    async with subject.provider.sandbox(subject.spec) as box:
        command = "echo HEAD; head -c 300000 /dev/zero; echo TAIL"
        result = await box.run(command, timeout_s=TIMEOUT_S, max_output_bytes=10_000)
        expect((True, 300_010), (result.truncated, result.output_bytes), "truncated, whole length")
        expect(True, result.output.startswith(b"HEAD\n") and result.output.endswith(b"TAIL\n"), "head and tail")
        expect(True, len(result.output) <= 10_000, "at most the cap")


async def a_stream_comes_in_pieces(subject: Subject) -> None:
    """Output arrives while the command runs; offsets follow on; the result comes last."""
    async with subject.provider.sandbox(subject.spec) as box:
        items: list[Chunk | ExecResult] = []
        command = "echo one; until [ -e /tmp/go ]; do sleep 0.05; done; echo two"
        async for item in box.stream(command, timeout_s=TIMEOUT_S):
            if not items:
                await box.write("/tmp/go", b"")  # the command can only end because its first piece came before
            items.append(item)
        *chunks, last = items
        expect(True, isinstance(last, ExecResult) and last.exit_code == 0, "the result comes last")
        joined = b""
        for chunk in chunks:
            assert isinstance(chunk, Chunk)
            expect(len(joined), chunk.offset, "offset")
            joined += chunk.data
        expect(b"one\ntwo\n", joined, "all of the output")


async def a_cancelled_run_kills_its_command(subject: Subject) -> None:
    """When the caller gives up, the command's processes end, and the sandbox goes on working."""
    async with subject.provider.sandbox(subject.spec) as box:
        task = asyncio.create_task(box.run("touch /tmp/started; sleep 765432", timeout_s=600))
        await _until_exists(box, "/tmp/started")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        count = "grep -l 76543[2] /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
        deadline = time.monotonic() + 10
        left = await output(box, count, session="look")
        while left != b"0\n" and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            left = await output(box, count, session="look")
        expect(b"0\n", left, "processes of the cancelled command")
        expect(b"on\n", await output(box, "echo on"), "the session after it")


async def _until_exists(box: Sandbox, path: str) -> None:
    await output(box, f"until [ -e {path} ]; do sleep 0.02; done", session="wait")


# -- files -------------------------------------------------------------------------------------------------------------


async def what_is_written_is_read_back(subject: Subject) -> None:
    """Every byte of small, empty and large files; ranges; parents are made; the mode is set and kept."""
    async with subject.provider.sandbox(subject.spec) as box:
        for data in (b"", ALL_BYTES, ALL_BYTES * 8192):
            await box.write("/tmp/deep/er/file", data)
            expect(True, data == await box.read("/tmp/deep/er/file"), f"{len(data)} bytes read back")
        expect(ALL_BYTES[10:30], await box.read("/tmp/deep/er/file", offset=10, limit=20), "a range")
        await box.write("/tmp/deep/er/file", b"#!/bin/sh\necho ran\n", mode=0o755)
        await box.write("/tmp/deep/er/file", b"#!/bin/sh\necho again\n")
        expect(b"again\n", await output(box, "/tmp/deep/er/file"), "the mode is kept")


async def a_missing_file_is_refused(subject: Subject) -> None:
    """Reading what is not there, or a directory, raises `FileRefused`."""
    async with subject.provider.sandbox(subject.spec) as box:
        for path in ("/no/such/file", "/tmp"):
            with expect_raises(FileRefused, f"reading {path}"):
                await box.read(path)


async def trees_travel_both_ways(subject: Subject) -> None:
    """A tree that is uploaded and downloaded again has the same files, links and modes."""
    with tempfile.TemporaryDirectory() as directory:
        there, back = Path(directory, "there"), Path(directory, "back")
        _make_tree(there)
        async with subject.provider.sandbox(subject.spec) as box:
            await box.upload(there, "/tmp/tree")
            expect(b"inner\n", await output(box, "cat /tmp/tree/sub/link"), "through the link")
            await box.download("/tmp/tree", back)
            await box.upload(there / "run.sh", "/tmp/one")
            expect(b"ran\n", await output(box, "/tmp/one"), "one file, its mode kept")
        expect(_manifest(there), _manifest(back), "the tree")


def _make_tree(top: Path) -> None:
    (top / "sub").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "sub" / "inner").write_bytes(b"inner\n")
    (top / "sub" / "link").symlink_to("inner")
    (top / "bytes é \n.bin").write_bytes(ALL_BYTES)
    (top / "run.sh").write_bytes(b"#!/bin/sh\necho ran\n")
    (top / "run.sh").chmod(0o755)


def _manifest(top: Path) -> dict[str, object]:
    manifest: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            manifest[name] = ("link", str(path.readlink()))
        else:
            manifest[name] = ("file", path.stat().st_mode & 0o777, path.read_bytes()) if path.is_file() else "directory"
    return manifest


# -- the place ---------------------------------------------------------------------------------------------------------


async def the_spec_sets_environment_and_directory(subject: Subject) -> None:
    """The spec's variables are there, in the spec's directory, in every session."""
    spec = subject.spec.model_copy(update={"env": {"GIVEN": "a b\n'\"$c"}, "workdir": "/tmp"})
    async with subject.provider.sandbox(spec) as box:
        for session in ("main", "other"):
            expect(b"/tmp a b\n'\"$c", await output(box, 'printf "%s %s" "$PWD" "$GIVEN"', session=session), session)


async def denied_egress_reaches_loopback_only(subject: Subject) -> None:
    """With egress denied a server inside is reached over loopback, and the canary outside is not."""
    async with subject.provider.sandbox(subject.spec.model_copy(update={"egress": "denied"})) as box:
        await output(box, _LOOPBACK_SERVER)
        if subject.canary is not None:
            expect("unreachable", (await box.facts(canary=subject.canary)).canary, "the canary")


async def open_egress_reaches_the_canary(subject: Subject) -> None:
    """With egress open the canary outside is reached."""
    if subject.canary is None:
        return
    async with subject.provider.sandbox(subject.spec.model_copy(update={"egress": "open"})) as box:
        expect("reached", (await box.facts(canary=subject.canary)).canary, "the canary")


_LOOPBACK_SERVER = """
python3 - <<'END'
import socket
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
served, _ = listener.accept()
served.sendall(b"x")
assert client.recv(1) == b"x"
END
"""


async def facts_are_read_inside(subject: Subject) -> None:
    """Facts name the user, the architecture, the kernel and the network interfaces as the sandbox has them."""
    async with subject.provider.sandbox(subject.spec) as box:
        facts = await box.facts()
        expect(await output(box, "id -u"), b"%d\n" % (facts.user_id if facts.user_id is not None else -1), "user")
        expect(await output(box, "uname -m"), f"{facts.architecture}\n".encode(), "architecture")
        expect(await output(box, "uname -r"), f"{facts.kernel}\n".encode(), "kernel")
        expect(None, facts.canary, "no canary was given")


async def a_cpu_limit_is_seen_or_reported(subject: Subject) -> None:
    """A sandbox with one CPU counts one, by the shell and by Python; or the limit is in `unenforced`."""
    async with subject.provider.sandbox(subject.spec.model_copy(update={"cpus": 1})) as box:
        if "cpus" not in box.unenforced:
            expect(b"1\n", await output(box, "nproc"), "nproc")
            expect(1, (await box.facts()).visible_cpus, "visible CPUs")


async def a_memory_limit_holds_or_is_reported(subject: Subject) -> None:
    """A command that outgrows the memory limit is killed and the sandbox lives on; or the limit is in `unenforced`."""
    async with subject.provider.sandbox(subject.spec.model_copy(update={"memory_mib": 128})) as box:
        if "memory_mib" in box.unenforced:
            return
        expect(128, (await box.facts()).memory_limit_mib, "the limit that the facts name")
        result = await box.run("python3 -c 'x = b\"x\" * (400 << 20)'", timeout_s=TIMEOUT_S)
        expect(137, result.exit_code, "exit code of a command over the limit")
        expect(b"on\n", await output(box, "echo on"), "the sandbox after it")


async def a_lifetime_ends_the_sandbox(subject: Subject) -> None:
    """After its lifetime the sandbox is gone, and using it raises `SandboxLost` with that cause."""
    async with subject.provider.sandbox(subject.spec.model_copy(update={"lifetime_s": 2.0})) as box:
        await output(box, "echo on")
        try:
            await box.run("sleep 60", timeout_s=60)
        except SandboxLost as lost:
            expect("lifetime", lost.cause, "cause")
        else:
            raise AssertionError("a command outlived the sandbox's lifetime")


# -- acquiring ---------------------------------------------------------------------------------------------------------


async def a_missing_image_is_named(subject: Subject) -> None:
    """An image that is not there raises `ImageError`, and a later sandbox works."""
    with expect_raises(ImageError, "a missing image"):
        async with subject.provider.sandbox(subject.spec.model_copy(update={"image": subject.missing_image})):
            pass
    async with subject.provider.sandbox(subject.spec) as box:
        await output(box, "true")


async def an_acquire_has_a_deadline(subject: Subject) -> None:
    """When the caller's deadline passes, `AcquireTimeout` says where the time went."""
    try:
        async with subject.provider.sandbox(subject.spec, acquire_timeout_s=0.001):
            raise AssertionError("a sandbox within a millisecond")
    except AcquireTimeout as late:
        expect(True, bool(late.waited_in) and all(value >= 0 for value in late.waited_in.values()), "waited_in")


async def twenty_at_once(subject: Subject) -> None:
    """Twenty concurrent sandboxes each answer for themselves."""

    async def one(number: int) -> bytes:
        async with subject.provider.sandbox(subject.spec) as box:
            await box.write("/tmp/number", b"%d" % number)
            return await output(box, "cat /tmp/number")

    expect([b"%d" % n for n in range(20)], await asyncio.gather(*map(one, range(20))), "answers")


async def an_error_of_the_caller_passes_through(subject: Subject) -> None:
    """What the caller raises in the `with` comes out as it was."""
    with expect_raises(ZeroDivisionError, "the caller's own error"):
        async with subject.provider.sandbox(subject.spec):
            raise ZeroDivisionError


CHECKS: tuple[Check, ...] = (
    a_sandbox_was_never_used,
    phases_are_timed,
    two_sandboxes_do_not_see_each_other,
    output_is_bytes_in_order,
    the_shell_keeps_its_state,
    a_failing_command_is_a_result,
    a_shell_that_ends_is_replaced,
    stdin_is_what_was_given,
    a_time_out_keeps_the_partial_output,
    long_output_keeps_head_and_tail,
    a_stream_comes_in_pieces,
    a_cancelled_run_kills_its_command,
    what_is_written_is_read_back,
    a_missing_file_is_refused,
    trees_travel_both_ways,
    the_spec_sets_environment_and_directory,
    denied_egress_reaches_loopback_only,
    open_egress_reaches_the_canary,
    facts_are_read_inside,
    a_cpu_limit_is_seen_or_reported,
    a_memory_limit_holds_or_is_reported,
    a_lifetime_ends_the_sandbox,
    a_missing_image_is_named,
    an_acquire_has_a_deadline,
    twenty_at_once,
    an_error_of_the_caller_passes_through,
)


# -- ownership ---------------------------------------------------------------------------------------------------------


async def cancelling_twice_at_any_moment_leaves_nothing(subject: LifecycleSubject) -> None:
    """A caller that is cancelled twice, at any of many moments of its life, leaves no sandbox behind."""

    async def use(provider: Provider) -> None:
        async with provider.sandbox(subject.spec) as box:
            await box.run("sleep 30", timeout_s=60)

    async with subject.open() as provider:
        for step in range(25):
            task = asyncio.create_task(use(provider))
            await asyncio.sleep(step * 0.01)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await _expect_nothing_left(subject, sandboxes_only=True)
    await _expect_nothing_left(subject)


async def closing_deletes_what_is_still_held(subject: LifecycleSubject) -> None:
    """Leaving the provider deletes sandboxes whose callers are still in their `with`; their next call says so."""
    entered, leave = asyncio.Event(), asyncio.Event()
    heard: list[BaseException] = []

    async def hold(provider: Provider) -> None:
        async with provider.sandbox(subject.spec) as box:
            entered.set()
            await leave.wait()
            try:
                await box.run("true", timeout_s=5)
            except SandboxError as error:
                heard.append(error)

    async with subject.open() as provider:
        task = asyncio.create_task(hold(provider))
        await entered.wait()
    await _expect_nothing_left(subject)
    leave.set()
    await task
    expect([SandboxLost], [type(error) for error in heard], "what the holder hears")


async def closing_answers_those_who_wait(subject: LifecycleSubject) -> None:
    """A caller that still waits for its sandbox when the provider closes hears an error at once."""
    async with subject.open() as provider:
        task = asyncio.create_task(_enter(provider, subject.spec))
        await asyncio.sleep(0.01)
    done, _ = await asyncio.wait([task], timeout=5)
    expect(True, bool(done), "the caller is answered")
    expect(True, isinstance(task.exception(), SandboxError), f"a SandboxError, not {task.exception()!r}")
    await _expect_nothing_left(subject)


async def closing_while_creating_leaves_nothing(subject: LifecycleSubject) -> None:
    """Leaving the provider, itself cancelled twice, while sandboxes are being created leaves nothing."""

    async def own() -> None:
        async with subject.open() as provider:
            await asyncio.gather(*(_enter(provider, subject.spec) for _ in range(5)))

    for step in range(6):
        task = asyncio.create_task(own())
        await asyncio.sleep(0.02 + step * 0.08)
        task.cancel()
        await asyncio.sleep(0.001 * step)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await _expect_nothing_left(subject)


async def _enter(provider: Provider, spec: SandboxSpec) -> None:
    async with provider.sandbox(spec):
        await asyncio.sleep(30)


async def _expect_nothing_left(subject: LifecycleSubject, *, sandboxes_only: bool = False) -> None:
    deadline = time.monotonic() + subject.settle_s
    while (left := _leftovers(subject, sandboxes_only)) and time.monotonic() < deadline:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.05)
    expect([], left, "left behind")


def _leftovers(subject: LifecycleSubject, sandboxes_only: bool) -> list[str]:
    return [line for line in subject.leftovers() if not sandboxes_only or line.startswith("sandbox ")]


LIFECYCLE_CHECKS: tuple[LifecycleCheck, ...] = (
    cancelling_twice_at_any_moment_leaves_nothing,
    closing_deletes_what_is_still_held,
    closing_answers_those_who_wait,
    closing_while_creating_leaves_nothing,
)
