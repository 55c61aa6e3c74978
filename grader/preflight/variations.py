"""The controlled re-runs of `--diagnose`: each changes one condition and leaves everything else as it was. Pure.

Most change what the campaign declares, so that the provider sets it and the probe proves it. Two cannot be declared and
change the test command instead: `test_order` takes away the plugins that shuffle, `clock` moves Python's clock to the
day on which the task was made.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import ValidationError

from grader.campaign import Conditions
from tasksets.task import Task

NAMES = (
    "egress",
    "time_zone",
    "locale",
    "hash_seed",
    "visible_cpus",
    "cpu_quota",
    "memory_mib",
    "shm_mib",
    "open_files",
    "processes",
    "umask",
    "test_time_limit_s",
    "test_order",
    "clock",
)
"""What can be varied."""

_ZONES = ("UTC", "America/New_York", "Asia/Tokyo")
_LOCALES = ("C.UTF-8", "en_US.UTF-8")
_MASKS = ("022",)
TIMES = 4
"""By how much a limit is raised."""
LONGER = "test_time_limit_s"
UNDECLARED = "undeclared"


@dataclass(frozen=True)
class Variation:
    """One condition changed."""

    name: str
    value: str
    conditions: Mapping[str, object] = field(default_factory=dict)
    """What the campaign declares instead."""
    task: Callable[[Task], Task | None] = lambda task: task
    """The task as it runs so. None: it cannot be varied like this."""

    @property
    def slug(self) -> str:
        """A name for the ledger of its gradings."""
        return "".join(c if c.isalnum() else "-" for c in f"{self.name}-{self.value}").lower()

    @property
    def names_a_need(self) -> bool:
        """More time is no condition of the place: what passes with it is too slow for the limit that is declared."""
        return self.name != LONGER

    def on(self, conditions: Conditions) -> Conditions:
        """The campaign's conditions with this one changed."""
        return Conditions.model_validate({**conditions.model_dump(), **self.conditions})

    def can_be_declared(self, conditions: Conditions) -> bool:
        """Whether it is within what a campaign may ask for."""
        try:
            self.on(conditions)
        except ValidationError:
            return False
        return True


def variations(conditions: Conditions) -> Iterator[Variation]:
    """Every condition that can differ from what is declared, each with the values that are worth a try."""
    if conditions.egress != "open":
        yield Variation("egress", "open", {"egress": "open"})
    yield from _others("time_zone", conditions.time_zone, _ZONES)
    yield from _others("locale", conditions.locale, _LOCALES)
    yield from _others("hash_seed", conditions.hash_seed, (0,) if conditions.hash_seed is None else (0, 1))
    yield from _others("umask", conditions.umask, _MASKS)
    # What Python counts follows from what is visible, so that the two change together.
    if conditions.visible_cpus is not None or conditions.cpu_count is not None:
        yield Variation("visible_cpus", UNDECLARED, {"visible_cpus": None, "cpu_count": None})
    if conditions.visible_cpus != 1:
        yield Variation("visible_cpus", "1", {"visible_cpus": 1, "cpu_count": None})
    if conditions.cpu_quota is not None:
        yield Variation("cpu_quota", UNDECLARED, {"cpu_quota": None})
    for name in ("memory_mib", "shm_mib", "open_files", "processes", "test_time_limit_s"):
        limit = getattr(conditions, name)
        if limit is not None:
            more = Variation(name, f"{limit * TIMES:g}", {name: limit * TIMES})
            if more.can_be_declared(conditions):
                yield more
    yield Variation("test_order", "as_written", task=_in_order)
    yield Variation("clock", "task_creation", task=_at_its_creation)


def _others(name: str, declared: object, values: tuple[object, ...]) -> Iterator[Variation]:
    for value in values:
        if value != declared:
            yield Variation(name, str(value), {name: value})
    if declared is not None:
        yield Variation(name, UNDECLARED, {name: None})


def _before_the_tests(task: Task, lines: str) -> Task | None:
    if task.plan is None:
        return None
    plan = dataclasses.replace(task.plan, test_command=f"{lines}\n{task.plan.test_command}")
    return dataclasses.replace(task, plan=plan)


def _in_order(task: Task) -> Task | None:
    """Without the plugins of pytest that shuffle. To block one that is not installed is fine."""
    return _before_the_tests(
        task, 'export PYTEST_ADDOPTS="${PYTEST_ADDOPTS-} -p no:randomly -p no:random_order -p no:reverse"'
    )


def _at_its_creation(task: Task) -> Task | None:
    made = _epoch(task.created_at)
    if made is None:
        return None
    folder = '"${TMPDIR:-/tmp}/.grader-clock"'
    return _before_the_tests(
        task,
        f"mkdir -p {folder} && printf %s {shlex.quote(_CLOCK)} >{folder}/sitecustomize.py\n"
        f"export GRADER_CLOCK_BACK=$(( $(date +%s) - {made} ))\n"
        'export PYTHONPATH="${TMPDIR:-/tmp}/.grader-clock${PYTHONPATH:+:$PYTHONPATH}"',
    )


def _epoch(created_at: str) -> int | None:
    """Seconds since 1970 of an ISO 8601 time; None for anything else. Rows of some sets give no zone: UTC."""
    try:
        made = datetime.fromisoformat(created_at)
    except ValueError:
        return None
    return int((made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp())


_CLOCK = """\
import os
import sys
import time

# Without its C half, `datetime` is the standard library's Python one, which asks `time.time`.
sys.modules["_datetime"] = None
_back = int(os.environ["GRADER_CLOCK_BACK"])
_time = time.time


def _now():
    return _time() - _back


def _moved(function):
    return lambda seconds=None: function(_now() if seconds is None else seconds)


def _moved_text(function, at):
    return lambda *args: function(*(args if len(args) > at else args + (time.localtime(),)))


time.time = _now
time.time_ns = lambda: int(_now() * 1000000000)
time.localtime, time.gmtime, time.ctime = _moved(time.localtime), _moved(time.gmtime), _moved(time.ctime)
time.strftime, time.asctime = _moved_text(time.strftime, 1), _moved_text(time.asctime, 0)
"""
"""A `sitecustomize` for the diagnosis alone; no verdict ever comes of it. It moves what Python code reads of the clock:
not what other programs read, nor extensions that ask the kernel themselves (OpenSSL does)."""
