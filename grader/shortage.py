"""Whether the kernel killed processes for want of memory while a sandbox was used: its tests then tell nothing sure.

The kernel's own counters say so, not the tests: that of the sandbox's cgroup, where it sees one. Else the machine's,
which counts everybody's, so that it only counts where the tests did end as a killed process does. Tests that take all
the memory themselves look the same. Nothing is asked of the tests' shell, and what cannot be read is no evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sandbox import Sandbox
from sandbox.errors import FileRefused, OutOfMemory

_MACHINE = "/proc/vmstat"
_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", _MACHINE)
"""Files with an `oom_kill` line: cgroup 2, cgroup 1, the machine."""
_SIGKILL = 137
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class MemoryKills:
    """How many processes the kernel had killed for want of memory when it was asked."""

    counter: str | None
    """The file that counts them. None: none can be read here."""
    count: int = 0


async def memory_kills(box: Sandbox, counters: Iterable[str] = _COUNTERS) -> MemoryKills:
    """The first of `counters` that can be read in `box`. Raises `SandboxError` when the sandbox cannot be asked."""
    for counter in counters:
        try:
            count = _count(await box.read(counter, limit=_MAX_BYTES))
        except FileRefused:
            continue
        if count is not None:
            return MemoryKills(counter, count)
    return MemoryKills(None)


async def refuse_after_memory_kills(box: Sandbox, before: MemoryKills, *, exit_code: int | None) -> None:
    """Raise `OutOfMemory` where the kernel has killed more processes than it had `before`.

    `exit_code` is the test command's; None: it was not run.
    """
    if before.counter is None or (before.counter == _MACHINE and exit_code != _SIGKILL):
        return
    now = await memory_kills(box, [before.counter])
    if now.count > before.count:
        killed = now.count - before.count
        where = "on its machine" if before.counter == _MACHINE else "in the sandbox"
        raise OutOfMemory(
            f"the kernel killed {killed} process{'es' if killed > 1 else ''} {where} for want of memory, so what the "
            "tests said does not count; declare more memory (`conditions.memory_mib`), or run fewer gradings at once",
            cause="out_of_memory",
            killed=killed,
        )


def _count(text: bytes) -> int | None:
    for line in text.splitlines():
        name, _, number = line.partition(b" ")
        if name == b"oom_kill" and number.strip().isdigit():
            return int(number)
    return None
