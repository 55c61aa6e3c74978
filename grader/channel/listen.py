"""Open the channel in a sandbox, listen while the tests run, and give what was heard.

The reporter's files and a FIFO go into a directory that is made just before the suite. A command in a shell of its own,
outside the tests' process tree, copies the FIFO to its output, which execd takes in as it comes: what was written once
no test can take back. When the suite is over a line that nobody could know before is sent through the FIFO; once it
arrives, all that came before it has arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files

from anyio import to_thread

from grader.apply import SESSION
from grader.channel.records import Heard, read_records
from sandbox import Chunk, Sandbox, SandboxError
from sandbox.errors import FileRefused

FILES = ("sitecustomize.py", "wire.py", "pytest_suite.py", "unittest_suite.py", "sympy_suite.py")
MAX_BYTES = 64 * 1024 * 1024
"""execd keeps no more of one command's output."""
_OPEN_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 60.0
"""Longer than a stalled connection takes to be noticed and resumed: what is on its way then is not missing."""
_SLOW = "look at the load of the sandbox's machine"
_LISTENER_SESSION = "grader-channel"
"""A shell session that neither the tests' commands nor the grader's other ones wait for."""


@dataclass
class Channel:
    """A channel. `heard` and `raw` are whole once the `async with` has been left; where no channel could be had,
    `heard` says so from the beginning."""

    directory: str
    key: str
    raw: bytes = b""
    heard: Heard = field(default_factory=Heard)

    @property
    def export(self) -> str:
        """Shell text that puts the reporter into every Python that the shell starts from now on."""
        if self.heard.closed is not None:
            return ""
        return f"export PYTHONPATH={self.directory}${{PYTHONPATH:+:$PYTHONPATH}}\n"


@asynccontextmanager
async def open_channel(box: Sandbox, *, time_limit_s: float) -> AsyncIterator[Channel]:
    """Listen for as long as the `async with` lasts. A sandbox in which no channel can be had gives one that is closed.

    Raises `SandboxError` when the sandbox fails, and when the way to the listener broke: what came is then not all, and
    nothing may be concluded from what is missing.
    """
    channel = Channel(f"/tmp/.grader-{secrets.token_hex(8)}", secrets.token_hex(32))
    made = await box.run(_script(channel), timeout_s=_OPEN_TIMEOUT_S, session=SESSION)
    if made.timed_out:
        raise SandboxError(f"the result channel was not made within {_OPEN_TIMEOUT_S:g} s; {_SLOW}")
    if made.exit_code != 0:
        channel.heard = Heard(closed="its directory could not be made in the sandbox")
        yield channel
        return
    pipe, over = f"{channel.directory}/pipe", secrets.token_hex(32)
    ears = _Ears(over.encode())
    listening = asyncio.create_task(ears.listen(box, pipe, time_limit_s + _OPEN_TIMEOUT_S + 2 * CLOSE_TIMEOUT_S))
    listening.add_done_callback(_seen)
    try:
        await _opened(ears)
        _not_broken(listening)
        yield channel
        if not listening.done():
            await _say_over(box, pipe, over, ears)
        _not_broken(listening)
    finally:
        listening.cancel()
    # The line break before the last line is that line's: a record may go on in the spill file.
    channel.raw = bytes(ears.data).partition(b"\n" + ears.over)[0] + await _spilt(box, channel.directory)
    channel.heard = await to_thread.run_sync(read_records, channel.raw, channel.key)


@dataclass
class _Ears:
    """What comes out of the FIFO, up to the line that says that all is over."""

    over: bytes
    data: bytearray = field(default_factory=bytearray)
    tail: bytes = b""
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self, box: Sandbox, pipe: str, timeout_s: float) -> None:
        # The FIFO is opened at both ends, so that it outlives each writer; a shell that is gone comments on no signal.
        command = f"exec 9<>{pipe} && echo && exec cat <&9"
        try:
            async for item in box.stream(
                command, timeout_s=timeout_s, max_output_bytes=MAX_BYTES, session=_LISTENER_SESSION
            ):
                if isinstance(item, Chunk):
                    self.opened.set()
                    self._take(item.data)
        finally:
            self.opened.set()
            self.ended.set()

    def _take(self, data: bytes) -> None:
        self.data += data[: MAX_BYTES - len(self.data)]
        window = self.tail + data
        self.tail = window[-len(self.over) :]
        if self.over in window:
            self.ended.set()


async def _opened(ears: _Ears) -> None:
    try:
        async with asyncio.timeout(_OPEN_TIMEOUT_S):
            await ears.opened.wait()
    except TimeoutError as error:
        raise SandboxError(f"the result channel did not open within {_OPEN_TIMEOUT_S:g} s; {_SLOW}") from error


def _not_broken(listening: asyncio.Task[None]) -> None:
    """Raise what the listener met. One that was killed in the sandbox has ended, and met nothing."""
    if listening.done():
        listening.result()


def _seen(listening: asyncio.Task[None]) -> None:
    """Where the tests' own command broke off too, its trouble is the one that is told."""
    if not listening.cancelled():
        listening.exception()


async def _say_over(box: Sandbox, pipe: str, over: str, ears: _Ears) -> None:
    """Send the last line and wait for it. Where it does not come the FIFO is gone, or nobody reads it any more."""
    told = await box.run(
        f"[ -p {pipe} ] && printf '\\n%s\\n' {over} 1<>{pipe}", timeout_s=CLOSE_TIMEOUT_S, session=SESSION
    )
    if told.exit_code == 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await ears.ended.wait()


async def _spilt(box: Sandbox, directory: str) -> bytes:
    """What the reporter wrote to its file, because the FIFO was not read any more."""
    try:
        return await box.read(f"{directory}/spill", limit=MAX_BYTES)
    except FileRefused:
        return b""


def _script(channel: Channel) -> str:
    """Make the directory. It can be read by whoever runs the tests, and its files cannot be written."""
    texts = {name: files("grader.reporters").joinpath(name).read_text("utf-8") for name in FILES}
    lines = [
        "umask 022",
        f"mkdir {channel.directory} && cd {channel.directory} || exit",
        "mkfifo -m 622 pipe || exit",
        *(f"printf %s {shlex.quote(text)} >{name} || exit" for name, text in texts.items()),
        f"printf %s {channel.key} >key && : >spill && chmod 444 key *.py && chmod 622 spill",
    ]
    return "( " + "\n".join(lines) + "\n)"
