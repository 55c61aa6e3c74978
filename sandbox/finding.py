"""What a doctor says: one finding for each thing that it looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandbox.spec import Egress, PhaseTimes

Level = Literal["ok", "note", "warning", "error", "failure"]
"""`note`: it could not be looked at, or is so by design. `warning`: it works, less well than it could. `error`: it
does not work until something is mended. `failure`: it should work and did not; infrastructure, which may pass."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: Level
    said: str
    """What was seen and, unless it is well, what to do."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The same in numbers, for programs."""


@dataclass(frozen=True)
class Asked:
    """What a campaign will ask of a provider, as far as a doctor can look at it."""

    sandboxes: int = 1
    """At once."""
    cpus: int | None = None
    cpu_quota: float | None = None
    memory_mib: int | None = None
    egress: Egress = "denied"


ONE_SANDBOX = Asked()


def has_failed(findings: Iterable[Finding]) -> bool:
    """Whether anything stands in the way."""
    return any(one.level in {"error", "failure"} for one in findings)


def first_command(output: bytes, took_s: float, command_s: float, phases: PhaseTimes, where: str) -> Finding:
    """How the first command of a sandbox went, and where the time was spent."""
    if output != b"well\n":
        return Finding("round trip", "error", f"`echo well` wrote {output[:80]!r}; look at the image's bash")
    spent = {name: round(value, 3) for name, value in vars(phases).items() if value is not None}
    spent["command_s"] = round(command_s, 3)
    each = ", ".join(f"{name.removesuffix('_s')} {value:.2f}" for name, value in spent.items())
    total_s = took_s + command_s
    return Finding(
        "round trip", "ok", f"create to first command in {total_s:.2f} s{where} ({each})", {**spent, "total_s": total_s}
    )
