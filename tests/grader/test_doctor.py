"""`grader doctor` and `grader janitor` on this machine: real sandboxes, and what is said where something is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grader.campaign import load
from grader.cli import main
from grader.doctor import examine
from sandbox.finding import Finding
from sandbox.local.limits import find_hierarchies
from tests.grader.rows import task_row
from tests.grader.test_preflight import EVAL
from tests.grader.test_run import recipe, write_lines

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

    assert (2, {"sandboxes", "conditions"}) == (status, told.keys())
    assert "not tried: mend the above first" == told["conditions"]["said"]


def a_campaign(directory: Path, conditions: str, *, image: str = "host") -> Path:
    row = {**task_row("demo__one-0"), "eval_script": EVAL, "log_parser": "parse_log_pytest", "image": image}
    write_lines(directory / "tasks.jsonl", [row])
    file = directory / "campaign.toml"
    file.write_text(f'taskset = "tasks.jsonl"\nrun = "r"\n[conditions]\n{conditions}\n')
    return file


def test_a_campaign_that_can_run_is_tried_in_a_sandbox_of_its_first_task(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it declares is compared as a grading would; nothing is graded, and no run is begun."""
    monkeypatch.chdir(tmp_path)  # where a run would be
    file = a_campaign(tmp_path, 'hash_seed = 0\ntime_zone = "UTC"\nvisible_cpus = 1')

    status, told = findings(capfd, file, "--state-dir", tmp_path / "state")

    assert (0, "ok") == (status, told["conditions"]["level"]), told
    held = "these hold as declared: egress, visible_cpus, test_time_limit_s, hash_seed, time_zone"
    assert f"in a sandbox of demo__one-0 {held}" == told["conditions"]["said"]
    assert {"campaign.toml", "tasks.jsonl", "state"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ("cpu_count = 4000", "declared as 4000 and observed as"),
        ('locale = "xx_YY.UTF-8"', "the image lacks the locale"),
        (f'image_digest = "sha256:{"0" * 64}"', "give the tasks the declared image"),
    ],
)
def test_a_campaign_that_every_grading_would_contradict_is_to_be_mended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], conditions: str, said: str
) -> None:
    """Exit status 2, before an hour of gradings says the same."""
    status, told = findings(capfd, a_campaign(tmp_path, conditions), "--state-dir", tmp_path / "state")

    assert (2, "error") == (status, told["conditions"]["level"])
    assert said in str(told["conditions"]["said"])


@pytest.mark.anyio
async def test_a_sandbox_that_its_conditions_do_not_let_start_is_to_be_mended(tmp_path: Path) -> None:
    """One process is not enough for a sandbox; the finding says which conditions asked for it."""
    if not any("pids" in hierarchy.controllers for hierarchy in find_hierarchies()):
        pytest.skip("no cgroup here that limits processes")

    finding = await told_of(tmp_path, processes=1)

    assert "error" == finding.level
    assert "can be had as declared (processes = 1)" in finding.said


@pytest.mark.anyio
async def test_what_no_sandbox_can_be_asked_for_is_a_finding(tmp_path: Path) -> None:
    """User ids end one below 2^32 - 1, which the kernel takes for none."""
    finding = await told_of(tmp_path, user=2**32 - 1)

    assert "error" == finding.level
    assert "can be had as declared (user = 4294967295): user: Input should be" in finding.said


async def told_of(tmp_path: Path, **conditions: int) -> Finding:
    """Of a campaign that asks for what `load` would refuse."""
    campaign = load(a_campaign(tmp_path, ""), {"provider": {"state_dir": tmp_path / "state"}})
    changed = campaign.conditions.model_copy(update=conditions)
    (finding,) = await examine(campaign.model_copy(update={"conditions": changed}))
    return finding


def test_the_image_that_is_tried_is_the_tasks_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One that is not there is found; --image goes before it, as for everything that the doctor tries."""
    file = a_campaign(tmp_path, "", image=f"x@sha256:{'0' * 64}")

    status, told = findings(capfd, file, "--state-dir", tmp_path / "state")
    assert (2, "error") == (status, told["conditions"]["level"])
    assert "grader images import" in str(told["conditions"]["said"])

    status, told = findings(capfd, file, "--state-dir", tmp_path / "state", "--image", "host")
    assert (0, "ok") == (status, told["conditions"]["level"])


def test_an_image_that_is_not_built_yet_is_stood_for_by_its_base(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is built, and the finding says what was tried in its place."""
    file = a_campaign(tmp_path, f'image_digest = "sha256:{"0" * 64}"\nvisible_cpus = 1')
    write_lines(tmp_path / "recipes.jsonl", [recipe(0, tmp_path)])
    file.write_text('recipes = "recipes.jsonl"\n' + file.read_text())

    status, told = findings(capfd, file, "--state-dir", tmp_path / "state")

    assert (0, "note", "ok") == (status, told["image"]["level"], told["conditions"]["level"]), told
    assert "is not built yet, and its base, host, is tried" in str(told["image"]["said"])


def test_a_campaign_without_its_task_set_is_to_be_mended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The files that it names are read as a run would read them."""
    file = a_campaign(tmp_path, "")
    (tmp_path / "tasks.jsonl").unlink()

    status, told = findings(capfd, file, "--state-dir", tmp_path / "state")

    assert (2, "error") == (status, told["campaign"]["level"])
    assert "tasks.jsonl" in str(told["campaign"]["said"])


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
