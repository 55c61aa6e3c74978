"""Commands: bytes in order, state that lasts, ends that are told, and kills that are whole."""

from __future__ import annotations

import asyncio
import time

from sandbox.conformance.subject import ALL_BYTES, TIMEOUT_S, Check, Subject, expect, output
from sandbox.provider import Sandbox
from sandbox.spec import Chunk, ExecResult


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


CHECKS: tuple[Check, ...] = (
    output_is_bytes_in_order,
    the_shell_keeps_its_state,
    a_failing_command_is_a_result,
    a_shell_that_ends_is_replaced,
    stdin_is_what_was_given,
    a_time_out_keeps_the_partial_output,
    long_output_keeps_head_and_tail,
    a_stream_comes_in_pieces,
    a_cancelled_run_kills_its_command,
)
