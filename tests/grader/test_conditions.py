"""Claims about `grader.conditions`: what agrees, what contradicts, and what is asked of a sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.campaign import Conditions, Limits
from grader.conditions import UNSET, Observed, compare, declared, environment, observed_from, spec_for
from sandbox import Facts
from tests.grader.tasks import make_repo, make_task

FULL = Conditions(
    egress="denied",
    visible_cpus=2,
    memory_mib=2048,
    test_time_limit_s=60,
    hash_seed=0,
    time_zone="UTC",
    locale="C.UTF-8",
    user=0,
)
FACTS = Facts(
    visible_cpus=2,
    cpu_quota=None,
    memory_limit_mib=2048,
    user_id=0,
    interfaces=("lo",),
    canary="unreachable",
    python_version="3.11.2",
    architecture="x86_64",
    kernel="6.1",
)
VARIABLES = {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8", "LANG": "de_DE.UTF-8"}


def test_equal_conditions_agree() -> None:
    """Where all that is declared was read and is equal, every name agrees and nothing else is said."""
    comparison = compare(FULL, observed_from(FACTS, VARIABLES, test_time_limit_s=60))
    assert set(declared(FULL)) == set(comparison.agreed)
    assert comparison.contradicted == ()
    assert comparison.unread == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("egress", "open"),
        ("visible_cpus", 64),
        ("memory_mib", 1024),
        ("test_time_limit_s", 30.0),
        ("hash_seed", UNSET),
        ("time_zone", "Europe/Berlin"),
        ("locale", UNSET),
        ("user", 1000),
    ],
)
def test_each_difference_contradicts(name: str, value: object) -> None:
    """Any one condition that was read and differs contradicts, in a sentence with both values."""
    values = dict(observed_from(FACTS, VARIABLES, test_time_limit_s=60).values) | {name: value}
    comparison = compare(FULL, Observed(values))
    assert len(comparison.contradicted) == 1
    assert str(declared(FULL)[name]) in comparison.contradicted[0]
    assert str(value) in comparison.contradicted[0]


@given(st.sets(st.sampled_from(sorted(declared(FULL)))))
def test_unread_is_no_contradiction(lost: set[str]) -> None:
    """Whatever could not be read is said to be unread, and neither agrees nor contradicts."""
    values = {
        name: value
        for name, value in observed_from(FACTS, VARIABLES, test_time_limit_s=60).values.items()
        if name not in lost
    }
    comparison = compare(FULL, Observed(values))
    assert lost == set(comparison.unread)
    assert set(declared(FULL)) - lost == set(comparison.agreed)


def test_undeclared_is_never_compared() -> None:
    """A condition that is not declared is observed and compared with nothing."""
    bare = Conditions(egress=None, test_time_limit_s=60)
    comparison = compare(bare, observed_from(FACTS, VARIABLES, test_time_limit_s=60))
    assert comparison.agreed == ("test_time_limit_s",)
    assert comparison.contradicted == ()


def test_facts_that_could_not_be_read_are_absent() -> None:
    """None in the facts, and an environment that could not be read, leave their names out."""
    nothing = Facts(None, None, None, None, None, None, None, None, None)
    assert observed_from(nothing, None, test_time_limit_s=1).values == {"test_time_limit_s": 1}


@pytest.mark.parametrize(
    ("variables", "locale"),
    [
        ({"LANG": "C"}, "C"),
        ({"LANG": "C", "LC_ALL": "POSIX"}, "POSIX"),
        ({"LANG": "C", "LC_ALL": ""}, "C"),
        ({}, UNSET),
    ],
)
def test_locale_is_the_one_in_force(variables: dict[str, str], locale: str) -> None:
    """LC_ALL wins over LANG, and an empty one counts for nothing, as POSIX has it."""
    assert locale == observed_from(FACTS, variables, test_time_limit_s=1).values["locale"]


def test_environment_makes_the_declared_hold() -> None:
    """The variables that are set, read back, agree with what is declared; what is undeclared sets none."""
    observed = observed_from(FACTS, environment(FULL), test_time_limit_s=60)
    assert compare(FULL, observed).contradicted == ()
    assert environment(Conditions()) == {}


def test_spec_asks_for_what_is_declared(tmp_path: Path) -> None:
    """The sandbox's spec carries the task's image and every declared condition that a provider can give."""
    task = make_task(make_repo(tmp_path / "r"))
    spec = spec_for(task, FULL, Limits(grading_timeout_s=100))
    assert ("host", 2, 2048, "denied") == (spec.image, spec.cpus, spec.memory_mib, spec.egress)
    assert environment(FULL) == spec.env
    assert spec.lifetime_s > 100
    assert spec_for(task, Conditions(egress=None), Limits()).egress == "denied"
