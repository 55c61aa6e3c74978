"""Declared conditions held against observed ones. Pure.

The law: what is declared and was read must agree, or no test runs; what is declared and could not be read is allowed
and recorded as unread, unless the tests' Python is there and does not run, so that no test would; what is not declared
is recorded and never compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from grader.campaign import Conditions
from grader.conditions.observed import OF_THE_TESTS, UNSET, Observed
from grader.conditions.spec import declared

Agrees = Callable[[object, object], bool]
"""Whether an observed value, the second, is as the declared one asks."""


@dataclass(frozen=True)
class Comparison:
    """How the declared conditions fared. Names, but for `contradicted`, which has one sentence each."""

    agreed: tuple[str, ...]
    contradicted: tuple[str, ...]
    unread: tuple[str, ...]


def compare(conditions: Conditions, observed: Observed) -> Comparison:
    """Hold every declared condition against what was observed."""
    agreed, contradicted, unread = [], [], []
    for name, want in declared(conditions).items():
        if name not in observed.values:
            unread.append(name)
            continue
        rule, have = RULES[name], observed.values[name]
        if rule.agrees(want, have):
            agreed.append(name)
        else:
            told = rule.tell(want, have)
            contradicted.append(f"{rule.words} is declared as {told[0]} and observed as {told[1]}; {rule.remedy}")
    lost = [name for name in unread if name in OF_THE_TESTS]
    if lost and "silent_python" in observed.values:
        contradicted.append(
            f"the tests' Python, {observed.values['silent_python']}, does not run, so that what is declared of "
            f"{', '.join(lost)} cannot hold; mend the declared environment, the task's set-up or the image"
        )
    return Comparison(tuple(agreed), tuple(contradicted), tuple(unread))


@dataclass(frozen=True)
class Rule:
    """How one condition is compared and told of."""

    words: str
    remedy: str
    """What to do about a contradiction: the last clause of its sentence."""
    agrees: Agrees = lambda want, have: want == have
    tell: Callable[[object, object], tuple[object, object]] = lambda want, have: (want, have)


def _close(want: object, have: object) -> bool:
    """Quotas are rounded to the kernel's microseconds, and by Kubernetes to milli-CPUs."""
    return isinstance(want, float) and isinstance(have, int | float) and abs(want - have) < 0.002


def _at_most(want: object, have: object) -> bool:
    return isinstance(want, int | float) and isinstance(have, int | float) and have <= want


def _same_locale(want: object, have: object) -> bool:
    """As the C library compares names: the codeset without case and punctuation."""
    return _locale(str(want)) == _locale(str(have))


def _locale(name: str) -> tuple[str, str]:
    language, _, codeset = name.partition(".")
    return {"POSIX": "C"}.get(language, language), "".join(c for c in codeset.lower() if c.isalnum())


def _begins(want: object, have: object) -> bool:
    """A release, or its first parts: `6.1` begins `6.1.9` and not `6.12`."""
    prefix, release = str(want), str(have)
    following = release[len(prefix) : len(prefix) + 1]
    return release.startswith(prefix) and not (prefix[-1:].isdigit() and following.isdigit())


def _same_mask(want: object, have: object) -> bool:
    return int(str(want), 8) == int(str(have), 8)


def _all_there(want: object, have: object) -> bool:
    return not _differing(want, have)[0]


def _differing(want: object, have: object) -> tuple[dict[str, object], dict[str, object]]:
    """The declared variables that have another value, as declared and as observed."""
    if not isinstance(want, Mapping) or not isinstance(have, Mapping):
        return {"": want}, {"": have}
    names = [name for name in want if have.get(name, UNSET) != want[name]]
    return {name: want[name] for name in names}, {name: have.get(name, UNSET) for name in names}


_SET_UP = "the image or the task's set-up changes it"
_ENFORCED = "declare what the provider enforces, or nothing"
_MACHINE = "run on machines that are so, or declare what they are"

RULES: Mapping[str, Rule] = {
    "egress": Rule("egress", "look at the provider's network or declare what it gives"),
    "visible_cpus": Rule("the number of visible CPUs", "declare a number that the provider can give"),
    "cpu_count": Rule("the number of CPUs that Python counts", _MACHINE),
    "cpu_quota": Rule("the CPU quota", _ENFORCED, _close),
    "memory_mib": Rule("the memory limit in MiB", _ENFORCED),
    "processes": Rule("the limit of processes", _ENFORCED),
    "open_files": Rule("the limit of open files", _ENFORCED),
    "shm_mib": Rule("the size of /dev/shm in MiB", _ENFORCED),
    "test_time_limit_s": Rule("the tests' time limit in seconds", "give the grader the declared limit"),
    "attempts": Rule("the number of attempts", "declare what `limits.attempts` says"),
    "hash_seed": Rule("the hash seed", _SET_UP),
    "time_zone": Rule("the time zone", f"{_SET_UP}, or the image lacks the zone's file"),
    "tzdata_version": Rule("the version of the zone files", "use an image that has the declared one"),
    "locale": Rule("the locale", f"{_SET_UP}, or the image lacks the locale", _same_locale),
    "user": Rule("the user id", "use an image or a provider that runs as the declared user"),
    "umask": Rule("the umask", _SET_UP, _same_mask),
    "ipv6": Rule("IPv6 on the loopback interface", _MACHINE),
    "clock_within_s": Rule("the clock's difference in seconds", "set the machine's clock, or the image's", _at_most),
    "architecture": Rule("the architecture", _MACHINE),
    "kernel": Rule("the kernel", _MACHINE, _begins),
    "runtime_class": Rule("the runtime class", "name it in the provider's config too"),
    "seccomp": Rule("seccomp", _ENFORCED),
    "environment": Rule("the environment", _SET_UP, _all_there, _differing),
    "image_digest": Rule("the image's digest", "give the tasks the declared image"),
}
