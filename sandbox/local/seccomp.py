"""The system calls that no sandbox may make: what reaches kernel objects that no namespace divides.

Keyrings above all: a process inherits its session keyring from the provider's, with whatever the host keeps there. The
list is a part of what container runtimes deny by default, and like them we answer EPERM, so that programs that try fall
back. Resource limits of another process are denied as well: PID 1 has the same user, and the tests could end it by
them. Pure: a classic BPF program as bytes, for `bwrap --seccomp`.
"""

from __future__ import annotations

import struct

DENIED = {
    # name: numbers on x86_64, i386, aarch64 (from the kernel's syscall tables)
    "add_key": (248, 286, 217),
    "request_key": (249, 287, 218),
    "keyctl": (250, 288, 219),
    "perf_event_open": (298, 336, 241),
    "bpf": (321, 357, 280),
    "userfaultfd": (323, 374, 282),
    "io_uring_setup": (425, 425, 425),
    "io_uring_enter": (426, 426, 426),
    "io_uring_register": (427, 427, 427),
}

PRLIMIT = (302, 340, 261)
"""`prlimit64`, in the same columns: allowed for the caller itself (process 0), as `setrlimit` and `ulimit` use it."""

ARCHITECTURES = {"x86_64": ((0xC000003E, 0), (0x40000003, 1)), "aarch64": ((0xC00000B7, 2),)}
"""By `uname -m`: the AUDIT_ARCH values of the calls that its kernel takes, and their column in `DENIED`."""

X32_BIT = 0x40000000
"""Numbers from here on are x32 calls on x86_64: a second door to the same calls, closed whole."""

LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16  # offsets in struct seccomp_data, little-endian
ALLOW, DENY = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand: a `struct sock_filter`."""


def program(machine: str) -> bytes | None:
    """The filter for a machine as `uname -m` names it. None: its numbers are not known here, nothing is filtered."""
    architectures = ARCHITECTURES.get(machine)
    if architectures is None:
        return None
    instructions: list[Instruction] = [(LOAD, 0, 0, ARCHITECTURE_AT)]
    for architecture, column in architectures:
        block = _block([numbers[column] for numbers in DENIED.values()], PRLIMIT[column])
        instructions += [(JUMP_EQUAL, 0, len(block), architecture), *block]
    instructions.append((RETURN, 0, 0, DENY))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _block(denied: list[int], prlimit: int) -> list[Instruction]:
    """Deny these numbers and x32's, and `prlimit` of another process; allow the rest."""
    tests = [(JUMP_GREATER_EQUAL, X32_BIT), *((JUMP_EQUAL, number) for number in denied)]
    to_deny = len(tests) + 3  # from the first test
    jumps = [(code, to_deny - at, 0, operand) for at, (code, operand) in enumerate(tests)]
    own = [(JUMP_EQUAL, 0, 2, prlimit), (LOAD, 0, 0, FIRST_ARGUMENT_AT), (JUMP_EQUAL, 0, 1, 0)]
    return [(LOAD, 0, 0, NUMBER_AT), *jumps, *own, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, DENY)]
