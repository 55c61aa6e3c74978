"""Claims about `grader.conditions`: what agrees, what contradicts, and what is asked of a sandbox."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.campaign import Conditions, Limits, load
from grader.conditions import UNSET, Look, Observed, Promises, compare, declared, environment, observed_from, spec_for
from grader.conditions.compare import RULES
from grader.conditions.hashes import ROUNDS, hash_under, seed_of
from grader.conditions.observed import INSTANTS, OF_THE_TESTS, TEXT, Clock, zone_at
from grader.errors import UsageError
from grader.hold import PromiseBroken, held
from sandbox import Facts, Identity, Sandbox
from tests.execd.conftest import PYTHONS
from tests.grader.declarations import WRONG, right
from tests.grader.tasks import make_repo, make_task

DIGEST = "sha256:" + "1" * 64
FULL = right(DIGEST).model_copy(update={"tzdata_version": "2025b", "clock_within_s": 5.0})
PROMISES = Promises(test_time_limit_s=30, attempts=2)
FACTS = dataclasses.replace(
    Facts(None, None, None, None, None, None, None, None, None),
    raw={"cgroup": {"cpus": 0.9, "memory_bytes": 1024 << 20, "processes": 500}},
)
IDENTITY = Identity("sb", "local", "boot", "host", DIGEST, "now", 0, 1, runtime="bubblewrap")
CLOCK = Clock(100.0, 101.0)


def a_look(**changes: Any) -> Look:
    """What a sandbox that is as `FULL` declares would show."""
    zone = zone_at("Europe/Berlin", INSTANTS)
    assert zone is not None
    system = os.uname()
    seen = {
        "clock": 100.5,
        "python": "cpython 3.11.2",
        "packages": ["pytest==7.4"],
        "hash": [hash_under(7, TEXT, "siphash13"), "siphash13", 64],
        "visible_cpus": 1,
        "cpu_count": 1,
        "open_files": 512,
        "user": 1234,
        "umask": 0o027,
        "shm_bytes": 32 << 20,
        "ipv6": FULL.ipv6,
        "zone": zone,
        "tzdata_version": "2025b",
        "locale": "C.UTF-8",
        "machine": list(system),
        "seccomp": 2,
        "environment": {"PYTHONHASHSEED": "7", "TZ": "Europe/Berlin", "MODE": "fast", "OTHER": "x"},
        "reached": [],
    }
    return Look.parse(json.dumps(seen | changes).encode())


def seen(look: Look | None = None, conditions: Conditions = FULL, **how: Any) -> Observed:
    return observed_from(look or a_look(), FACTS, conditions, PROMISES, **{"clock": CLOCK, "identity": IDENTITY, **how})


def test_equal_conditions_agree() -> None:
    """Where all that is declared was read and is equal, every name agrees and nothing else is said."""
    comparison = compare(FULL, seen())
    assert (set(Conditions.model_fields), (), ()) == (
        set(comparison.agreed),
        comparison.contradicted,
        comparison.unread,
    )


def test_a_python_that_does_not_run_contradicts_what_only_it_could_tell() -> None:
    """No test would run in it. Where nothing of that is declared, it is recorded and no more."""
    silent = {"look": Look(), "silent_python": "/usr/bin/python3"}
    comparison = compare(FULL, seen(**silent))
    [told] = comparison.contradicted
    assert OF_THE_TESTS < set(comparison.unread) == OF_THE_TESTS | {"egress"}
    assert "/usr/bin/python3, does not run" in told
    assert all(name in told for name in OF_THE_TESTS)
    undeclared = Conditions(test_time_limit_s=FULL.test_time_limit_s)
    assert () == compare(undeclared, seen(conditions=undeclared, **silent)).contradicted


def test_every_condition_has_words_a_remedy_and_a_wrong_declaration() -> None:
    """No condition can be declared that is not compared, told of, and shown to be refused."""
    assert set(Conditions.model_fields) == set(RULES) == set(WRONG)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("egress", "open"),
        ("visible_cpus", 64),
        ("cpu_count", 64),
        ("cpu_quota", "unlimited"),
        ("memory_mib", 16384),
        ("memory_mib", "unlimited"),
        ("processes", "unlimited"),
        ("open_files", 1024),
        ("shm_mib", 64),
        ("test_time_limit_s", 31.0),
        ("attempts", 3),
        ("hash_seed", UNSET),
        ("time_zone", "UTC+00:00 UTC"),
        ("tzdata_version", "2024a"),
        ("locale", "C"),
        ("user", 0),
        ("umask", "022"),
        ("ipv6", not FULL.ipv6),
        ("clock_within_s", 5.1),
        ("architecture", "pdp11"),
        ("kernel", "2.6"),
        ("runtime_class", "default"),
        ("seccomp", "unconfined"),
        ("environment", {"MODE": "slow"}),
        ("image_digest", "sha256:" + "2" * 64),
    ],
)
def test_each_difference_contradicts(name: str, value: object) -> None:
    """Any one condition that was read and differs contradicts, in a sentence with both values."""
    comparison = compare(FULL, seen().but(**{name: value}))
    [told] = comparison.contradicted
    assert str(declared(FULL)[name]) in told
    assert str(value) in told
    assert set(Conditions.model_fields) - {name} == set(comparison.agreed)


@given(st.sets(st.sampled_from(sorted(declared(FULL)))))
def test_unread_is_no_contradiction(lost: set[str]) -> None:
    """Whatever could not be read is said to be unread, and neither agrees nor contradicts."""
    comparison = compare(FULL, Observed({name: value for name, value in seen().values.items() if name not in lost}))
    assert (lost, set(declared(FULL)) - lost) == (set(comparison.unread), set(comparison.agreed))


def test_undeclared_is_observed_and_never_compared() -> None:
    """A condition that is not declared is recorded and compared with nothing; so are image, Python and packages."""
    bare = Conditions(egress=None, test_time_limit_s=30)
    observed = seen(conditions=bare)
    assert ("test_time_limit_s",) == compare(bare, observed).agreed
    assert () == compare(bare, observed).contradicted
    recorded = {"image_digest", "tzdata_version", "python", "packages", "umask", "locale", "time_zone"}
    assert recorded <= observed.values.keys()
    assert ["pytest==7.4"] == observed.values["packages"]


@given(
    st.dictionaries(
        st.sampled_from(sorted(Look.model_fields)), st.none() | st.integers() | st.text() | st.lists(st.integers())
    )
)
def test_nonsense_is_unread(nonsense: dict[str, object]) -> None:
    """An answer of any form is parsed; what has not its form is not read, and the rest still is."""
    look = a_look(**nonsense)
    compare(FULL, seen(look))
    kept = set(Look.model_fields) - nonsense.keys() - {"executable", "encoding"}
    assert all(getattr(look, name) is not None for name in kept)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"null", b'{"hash": []}'])
def test_no_answer_reads_nothing(text: bytes) -> None:
    """Without an answer of the right form nothing was read."""
    assert Look() == Look.parse(text)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"hash": ' * 100_000], ids=["lists", "objects"])
def test_a_deep_answer_reads_nothing(text: bytes) -> None:
    """JSON that is nested beyond what a parser bears is an answer of another form, and no failure of ours."""
    assert Look() == Look.parse(text)


def test_a_name_that_is_no_text_costs_one_fact() -> None:
    """An image's directory whose name is no Unicode leaves the packages unread, and nothing else."""
    name = os.fsdecode(b"caf\xe9==1.0")
    assert a_look(packages=None) == a_look(packages=["pytest==7.4", name])


