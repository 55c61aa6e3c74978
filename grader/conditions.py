"""Declared run conditions against observed ones, and what to ask of a sandbox so that they agree. Pure.

The law: what is declared and was read must be equal, or no test runs; what is declared and could not be read is allowed
and recorded as unread; what is not declared is recorded and never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grader.campaign import Conditions, Limits
from sandbox import Facts, SandboxSpec
from tasksets.task import Task

UNSET = "unset"
"""What is observed of a variable that the tests' shell does not have. It was read, so it can contradict."""


@dataclass(frozen=True)
class Observed:
    """What was read in the sandbox, by the names of `Conditions`. A name that is absent could not be read."""

    values: Mapping[str, object]


@dataclass(frozen=True)
class Comparison:
    """How the declared conditions fared. Names, but for `contradicted`, which has one sentence each."""

    agreed: tuple[str, ...]
    contradicted: tuple[str, ...]
    unread: tuple[str, ...]


def declared(conditions: Conditions) -> dict[str, object]:
    """The conditions that are declared, by name."""
    return conditions.model_dump(exclude_none=True)


def compare(conditions: Conditions, observed: Observed) -> Comparison:
    """Hold every declared condition against what was observed."""
    agreed, contradicted, unread = [], [], []
    for name, want in declared(conditions).items():
        if name not in observed.values:
            unread.append(name)
        elif observed.values[name] == want:
            agreed.append(name)
        else:
            have = observed.values[name]
            contradicted.append(f"{_WORDS[name]} is declared as {want} and observed as {have}; {_REMEDIES[name]}")
    return Comparison(tuple(agreed), tuple(contradicted), tuple(unread))


def environment(conditions: Conditions) -> dict[str, str]:
    """The variables that make the tests' shell agree with what is declared."""
    variables: dict[str, str] = {}
    if conditions.hash_seed is not None:
        variables["PYTHONHASHSEED"] = str(conditions.hash_seed)
    if conditions.time_zone is not None:
        variables["TZ"] = conditions.time_zone
    if conditions.locale is not None:
        variables |= {"LANG": conditions.locale, "LC_ALL": conditions.locale}
    return variables


def spec_for(task: Task, conditions: Conditions, limits: Limits) -> SandboxSpec:
    """The sandbox that one grading of `task` needs. Egress that is not declared is denied."""
    if task.image is None:
        raise ValueError(f"{task.task_id} names no image; give it a recipe")
    return SandboxSpec(
        image=task.image,
        cpus=conditions.visible_cpus,
        memory_mib=conditions.memory_mib,
        egress=conditions.egress or "denied",
        env=environment(conditions),
        lifetime_s=limits.grading_timeout_s + 60.0,
        labels={"task": task.task_id},
    )


def observed_from(facts: Facts, variables: Mapping[str, str] | None, *, test_time_limit_s: float) -> Observed:
    """What the daemon's facts, the tests' shell's variables and the limit that will be sent say.

    `variables` None: the environment could not be read.
    """
    values: dict[str, object | None] = {
        "egress": {"reached": "open", "unreachable": "denied", None: None}[facts.canary],
        "visible_cpus": facts.visible_cpus,
        "memory_mib": facts.memory_limit_mib,
        "test_time_limit_s": test_time_limit_s,
        "user": facts.user_id,
    }
    if variables is not None:
        values["hash_seed"] = _hash_seed(variables.get("PYTHONHASHSEED"))
        values["time_zone"] = variables.get("TZ", UNSET)
        values["locale"] = variables.get("LC_ALL") or variables.get("LANG") or UNSET
    return Observed({name: value for name, value in values.items() if value is not None})


def _hash_seed(value: str | None) -> object:
    if value is None:
        return UNSET
    return int(value) if value.isascii() and value.isdigit() else value


_WORDS = {
    "egress": "egress",
    "visible_cpus": "the number of visible CPUs",
    "memory_mib": "the memory limit in MiB",
    "test_time_limit_s": "the tests' time limit in seconds",
    "hash_seed": "PYTHONHASHSEED",
    "time_zone": "the time zone",
    "locale": "the locale",
    "user": "the user id",
}

_REMEDIES = {
    "egress": "look at the provider's network or declare what it gives",
    "visible_cpus": "declare a number that the provider can give",
    "memory_mib": "declare the limit that the provider enforces, or none",
    "test_time_limit_s": "give the grader the declared limit",
    "hash_seed": "the task's set-up changes it",
    "time_zone": "the task's set-up changes it",
    "locale": "the task's set-up changes it",
    "user": "use an image or a provider that runs as the declared user",
}
