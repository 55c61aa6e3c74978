"""The kill against the fastest chain of forks that there is, in a sandbox of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sandbox import LocalConfig, SandboxSpec, open_provider

HOPS = """
#include <signal.h>
#include <unistd.h>
int main(void) {
    signal(SIGTERM, SIG_IGN);
    for (long i = 0; i < 300000; i++) {
        if (fork()) _exit(0);
        setsid();
    }
    return 0;
}
"""
# A list of processes may overlook a chain; the count of pids that were given out does not.
LEFT = """
read -r _ _ _ _ before < /proc/loadavg; sleep 0.5; read -r _ _ _ _ after < /proc/loadavg
echo $((after - before)); kill -0 $p && echo earlier; ps -o s= -p $halted
"""


def _compile(compiler: str, target: Path) -> None:
    """A static program forks faster; not every machine has what it needs."""
    command = [compiler, "-O1", "-o", str(target), "-x", "c", "-"]
    if subprocess.run([*command, "-static"], input=HOPS.encode(), capture_output=True, check=False).returncode:
        subprocess.run(command, input=HOPS.encode(), check=True)


@pytest.mark.anyio
async def test_no_chain_of_forks_outruns_the_kill(tmp_path: Path) -> None:
    """Processes that fork, leave their session and end, as fast as they can, all die at a time-out. What ran before
    lives on, and what was stopped before stays stopped."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    hops = tmp_path / "hops"
    _compile(compiler, hops)
    async with (
        open_provider(LocalConfig(state_dir=tmp_path / "state")) as provider,
        provider.sandbox(SandboxSpec(image="host")) as box,
    ):
        await box.write("/tmp/hops", hops.read_bytes(), mode=0o755)
        await box.run("sleep 86 & p=$!; sleep 88 & halted=$!; kill -STOP $halted", timeout_s=30)
        job = await box.start("sleep 87")
        for _ in range(3):  # a kill without proof is outrun in about one of four
            result = await box.run("for i in 1 2 3 4; do /tmp/hops & done; sleep 60", timeout_s=1)
            assert (True, False) == (result.timed_out, result.shell_restarted)
        assert b"1\nearlier\nT\n" == (await box.run(LEFT, timeout_s=30)).output
        assert await job.poll() is None
