"""What was read in a sandbox, under the names of `Conditions`. Pure.

Most of it is an effect that the tests' own Python met (`Look`): a hash that it made, the time that it tells, a file
that it created. The sandbox's cgroup is told by the daemon (`Facts`), its image and runtime by the provider.
"""

from __future__ import annotations

import functools
import json
import zoneinfo
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from grader.campaign import Conditions
from grader.conditions.hashes import ROUNDS, seed_of
from grader.conditions.promises import Promises
from sandbox import Facts, Identity

UNSET = "unset"
"""What is observed of something that the tests' shell does not have. It was read, so it can contradict."""
UNLIMITED = "unlimited"
"""What is observed of a limit that was looked for and is not there."""

TEXT = "which seed is this?"
"""What the tests' Python is asked to hash."""

INSTANTS = tuple(
    int(datetime(year, month, 15, tzinfo=UTC).timestamp()) for year in (1995, 2010, 2020, 2025) for month in (1, 7)
)
"""When the time zone is asked: winters and summers, over changes of rules."""

OF_THE_TESTS = frozenset(
    {"visible_cpus", "cpu_count", "open_files", "shm_mib", "hash_seed", "time_zone", "tzdata_version", "locale", "user"}
    | {"umask", "ipv6", "clock_within_s", "architecture", "kernel", "seccomp", "environment"}
)
"""Conditions that only the tests' own Python can tell."""

SECCOMP = {0: "unconfined", 1: "filtered", 2: "filtered"}


class Look(BaseModel):
    """What grader/look.py answered. None: it could not be read. Nothing in it is believed to be of the right type."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)

    clock: float | None = None
    python: str | None = None
    executable: str | None = None
    packages: tuple[str, ...] | None = None
    hash: tuple[int, str, int] | None = None
    visible_cpus: int | None = None
    cpu_count: int | None = None
    open_files: int | str | None = None
    user: int | None = None
    umask: int | None = None
    shm_bytes: int | None = None
    ipv6: bool | None = None
    zone: tuple[tuple[int, str], ...] | None = None
    tzdata_version: str | None = None
    locale: str | None = None
    encoding: str | None = None
    machine: tuple[str, ...] | None = None
    seccomp: int | None = None
    environment: dict[str, str] | None = None
    reached: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, text: bytes) -> Look:
        """The look of one line of JSON. What has not the form that it should have was not read."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(values, dict):
            return cls()
        kept = {name: value for name, value in values.items() if cls._takes(name, value)}
        return cls.model_validate_json(json.dumps(kept))

    @classmethod
    def _takes(cls, name: str, value: object) -> bool:
        """Whether a value can be the named fact. One that is no Unicode text (a directory of the image's may be named
        so) is none, and takes no other fact with it."""
        try:
            cls.model_validate_json(json.dumps({name: value}))
        except (ValidationError, RecursionError):
            return False
        return True


@dataclass(frozen=True)
class Observed:
    """What was read in the sandbox, by the names of `Conditions` and a few more. A name that is absent could not be
    read."""

    values: Mapping[str, object]

    def but(self, **values: object) -> Observed:
        """With these values instead: what was learnt later."""
        return Observed({**self.values, **values})


@dataclass(frozen=True)
class Clock:
    """Our own clock around the look, in seconds since 1970."""

    before: float
    after: float

    def off_by(self, told: float) -> float:
        """By how many seconds the other clock is off, at least."""
        return round(max(0.0, self.before - told, told - self.after), 3)


def observed_from(
    look: Look,
    facts: Facts,
    conditions: Conditions,
    promises: Promises,
    *,
    clock: Clock,
    identity: Identity | None = None,
    egress_tried: bool = True,
    silent_python: str | None = None,
) -> Observed:
    """All that is known, by name. `egress_tried` False: no canary was given, so that silence proves nothing.
    `silent_python`: where the tests' Python is, which did not run."""
    values: dict[str, object | None] = {
        **_promised(promises),
        **_of_the_daemon(facts),
        **_of_the_tests(look, conditions),
        "clock_within_s": None if look.clock is None else clock.off_by(look.clock),
        "egress": _egress(look.reached, egress_tried),
        "reached": list(look.reached) if look.reached else None,
        "image_digest": identity and identity.image_digest,
        "runtime_class": identity and identity.runtime,
        "python": look.python,
        "executable": look.executable,
        "packages": None if look.packages is None else list(look.packages),
        "encoding": look.encoding,
        "silent_python": silent_python,
    }
    return Observed({name: value for name, value in values.items() if value is not None})


