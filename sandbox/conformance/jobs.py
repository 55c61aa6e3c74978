"""Jobs: commands that go on by themselves under an id."""

from __future__ import annotations

import signal

from sandbox.conformance.subject import TIMEOUT_S, Check, Subject, expect, output
from sandbox.errors import SandboxError


async def a_job_goes_on_by_itself(subject: Subject) -> None:
    """A job begins where its session is, is read while it runs, found by its id, and its end is kept."""
    async with subject.provider.sandbox(subject.spec) as box:
        await output(box, "cd /tmp; export GIVEN=yes")
        job = await box.start("echo $PWD $GIVEN; until [ -e /tmp/go ]; do sleep 0.02; done; exit 5")
        expect(b"/tmp yes\n", (await job.read(wait_s=TIMEOUT_S)).data, "its first output")
        expect(None, await job.poll(), "it runs")
        expect([job.id], [one.id for one in await box.jobs()], "the jobs")
        await output(box, "touch /tmp/go")
        result = await box.job(job.id).wait(timeout_s=TIMEOUT_S)
        expect((5, b"/tmp yes\n"), result and (result.exit_code, result.output), "its end")


async def a_job_is_signalled(subject: Subject) -> None:
    """A signal reaches the job's processes; an unknown id is refused."""
    async with subject.provider.sandbox(subject.spec) as box:
        # A process of its own that is there once it has spoken, with no trap of a shell left in it.
        job = await box.start("(echo on; exec sleep 600)")
        await job.read(wait_s=TIMEOUT_S)
        expect(True, await job.signal(signal.SIGTERM) > 0, "that its process was found")
        result = await job.wait(timeout_s=TIMEOUT_S)
        expect(128 + signal.SIGTERM, result and result.exit_code, "its exit code")
        try:
            await box.job("no such job").poll()
        except SandboxError as refused:
            expect("unknown_exec", getattr(refused, "code", None), "the code")
        else:
            raise AssertionError("a job that never was answers")


async def a_reset_kills_what_a_session_runs(subject: Subject) -> None:
    """After a reset nothing of the session runs and its next command has a new shell; other sessions go on."""
    async with subject.provider.sandbox(subject.spec) as box:
        await output(box, "x=1; sleep 654321 & cd /tmp")
        await output(box, "y=1", session="other")
        await box.reset()
        expect(b"0\n", await output(box, "grep -l 65432[1] /proc/[0-9]*/cmdline 2>/dev/null | wc -l"), "processes")
        expect(b":\n", await output(box, "echo $x:"), "a variable")
        expect(b"1\n", await output(box, "echo $y", session="other"), "another session's variable")


CHECKS: tuple[Check, ...] = (a_job_goes_on_by_itself, a_job_is_signalled, a_reset_kills_what_a_session_runs)
