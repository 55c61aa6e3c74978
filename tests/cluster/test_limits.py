"""What a spec asks of a pod is read back inside it, on a real node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandbox import KubernetesConfig, SandboxSpec, open_provider

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]


async def test_every_limit_of_a_spec_holds_in_the_pod(config: Callable[..., KubernetesConfig], image: str) -> None:
    """CPUs, quota, memory, user, umask, open files, /dev/shm, variables and the filter of system calls."""
    spec = SandboxSpec(
        image=image,
        cpus=1,
        cpu_quota=0.5,
        memory_mib=300,
        user=1234,
        umask=0o027,
        open_files=512,
        shm_mib=32,
        egress="open",
        env={"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "7"},
    )
    show = "id -u; id -g; umask; nproc; ulimit -n; date +%Z; echo $LC_ALL $PYTHONHASHSEED; stat -fc '%b %S' /dev/shm"
    async with open_provider(config(guard="unguarded")) as provider, provider.sandbox(spec) as box:
        facts = await box.facts()
        shown = (await box.run(show, timeout_s=20)).output.decode().splitlines()

    assert (1, 0.5, 300, 1234) == (facts.visible_cpus, facts.cpu_quota, facts.memory_limit_mib, facts.user_id)
    assert ["1234", "1234", "0027", "1", "512", "JST", "C.UTF-8 7"] == shown[:7]
    assert (1, 2) == (facts.raw["no_new_privileges"], facts.raw["seccomp"])
    blocks, size = map(int, shown[7].split())
    assert (() if blocks * size == 32 << 20 else ("shm_mib",)) == box.unenforced  # servers before 1.22 size no /dev/shm


async def test_what_does_not_hold_is_named(config: Callable[..., KubernetesConfig], image: str) -> None:
    """The number of processes is the node's to decide, and nobody gets more open files than the node allows."""
    spec = SandboxSpec(image=image, egress="open", processes=50, open_files=1 << 30, seccomp="unconfined")
    async with open_provider(config(guard="unguarded")) as provider, provider.sandbox(spec) as box:
        facts = await box.facts()

    assert ("processes", "open_files") == box.unenforced
    assert 0 == facts.raw["seccomp"]
