"""The fault matrix on the local provider: real faults strike real gradings of `grader grade`, from outside.

In each row a good, a bad and an empty patch are in flight when the fault strikes. None gets a score of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.record import Grading
from grader.verdict import Outcome
from sandbox.local.limits import find_hierarchies
from tests.faults.conftest import Built
from tests.faults.processes import (
    Seen,
    Striker,
    bubblewraps,
    frozen,
    held_asleep,
    kill_first,
    kill_outer,
    sandboxes_beside,
)
from tests.faults.room import (
    Room,
    Running,
    check_all_right,
    check_no_score_is_the_faults,
    check_none_has_a_verdict,
    check_sum,
    is_root,
)
from tests.faults.seen import note
from tests.sandbox.local.leftovers import leftovers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NEEDS_DISK = "head -c 2000000 /dev/zero > scratch || exit 1"
SHELL = ("sh", "-c")


@pytest.fixture
def room(tmp_path: Path, built: Built) -> Iterator[Callable[..., Room]]:
    """Makes a room with an image store of its own; nothing of its sandboxes is left at the end."""
    state = tmp_path / "state"
    made: list[Room] = []

    def make(**changes: Any) -> Room:
        built.copy(state)
        made.append(Room(tmp_path / "room", built.digest, {"type": "local", "state_dir": str(state)}, **changes))
        return made[-1]

    yield make
    for one in made:
        one.kill_what_runs()
    assert [] == leftovers(state)


@pytest.mark.parametrize(("fault", "kill"), [("sandbox killed", kill_outer), ("execd killed", kill_first)])
def test_a_kill_in_mid_suite_costs_an_attempt_and_no_verdict(
    room: Callable[..., Room], fault: str, kill: Callable[[Seen], None]
) -> None:
    """Each patch's first sandbox is killed beside its suite; each gets its right verdict in a second one, and the cause
    of the first is on record."""
    one = room()

    with Striker(one.asleep, kill, most=3) as striker:
        rows = check_all_right(one.start().wait(60), attempts=2)

    assert 3 == len(striker.struck)
    assert all(row.evidence.failures[0].startswith("SandboxLost") for row in rows)
    assert all("killed by signal 9" in row.evidence.failures[0] for row in rows)
    note(fault, "local", rows)


@pytest.mark.long
def test_kills_that_do_not_end_leave_no_verdict(room: Callable[..., Room]) -> None:
    """When every sandbox is killed nobody gets a score, and each row names the signal."""
    one = room(limits={"attempts": 2})

    with Striker(one.asleep, kill_first, most=99):
        rows = check_none_has_a_verdict(one.start().wait(60), "killed by signal 9", attempts=2)

    note("execd killed, each time", "local", rows)


@pytest.mark.long
def test_kills_at_any_moment_cost_no_verdict(room: Callable[..., Room]) -> None:
    """Sandboxes are killed whatever they are at: start, probe, patches, suite, end. No score comes of any, and once it
    is over the same command gives each patch its right verdict."""
    one = room(each=12)
    state = one.provider["state_dir"].encode()
    chance = random.Random("kills at any moment")
    running, kills = one.start(), 0

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and running.process.poll() is None:
        time.sleep(chance.uniform(0.05, 0.6))
        if alive := bubblewraps(state):
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(alive), signal.SIGKILL)
                kills += 1
    running.wait(120)
    check_no_score_is_the_faults(one)
    first = {row.model_name_or_path: row for row in one.rows()}
    assert any(row.outcome is Outcome.NO_VERDICT or row.evidence.failures for row in first.values())

    assert 0 == one.start().wait(120).status
    check_no_score_is_the_faults(one)
    check_sum(one, resolved=12, unresolved=13)
    assert kills > 20
    note("sandboxes killed at any moment", "local", list(first.values()))
    note("sandboxes killed at any moment", "local", one.rows(), then=True)


def test_tests_that_are_killed_for_memory_are_no_failed_tests(room: Callable[..., Room]) -> None:
    """A suite that outgrows its memory limit has no verdict, by the kernel's counter, though its sandbox lives on."""
    if not any("memory" in hierarchy.controllers for hierarchy in find_hierarchies()):
        pytest.skip("no memory cgroup can be made here, so no limit can be exceeded")
    one = room(
        sleep_s=0,
        before="python3 -c 'bytearray(400 << 20)' || exit 1",
        conditions={"memory_mib": 96},
        limits={"attempts": 2},
    )

    rows = check_none_has_a_verdict(one.start().wait(60), "OutOfMemory", attempts=2)

    note("out of memory", "local", rows)