def test_a_clock_that_is_no_number_is_unread() -> None:
    """Not-a-number is within no bound, so it is not held against one."""
    assert a_look(clock=math.nan).clock is None


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_hashes_are_those_of_cpython(python: str) -> None:
    """On each Python found: its hash of our text under a seed is the one that we expect, and no other seed's."""
    code = f"import sys; print(hash({TEXT!r}), sys.hash_info.algorithm)"
    for seed in (0, 1, 42, 4294967295):
        answer = subprocess.run(
            [python, "-c", code], env={"PYTHONHASHSEED": str(seed)}, capture_output=True, check=True
        )
        made, algorithm = answer.stdout.decode().split()
        assert algorithm in ROUNDS
        assert seed == seed_of(int(made), TEXT, algorithm, (3, seed, 5))


@given(st.integers(0, 4294967295), st.integers(0, 4294967295), st.sampled_from(sorted(ROUNDS)))
def test_two_seeds_do_not_pass_for_each_other(seed: int, other: int, algorithm: str) -> None:
    """A hash under one seed is not found under another."""
    found = seed_of(hash_under(seed, TEXT, algorithm), TEXT, algorithm, [other])
    assert found == (seed if seed == other else None)


def test_the_hash_counts_and_not_the_variable() -> None:
    """A variable that names the declared seed, in a Python that does not hash by it, contradicts."""
    ignoring = a_look(hash=[12345, "siphash13", 64])
    assert "random" == seen(ignoring).values["hash_seed"]
    assert 1 == len(compare(FULL, seen(ignoring)).contradicted)
    strange = a_look(hash=[12345, "fnv", 64])
    assert ("hash_seed",) == compare(FULL, seen(strange)).unread


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
def test_zones_are_those_that_the_c_library_has(name: str) -> None:
    """What is expected of a zone is what a Python under `TZ` tells, names and offsets, summer and winter."""
    code = f"import time; print([(time.localtime(a).tm_gmtoff, time.localtime(a).tm_zone) for a in {INSTANTS}])"
    told = subprocess.run(["python3", "-c", code], env={**os.environ, "TZ": name}, capture_output=True, check=True)
    assert repr(list(zone_at(name, INSTANTS) or ())) == told.stdout.decode().strip()


