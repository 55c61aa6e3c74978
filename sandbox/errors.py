"""Errors of the sandbox room: infrastructure trouble, named after the boundary that was crossed.

    SandboxError                 anything below; never the fault of the command that ran
    ├── ProviderError            the provider cannot make or keep a sandbox
    │   ├── ProviderUnavailable  this machine or cluster lacks what the provider needs (says what to enable)
    │   ├── ImageError           the image cannot be found, verified, unpacked or built
    │   ├── CreateError          the sandbox was asked for and did not become ready
    │   │   ├── Unschedulable    no node would take it within its budget
    │   │   └── QuotaExceeded    the namespace's quota is used up
    │   └── AcquireTimeout       the caller's deadline passed while waiting; `waited_in` says where
    ├── DaemonError              execd answered, and the answer is an error (`code` is from its closed table)
    │   ├── FileRefused          a file operation was refused (missing, not a file, would not survive a round trip)
    │   └── CommandRefused       the command was not started (bad arguments, unknown session, no processes left)
    └── SandboxLost              the sandbox or the way to it is gone; `cause` comes from outside evidence only
        ├── OutOfMemory          the kernel killed it at its memory limit
        ├── Evicted              its node put it out: short of memory or disk, or being emptied
        ├── Preempted            it had to make room for a pod of higher priority
        ├── NodeLost             its node is gone or answers no more
        ├── LifetimeOver         it reached its lifetime
        ├── DeletedByAnother     somebody else deleted it
        ├── Replaced             another sandbox stands under its name
        └── ContainerEnded       its first process ended

A failing command, a command that timed out and a shell that ended are results (`ExecResult`), never errors.
Each message ends with what to do. Facts are keyword attributes, so that callers need not parse the message.
"""

from __future__ import annotations

from typing import Any


class SandboxError(Exception):
    """Infrastructure trouble. `facts` holds what is known, by name; the message's last clause says what to do."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts: dict[str, Any] = facts


class ProviderError(SandboxError):
    """The provider cannot make or keep a sandbox."""


class ProviderUnavailable(ProviderError):
    """This machine or cluster lacks what the provider needs."""


class ImageError(ProviderError):
    """An image cannot be found, verified, unpacked or built."""


class CreateError(ProviderError):
    """A sandbox was asked for and did not become ready. `phase` names the phase that failed."""

    def __init__(self, message: str, *, phase: str, **facts: Any) -> None:
        super().__init__(message, phase=phase, **facts)
        self.phase = phase


class Unschedulable(CreateError):
    """No node would take the sandbox. `said` is the scheduler's own reason."""


class QuotaExceeded(CreateError):
    """The namespace's quota is used up. `said` is the server's own reason."""


class AcquireTimeout(ProviderError):
    """The caller's deadline passed. `waited_in` maps each phase to the seconds spent there."""

    def __init__(self, message: str, *, waited_in: dict[str, float], **facts: Any) -> None:
        super().__init__(message, waited_in=waited_in, **facts)
        self.waited_in = waited_in


class DaemonError(SandboxError):
    """execd answered with an error. `code` is from execd's closed table of codes."""

    def __init__(self, message: str, *, code: str, **facts: Any) -> None:
        super().__init__(message, code=code, **facts)
        self.code = code


class FileRefused(DaemonError):
    """A file operation was refused; nothing was changed."""


class CommandRefused(DaemonError):
    """The command was not started."""


class SandboxLost(SandboxError):
    """The sandbox, or the way to it, is gone. `cause` is from outside evidence, or "unknown"."""

    def __init__(self, message: str, *, cause: str, **facts: Any) -> None:
        super().__init__(message, cause=cause, **facts)
        self.cause = cause


class OutOfMemory(SandboxLost):
    """The kernel killed the sandbox at its memory limit."""


class Evicted(SandboxLost):
    """The node put the sandbox out: it was short of memory or disk, or is being emptied."""


class Preempted(SandboxLost):
    """The sandbox had to make room for a pod of higher priority."""


class NodeLost(SandboxLost):
    """The node is gone or answers no more. Whether the sandbox still runs there is not known."""


class LifetimeOver(SandboxLost):
    """The sandbox reached its lifetime."""


class DeletedByAnother(SandboxLost):
    """Somebody else deleted the sandbox."""


class Replaced(SandboxLost):
    """Another sandbox stands under this one's name."""


class ContainerEnded(SandboxLost):
    """The sandbox's first process ended. `exit_code` says how."""
