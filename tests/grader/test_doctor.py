"""`grader doctor` and `grader janitor` on this machine: real sandboxes, and what is said where something is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grader.cli import main
from sandbox.local.limits import find_hierarchies

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from sandbox import LocalConfig, SandboxSpec, open_provider

async def hold():
    async with open_provider(LocalConfig(state_dir=Path(sys.argv[1]))) as provider:
        async with provider.sandbox(SandboxSpec(image="host")) as box:
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(hold())
"""


def findings(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, dict[str, object]]]:
    status = main(["doctor", "--json", *map(str, words)])
    told = capfd.readouterr()
    assert "Traceback" not in told.err
    return status, {line["check"]: line for line in map(json.loads, told.out.splitlines())}


def test_this_machine_is_looked_at_from_inside_a_sandbox(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Namespaces, overlay, egress and CPUs are tried; a limit is called enforced only where it was read back inside."""
    status, told = findings(capfd, "--state-dir", tmp_path)

    assert 0 == status, told
    tried = ("bubblewrap", "user namespaces", "overlay", "round trip", "egress", "cpus")
    assert dict.fromkeys(tried, "ok") == {check: told[check]["level"] for check in tried}
    enforced = any("memory" in hierarchy.controllers for hierarchy in find_hierarchies())
    assert ("ok" if enforced else "warning") == told["memory"]["level"]
    assert {"ok", "warning"} >= {str(told[limit]["level"]) for limit in ("cpu_quota", "processes", "open_files")}
    assert "enforced: 1024 was asked for and read back" == told["open_files"]["said"]
    assert [] == [path for path in (tmp_path / "run").iterdir() if path.is_dir()]


def test_the_python_that_was_chosen_is_the_one_that_is_tried(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A `host_python` that cannot run execd is found before a campaign meets it."""
    file = tmp_path / "campaign.toml"
    file.write_text('taskset = "t.jsonl"\nrun = "r"\n[provider]\ntype = "local"\nhost_python = "/no/python"\n')

    status, told = findings(capfd, file, "--state-dir", tmp_path)

    assert (2, {"sandboxes"}) == (status, told.keys())


def test_people_get_one_line_each(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The level stands first, and nothing is cut."""
    assert 0 == main(["doctor", "--state-dir", str(tmp_path)])
    lines = capfd.readouterr().out.splitlines()

    assert {"ok", "note", "warning"} >= {line.split()[0] for line in lines}
    assert any(line.startswith("ok       egress: tried") for line in lines)


def test_an_image_that_is_not_there_is_to_be_mended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and the finding says how to bring it in."""
    status, told = findings(capfd, "--state-dir", tmp_path, "--image", f"x@sha256:{'0' * 64}")

    assert 2 == status
    assert "error" == told["round trip"]["level"]
    assert "grader images import" in str(told["round trip"]["said"])


def test_more_cpus_than_the_machine_has_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What a campaign declares is what is looked at: one that no sandbox here can have is an error."""
    file = tmp_path / "campaign.toml"
    file.write_text('taskset = "t.jsonl"\nrun = "r"\n[conditions]\nvisible_cpus = 4096\n')

    status, told = findings(capfd, file, "--state-dir", tmp_path)

    assert (2, "error") == (status, told["cpus"]["level"])


def test_a_state_directory_that_cannot_be_used_is_one_finding(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file in its place is an error of one line, no traceback."""
    (tmp_path / "file").write_text("")

    status, told = findings(capfd, "--state-dir", tmp_path / "file")

    assert (2, {"sandboxes"}) == (status, told.keys())


def test_a_cluster_that_does_not_answer_is_infrastructure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No kubeconfig is to be mended (2); a server that nobody listens for may come back (4)."""
    absent = tmp_path / "absent"
    status, told = findings(capfd, "--provider", "kubernetes", "--kubeconfig", absent)
    assert (2, "error") == (status, told["server"]["level"])

    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {}}]
    config = {"current-context": "c", "clusters": [cluster], "contexts": contexts, "users": users}
    (tmp_path / "kube").write_text(json.dumps(config))
    status, told = findings(capfd, "--provider", "kubernetes", "--kubeconfig", tmp_path / "kube")
    assert (4, "failure") == (status, told["server"]["level"])


def test_the_janitor_removes_what_a_killed_process_left(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """After kill -9 the next run of the janitor removes the directories, and a further one finds nothing."""
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=dict(os.environ), check=False)
    assert -signal.SIGKILL == killed.returncode

    assert 0 == main(["janitor", "--state-dir", str(tmp_path), "--json"])
    first = json.loads(capfd.readouterr().out)
    assert 0 == main(["janitor", "--state-dir", str(tmp_path)])
    second = capfd.readouterr().out

    assert (1, 1) == (first["instances"], first["sandboxes"])
    assert "0 sandboxes and 0 processes of 0 dead providers removed\n" == second
    assert [] == list((tmp_path / "run").iterdir())