def test_a_zone_that_is_not_known_here_is_unread() -> None:
    """What this machine cannot work out itself it does not compare."""
    mars = FULL.model_copy(update={"time_zone": "Mars/Olympus_Mons"})
    assert ("time_zone",) == compare(mars, seen(conditions=mars)).unread


def test_a_zone_whose_file_is_missing_contradicts() -> None:
    """The C library then tells UTC under the zone's name; that is not the zone."""
    fallen_back = a_look(zone=[[0, "Europe"]] * len(INSTANTS))
    [told] = compare(FULL, seen(fallen_back)).contradicted
    assert "UTC+00:00 Europe (TZ=Europe/Berlin)" in told


@pytest.mark.parametrize(
    ("name", "want", "have", "agrees"),
    [
        ("kernel", "6.1", "6.1.0-13-amd64", True),
        ("kernel", "6.1", "6.12.1", False),
        ("kernel", "6.1.0-13-amd64", "6.1.0-13-amd64", True),
        ("locale", "C.UTF-8", "C.utf8", True),
        ("locale", "en_US.UTF-8", "en_US.ISO8859-1", False),
        ("locale", "POSIX", "C", True),
        ("umask", "022", "0022", True),
        ("cpu_quota", 1.5, 1.5001, True),
        ("cpu_quota", 1.5, 2.0, False),
        ("clock_within_s", 5.0, 0.0, True),
        ("environment", {"A": "1"}, {"A": "1", "B": "2"}, True),
        ("environment", {"A": "1"}, {"B": "2"}, False),
    ],
)
def test_values_are_compared_by_what_they_mean(name: str, want: Any, have: Any, agrees: bool) -> None:
    """Releases by their first parts, locales by their codeset, masks as numbers, quotas as the kernel rounds them."""
    comparison = compare(Conditions(egress=None, **{name: want}), Observed({name: have, "test_time_limit_s": 1800.0}))
    assert agrees == (not comparison.contradicted)


@pytest.mark.parametrize(("told", "off"), [(100.0, 0.0), (100.9, 0.0), (99.0, 1.0), (103.5, 2.5)])
def test_the_clock_is_off_by_what_the_wait_cannot_explain(told: float, off: float) -> None:
    """A clock inside the time that the question took is right; another is off by the distance to it."""
    assert off == CLOCK.off_by(told)


@pytest.mark.parametrize(
    ("reached", "tried", "egress"),
    [
        ([], True, "denied"),
        ([], False, None),
        (["dns"], True, "open"),
        (["canary"], True, "open"),
        (["neighbour"], False, "open"),
        (None, True, None),
    ],
)
def test_any_answer_is_a_way_out(reached: list[str] | None, tried: bool, egress: str | None) -> None:
    """One answer from anywhere proves a way out; silence proves something only where a canary was tried."""
    assert egress == seen(a_look(reached=reached), egress_tried=tried).values.get("egress")