def _promised(promises: Promises) -> dict[str, object | None]:
    return {"test_time_limit_s": promises.test_time_limit_s, "attempts": promises.attempts}


def _of_the_daemon(facts: Facts) -> dict[str, object | None]:
    cgroup = facts.raw.get("cgroup")
    limits = cgroup if isinstance(cgroup, Mapping) else {}
    memory = limits.get("memory_bytes")
    return {
        "cpu_quota": limits.get("cpus"),
        "memory_mib": memory // (1 << 20) if isinstance(memory, int) else memory,
        "processes": limits.get("processes"),
    }


def _of_the_tests(look: Look, conditions: Conditions) -> dict[str, object | None]:
    machine = dict(zip(("system", "node", "kernel", "version", "architecture"), look.machine or (), strict=False))
    return {
        "visible_cpus": look.visible_cpus,
        "cpu_count": look.cpu_count,
        "open_files": look.open_files,
        "shm_mib": None if look.shm_bytes is None else look.shm_bytes // (1 << 20),
        "hash_seed": _hash_seed(look, conditions.hash_seed),
        "time_zone": _time_zone(look, conditions.time_zone),
        "tzdata_version": look.tzdata_version,
        "locale": look.locale,
        "user": look.user,
        "umask": None if look.umask is None else f"{look.umask:03o}",
        "ipv6": look.ipv6,
        "architecture": machine.get("architecture"),
        "kernel": machine.get("kernel"),
        "seccomp": None if look.seccomp is None else SECCOMP.get(look.seccomp, str(look.seccomp)),
        "environment": look.environment,
    }


def _egress(reached: tuple[str, ...] | None, tried: bool) -> str | None:
    if reached is None:
        return None
    return "open" if reached else "denied" if tried else None


def _hash_seed(look: Look, declared: int | None) -> object | None:
    """The seed that the tests' Python really hashes with, where it is one that somebody named; else what is set."""
    if look.hash is None or look.environment is None:
        return None
    made, algorithm, width = look.hash
    if algorithm not in ROUNDS or width != 64:
        return None
    told = look.environment.get("PYTHONHASHSEED")
    named = [int(told)] if told and told.isascii() and told.isdigit() else []
    found = seed_of(made, TEXT, algorithm, [*([] if declared is None else [declared]), *named, 0])
    if found is not None:
        return found
    return UNSET if told is None else "random"


def _time_zone(look: Look, declared: str | None) -> str | None:
    """The declared zone's name where the tests' Python tells the time as that zone has it; else how it tells it."""
    if look.zone is None:
        return None
    if declared is not None:
        expected = zone_at(declared, INSTANTS)
        if expected is None:
            return None
        if expected == look.zone:
            return declared
    said = [f"{_offset(seconds)} {name}" for seconds, name in look.zone[-2:]]
    told = " / ".join(dict.fromkeys(said))
    variable = (look.environment or {}).get("TZ")
    return f"{told} (TZ={variable})" if variable else told


def _offset(seconds: int) -> str:
    hours, minutes = divmod(abs(seconds) // 60, 60)
    return f"UTC{'-' if seconds < 0 else '+'}{hours:02d}:{minutes:02d}"


@functools.cache
def zone_at(name: str, instants: Iterable[int]) -> tuple[tuple[int, str], ...] | None:
    """Offset from UTC in seconds, and abbreviation, of a zone at each instant. None: this machine has no such zone."""
    try:
        zone = zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None
    found = []
    for instant in instants:
        at = datetime.fromtimestamp(instant, zone)
        offset, abbreviation = at.utcoffset(), at.tzname()
        if offset is None or abbreviation is None:
            return None
        found.append((int(offset.total_seconds()), abbreviation))
    return tuple(found)
