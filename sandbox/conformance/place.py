"""The place: who the sandbox is, what it sees, and what bounds it."""

from __future__ import annotations

import time

from sandbox.conformance.subject import TIMEOUT_S, Check, Subject, expect, expect_raises, output
from sandbox.errors import FileRefused, SandboxLost


async def a_sandbox_was_never_used(subject: Subject) -> None:
    """The identity proves that no command ran and no caller had it before, and names two sandboxes apart."""
    async with subject.provider.sandbox(subject.spec) as first, subject.provider.sandbox(subject.spec) as second:
        for box in (first, second):
            expect(True, box.identity.never_used, "never used")
            expect(subject.spec.image, box.identity.image_ref, "the image asked for")
            expect(True, box.identity.image_digest.startswith("sha256:"), "an image digest")
        expect(True, first.identity.sandbox_id != second.identity.sandbox_id, "distinct sandbox ids")
        expect(True, first.identity.boot_id != second.identity.boot_id, "distinct boot ids")
        expect((None, None), (first.trouble, second.trouble), "trouble around sandboxes that are well")


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


CHECKS: tuple[Check, ...] = (
    a_sandbox_was_never_used,
    phases_are_timed,
    two_sandboxes_do_not_see_each_other,
    the_spec_sets_environment_and_directory,
    denied_egress_reaches_loopback_only,
    open_egress_reaches_the_canary,
    facts_are_read_inside,
    a_cpu_limit_is_seen_or_reported,
    a_memory_limit_holds_or_is_reported,
    a_lifetime_ends_the_sandbox,
)