def test_environment_makes_the_declared_hold() -> None:
    """The variables that are set stand for what is declared; what is undeclared sets none."""
    expected = {"MODE": "fast", "PYTHONHASHSEED": "7", "TZ": "Europe/Berlin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    assert expected == environment(FULL)
    assert {} == environment(Conditions())


def test_spec_asks_for_what_is_declared(tmp_path: Path) -> None:
    """The sandbox's spec carries the task's image and every declared condition that a provider can give."""
    task = make_task(make_repo(tmp_path / "r"))
    spec = spec_for(task, FULL, Limits(grading_timeout_s=100))
    assert ("host", "denied", environment(FULL)) == (spec.image, spec.egress, spec.env)
    assert (1, 0.9, 1024, 500) == (spec.cpus, spec.cpu_quota, spec.memory_mib, spec.processes)
    assert (512, 32, 1234, 0o027, "filtered") == (
        spec.open_files,
        spec.shm_mib,
        spec.user,
        spec.umask,
        spec.seccomp,
    )
    assert spec.lifetime_s > 100
    bare = spec_for(task, Conditions(egress=None), Limits())
    assert ("denied", 0o022, None) == (bare.egress, bare.umask, bare.user)


def test_a_campaign_file_declares_them(tmp_path: Path) -> None:
    """Conditions are a table of the campaign's file, the environment a table in it."""
    file = tmp_path / "campaign.toml"
    file.write_text(
        'taskset = "t.jsonl"\nrun = "r"\n[conditions]\numask = "027"\nkernel = "6.1"\nipv6 = false\n'
        '[conditions.environment]\nMODE = "fast"\n'
    )
    expected = Conditions(umask="027", kernel="6.1", ipv6=False, environment={"MODE": "fast"})
    assert expected == load(file, {}).conditions


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ({"time_zone": "Europe/Berln"}, "`conditions.time_zone` is 'Europe/Berln': is no time zone"),
        ({"umask": "999"}, "`conditions.umask` is '999'"),
        ({"environment": {"TZ": "UTC"}}, "TZ is declared by `time_zone`; use that"),
        ({"environment": {"LANG": "C"}}, "LANG is declared by `locale`; use that"),
        ({"image_digest": "latest"}, "`conditions.image_digest` is 'latest'"),
    ],
)
def test_a_mistaken_declaration_is_told_before_anything_starts(mistake: dict[str, Any], told: str) -> None:
    """What cannot hold anywhere is refused with the setting's name, not run and recorded as unread."""
    with pytest.raises(UsageError) as refused:
        load(None, {"taskset": "t.jsonl", "run": "r", "conditions": mistake})
    assert told.lower() in str(refused.value).lower()


@pytest.mark.anyio
async def test_tests_are_sent_as_promised_or_not_at_all() -> None:
    """The tests' command goes out under the promised limit only, run or streamed; everything else passes."""
    sent: list[tuple[str, float]] = []

    class Box:
        async def run(self, command: str, *, timeout_s: float, session: str = "main") -> None:
            sent.append((command, timeout_s))

        def stream(self, command: str, *, timeout_s: float) -> None:
            sent.append((command, timeout_s))

    box: Any = held(cast(Sandbox, Box()), PROMISES, "pytest -rA")
    await box.run("export X=1; pytest -rA", timeout_s=30)
    await box.run("make", timeout_s=99)
    await box.run("echo pytest -rA", timeout_s=99, session="another")
    passed = [("export X=1; pytest -rA", 30), ("make", 99), ("echo pytest -rA", 99)]
    assert passed == sent
    with pytest.raises(PromiseBroken, match="promised as 30 s and was about to be sent as 3600 s"):
        await box.run("pytest -rA", timeout_s=3600)
    with pytest.raises(PromiseBroken):
        box.stream(b"pytest -rA", timeout_s=29)
    assert passed == sent


def test_promises_are_what_will_be_done() -> None:
    """A grading's own budget cuts the tests' time limit, and the promise says so."""
    assert Promises(20, 2) == Promises.of(Conditions(test_time_limit_s=30), Limits(grading_timeout_s=20, attempts=2))


def test_a_comparison_is_quick() -> None:
    """All of it, hashes included, takes no time that a grading would notice."""
    began = time.process_time()
    for _ in range(20):
        compare(FULL, seen())
    assert (time.process_time() - began) / 20 < 0.01