def test_a_sandbox_that_stands_still_has_not_timed_out(room: Callable[..., Room]) -> None:
    """The sandboxes hang until their tests' time is over: that is no time-out of the patch's, but costs an attempt."""
    one = room(sleep_s=2, conditions={"test_time_limit_s": 8})
    running = one.start()

    with held_asleep(one.asleep, 3) as sandboxes, frozen(sandboxes):
        time.sleep(12)
    rows = check_all_right(running.wait(60), attempts=2)

    assert all("stood still" in row.evidence.failures[0] for row in rows), [row.evidence.failures for row in rows]
    note("sandbox stands still beyond the tests' limit", "local", rows)


# -- disk --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_a_small_disk(one: Room, mib: int) -> Iterator[Callable[[Running], Path]]:
    """The room's grader sees its state directory on a disk of this size, which nobody else has. Gives the way to it."""
    state = Path(one.provider["state_dir"])
    whole = state.with_name("state-whole")
    state.rename(whole)
    state.mkdir()
    user = () if is_root() else ("--user", "--map-root-user")
    mount = f'mount -t tmpfs -o size={mib}m none "$1" && cp -a "$2/." "$1" || exit 99; shift 2; exec "$@"'
    one.inside = ("unshare", *user, "--mount", *SHELL, mount, "sh", str(state), str(whole))
    tried = subprocess.run([*one.inside, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no file system of our own can be mounted here: {tried.stderr.decode()[-200:]}")
    yield lambda running: Path(f"/proc/{running.process.pid}/root{state}")


def fill(disk: Path) -> Path:
    """Take all the room there is."""
    file = disk / "somebody-elses"
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(1 << 20))
    with contextlib.suppress(OSError), file.open("ab", buffering=0) as out:
        while True:
            out.write(bytes(512))
    return file


def test_a_suite_that_fills_the_disk_has_no_verdict(room: Callable[..., Room]) -> None:
    """Tests that find no room fail for want of it: no verdict, and the disk is named. Until a sandbox's files are
    removed there is no room for another either."""
    one = room(
        sleep_s=0,
        before=f"head -c 900000000 /dev/zero > fill; {NEEDS_DISK}",
        limits={"attempts": 2, "concurrency": 1},
    )

    with on_a_small_disk(one, 96):
        rows = check_none_has_a_verdict(one.start().wait(60), "disk was full|No space left on device")

    assert any("disk was full" in cause for row in rows for cause in row.evidence.failures)
    note("disk filled by the suite", "local", rows)


def test_a_disk_that_others_fill_costs_no_verdict(room: Callable[..., Room]) -> None:
    """The provider's disk fills up beside the suites: no score. Once there is room the same command goes on."""
    one = room(before=NEEDS_DISK)

    with on_a_small_disk(one, 96) as way:
        running = one.start()
        with held_asleep(one.asleep, 3):
            fill(way(running))
        ended = running.wait(60)
        check_no_score_is_the_faults(one)
        check_sum(one, no_verdict=3)
        assert 4 == ended.status
        first = one.rows()
        assert all("disk" in " ".join(row.evidence.failures) for row in first), [row.evidence.failures for row in first]
        note("disk filled by others", "local", first)
        note("disk filled by others", "local", check_all_right(one.start().wait(60), attempts=1), then=True)


def test_a_disk_that_others_fill_for_a_moment_costs_an_attempt(room: Callable[..., Room]) -> None:
    """Tests find the provider's disk full, and there is room again before they have ended: what they said does not
    count, and a second sandbox gives the verdict."""
    mark = f"{secrets.randbelow(10**8):08}"
    after_it = f"3.{mark}"
    one = room(mark=mark, before=f"head -c 2000000 /dev/zero > scratch || {{ sleep {after_it}; exit 1; }}")

    with on_a_small_disk(one, 96) as way:
        running = one.start()
        with held_asleep(one.asleep, 3):
            others = fill(way(running))
        with held_asleep(f"sleep\0{after_it}\0".encode(), 3):
            others.unlink()
        rows = check_all_right(running.wait(60), attempts=2)

    assert all("was full meanwhile" in row.evidence.failures[0] for row in rows)
    note("disk filled by others for a moment", "local", rows)


# -- network -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_a_network_of_its_own(one: Room) -> Iterator[Callable[[Running, str], None]]:
    """The grader has a loopback of its own, its only way to its sandboxes. Gives what sets it `up` or `down`."""
    user = () if is_root() else ("--user", "--map-root-user")
    one.inside = ("unshare", *user, "--net", *SHELL, 'ip link set lo up || exit 99; exec "$@"', "sh")
    if shutil.which("ip") is None or subprocess.run([*one.inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network of our own can be made here (unshare, ip)")

    def turn(running: Running, state: str) -> None:
        enter = ["nsenter", "-t", str(running.process.pid), "--net"]
        enter += [] if is_root() else ["--user", "--preserve-credentials"]
        subprocess.run([*enter, "ip", "link", "set", "lo", state], check=True)

    yield turn


def test_a_short_cut_of_the_network_costs_nothing(room: Callable[..., Room]) -> None:
    """The way to the sandboxes is cut while the suites end: their results come afterwards, no test runs twice."""
    one = room(sleep_s=3)

    with on_a_network_of_its_own(one) as turn:
        running = one.start()
        with held_asleep(one.asleep, 3):
            turn(running, "down")
        time.sleep(5)
        turn(running, "up")
        rows = check_all_right(running.wait(60), attempts=1)

    note("network cut for seconds", "local", rows)


@pytest.mark.long
def test_a_long_cut_of_the_network_costs_sandboxes(room: Callable[..., Room]) -> None:
    """A way that stays cut for more than a minute loses the sandboxes behind it; once it is open again new ones give
    the right verdicts."""
    one = room(sleep_s=3, limits={"attempts": 4})

    with on_a_network_of_its_own(one) as turn:
        running = one.start()
        with held_asleep(one.asleep, 3):
            turn(running, "down")
        time.sleep(95)
        turn(running, "up")
        rows = check_all_right(running.wait(120))

    assert all(1 < row.evidence.attempts for row in rows), [row.evidence.attempts for row in rows]
    assert all(row.evidence.failures[0].startswith("SandboxLost") for row in rows)
    note("network cut for more than a minute", "local", rows)


# -- image, grader -----------------------------------------------------------------------------------------------------


def test_a_missing_image_costs_no_verdict(room: Callable[..., Room]) -> None:
    """Where none is to be had nothing is graded, and what to do is said; once it is there, the same command."""
    one = room(sleep_s=0)
    images = Path(one.provider["state_dir"]) / "images"
    images.rename(images.with_name("elsewhere"))
    images.mkdir()

    refused = one.start().wait(60)
    assert 2 == refused.status, refused.said
    assert "is not in the store; save it as an OCI archive" in refused.said
    assert [] == one.rows()
    note("image missing", "local", [])

    images.rmdir()
    images.with_name("elsewhere").rename(images)
    note("image missing", "local", check_all_right(one.start().wait(60), attempts=1), then=True)


def test_a_grader_that_is_killed_goes_on(room: Callable[..., Room]) -> None:
    """kill -9 takes the sandboxes along; the same command grades what has no verdict, and nothing twice."""
    one = room(limits={"concurrency": 2})

    def killed(after: int) -> list[Grading]:
        running = one.start()
        deadline = time.monotonic() + 60
        while not sandboxes_beside(one.asleep) or len(_decided(one)) < after:
            assert time.monotonic() < deadline, one.told()[-2000:]
            time.sleep(0.05)
        running.kill()
        return one.rows()

    assert [] == killed(after=0)
    assert 2 == len({row.model_name_or_path for row in killed(after=2)})
    rows = check_all_right(one.start().wait(60), attempts=1)

    assert 3 == len(rows) == len(one.rows())
    note("grader killed with SIGKILL, same command again", "local", rows)


def _decided(one: Room) -> list[Grading]:
    return [row for row in one.rows() if row.outcome is not Outcome.NO_VERDICT]
