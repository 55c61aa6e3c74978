"""From what is declared to what is asked of a provider, so that the two agree. Pure.

Asked of it: egress, CPUs, quota, memory, processes, open files, `/dev/shm`, user, umask, seccomp, and the environment.
Not to be set, only read: what the image brings (zone files, locales), what the machine is (clock, architecture, kernel,
IPv6, the CPUs that it counts), and what the provider's own config chooses (runtime class).
"""

from __future__ import annotations

from grader.campaign import Conditions, Limits
from sandbox import SandboxSpec
from tasksets.task import Task


def declared(conditions: Conditions) -> dict[str, object]:
    """The conditions that are declared, by name."""
    return conditions.model_dump(exclude_none=True)


def environment(conditions: Conditions) -> dict[str, str]:
    """The variables that make the tests' shell agree with what is declared."""
    variables: dict[str, str] = dict(conditions.environment or {})
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
    spec = SandboxSpec(
        image=task.image,
        cpus=conditions.visible_cpus,
        cpu_quota=conditions.cpu_quota,
        memory_mib=conditions.memory_mib,
        processes=conditions.processes,
        open_files=conditions.open_files,
        shm_mib=conditions.shm_mib,
        user=conditions.user,
        seccomp=conditions.seccomp,
        egress=conditions.egress or "denied",
        env=environment(conditions),
        lifetime_s=limits.grading_timeout_s + 60.0,
        labels={"task": task.task_id},
    )
    return spec if conditions.umask is None else spec.model_copy(update={"umask": int(conditions.umask, 8)})
