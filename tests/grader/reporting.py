"""The reporter outside of a sandbox: its files and a FIFO in a directory, a test command, and what was heard."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.channel import Heard, TestRecord, read_records
from grader.channel.listen import FILES

KEY = "5" * 64
REPORTERS = Path(__file__).parents[2] / "grader" / "reporters"


@dataclass(frozen=True)
class Reported:
    """A run under the reporter."""

    exit_code: int
    output: bytes
    heard: Heard
    raw: bytes

    @property
    def told(self) -> dict[str, str]:
        """Each test's outcome."""
        return {test_id: str(outcome) for test_id, outcome in self.heard.outcomes.items()}

    def records(self) -> list[TestRecord]:
        return [record for suite in self.heard.suites for record in suite.records]


def run_reported(
    command: Sequence[str], *, cwd: Path, folder: Path, env: Mapping[str, str] | None = None, timeout_s: float = 120
) -> Reported:
    """Run `command` with the reporter in its Pythons; `folder` gets the channel's directory."""
    here = folder / "channel"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(REPORTERS / name, here / name)
    (here / "key").write_text(KEY)
    (here / "spill").touch()
    os.mkfifo(here / "pipe")
    ours = os.open(here / "pipe", os.O_RDWR)
    heard = bytearray()
    over = b"\nover\n"

    def listen() -> None:
        while not heard.endswith(over):
            heard.extend(os.read(ours, 1 << 16))

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(here), **(env or {})}
        ran = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    finally:
        os.write(ours, over)
        listener.join()
        os.close(ours)
    raw = bytes(heard).removesuffix(over) + (here / "spill").read_bytes()
    return Reported(ran.returncode, ran.stdout, read_records(raw, KEY), raw)
