"""Building recipes for real, in this machine's sandboxes: what the image holds, what never enters it, and failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandbox import LocalConfig, SandboxSpec
from sandbox.errors import ImageError
from sandbox.local.build import build
from sandbox.local.image import StoredImage
from sandbox.local.provider import LocalProvider
from sandbox.local.recipe import Archive, BuildPlan, Tree
from sandbox.provider import Sandbox
from tasksets.images import tree_sha256

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for this file: most tests look at the same image."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
async def provider(state_dir: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(LocalConfig(state_dir=state_dir)) as opened:
        yield opened


@pytest.fixture
def plan(tmp_path: Path) -> BuildPlan:
    """A little project in a directory, with a file that its own .gitignore names, and nothing to fetch."""
    source = tmp_path / "source"
    (source / "pkg").mkdir(parents=True)
    (source / "pkg/__init__.py").write_text("VALUE = 1\n")
    (source / ".gitignore").write_text("data\n")
    (source / "data").write_text("shipped all the same\n")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    install = (
        "python -c 'import sys; print(sys.prefix)' > built-by",
        "X=kept",
        'echo "$X $FROM_RECIPE" >> built-by; sed -i s/1/2/ pkg/__init__.py',
    )
    tree = Tree(source, tree_sha256(source))
    return BuildPlan("demo", "host", "3", tree, install, env={"FROM_RECIPE": "yes"})


async def said(box: Sandbox, command: str) -> str:
    result = await box.run(command, timeout_s=60)
    assert 0 == result.exit_code, result.output
    return result.output.decode().strip()


async def test_a_recipe_gives_an_image_that_is_ready_to_work_on(provider: LocalProvider, plan: BuildPlan) -> None:
    """The environment is active, the commands ran in order in one shell, the tree is committed and clean."""
    image = await build(provider, provider.store, plan)

    async with provider.sandbox(SandboxSpec(image=image.digest)) as box:
        assert "/testbed" == await said(box, "pwd")
        assert "/opt/venv/bin/python" == await said(box, "command -v python")
        assert "/opt/venv\nkept yes" == await said(box, "cat built-by")
        assert "2" == await said(box, "python -c 'import pkg; print(pkg.VALUE)'")
        assert "yes" == await said(box, "echo $FROM_RECIPE")
        assert "" == await said(box, "git status --porcelain")
        assert ".gitignore\ndata\npkg/__init__.py\nrun.sh" == await said(box, "git ls-files | sort")
        assert "ran" == await said(box, "./run.sh")
        assert image.notes["base_commit"] == await said(box, "git rev-parse HEAD")
        assert "2" == await said(box, "git rev-list --count HEAD"), "the source, then what the commands changed"


async def test_a_second_build_is_the_first_ones_image(provider: LocalProvider, plan: BuildPlan) -> None:
    """Nothing runs again: not for the same plan, not for builders at the same moment."""
    lines: list[str] = []
    images: list[StoredImage] = []

    async def one(wanted: BuildPlan) -> None:
        images.append(await build(provider, provider.store, wanted, progress=lines.append))

    fresh = replace(plan, env={"FROM_RECIPE": "at once"}, install=())
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one, fresh)
    await one(replace(fresh, name="another name"))

    assert 1 == len({image.digest for image in images})
    assert 1 == len([line for line in lines if "building on" in line])
    assert [] == list((provider.store.root / "staging").iterdir())


async def test_one_source_has_one_base_commit(provider: LocalProvider, plan: BuildPlan) -> None:
    """Built twice, at other times and with another environment, the commit has the same id."""
    first = await build(provider, provider.store, plan)
    second = await build(provider, provider.store, replace(plan, env={"FROM_RECIPE": "yes", "OTHER": "1"}))

    assert first.digest != second.digest
    assert first.notes["base_commit"] == second.notes["base_commit"]


async def test_a_step_that_fails_is_told_with_the_end_of_its_log(provider: LocalProvider, plan: BuildPlan) -> None:
    """Step, exit code and the last 30 lines; nothing is stored, nothing is left in staging."""
    before = provider.store.list()
    failing = replace(plan, install=("true", "seq 100; echo 'no such thing' >&2; (exit 7)"))

    with pytest.raises(ImageError) as caught:
        await build(provider, provider.store, failing)

    told = str(caught.value)
    assert "step `install 2`: ended with exit code 7" in told
    assert "no such thing" in told
    assert "    72\n" in told
    assert "    71\n" not in told
    assert ("install 2", 7) == (caught.value.facts["step"], caught.value.facts["exit_code"])
    assert before == provider.store.list()
    assert [] == list((provider.store.root / "staging").iterdir())


async def test_a_command_that_ends_the_shell_fails_the_build(provider: LocalProvider, plan: BuildPlan) -> None:
    """Later commands would run without the environment that earlier ones made, whatever the exit code was."""
    with pytest.raises(ImageError, match="ended the shell with exit code 0"):
        await build(provider, provider.store, replace(plan, install=("exit 0",)))


async def test_what_is_not_as_pinned_fails_the_build(provider: LocalProvider, plan: BuildPlan) -> None:
    """A package that a command was content to skip is not silently missing from the image."""
    lines: list[str] = []
    wanting = replace(plan, pins=("six==0.0.1",))  # there is no such release

    with pytest.raises(ImageError, match="step `pins`"):
        await build(provider, provider.store, wanting, progress=lines.append)

    assert any("putting right six==0.0.1 (absent)" in line for line in lines)


@pytest.mark.network
async def test_what_the_commands_left_out_is_put_right(provider: LocalProvider, plan: BuildPlan) -> None:
    """The pins are what the image has, whatever a command skipped."""
    image = await build(provider, provider.store, replace(plan, pins=("six==1.17.0",)))

    async with provider.sandbox(SandboxSpec(image=image.digest)) as box:
        assert "1.17.0" == await said(box, "python -c 'import six; print(six.__version__)'")


@pytest.mark.network
async def test_pins_that_contradict_build_requirements_do_not_stop_a_build(
    provider: LocalProvider, plan: BuildPlan
) -> None:
    """A command that fails under the constraints runs once more without them; the outcome still has to be as pinned."""
    lines: list[str] = []
    contradicted = replace(
        plan, pins=("six==1.17.0",), install=('test -z "$PIP_CONSTRAINT"', 'test -n "$PIP_CONSTRAINT"')
    )

    image = await build(provider, provider.store, contradicted, progress=lines.append)

    assert 1 == len([line for line in lines if "install 1 failed with the pins as constraints" in line])
    assert 0 == len([line for line in lines if "install 2 failed" in line])
    async with provider.sandbox(SandboxSpec(image=image.digest)) as box:
        assert "1.17.0" == await said(box, "python -c 'import six; print(six.__version__)'")


async def test_nothing_of_the_host_or_the_build_stays(
    provider: LocalProvider, plan: BuildPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registry settings, certificates and constraints are there for the commands and absent from the image."""
    certificates = tmp_path / "my-ca.pem"
    certificates.write_text("certificates")
    monkeypatch.setenv("PIP_CERT", str(certificates))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.example/simple")
    monkeypatch.setenv("MY_TOKEN", "secret")
    commands = (
        "env > seen; cat $PIP_CERT >> seen; cat $PIP_CONSTRAINT >> seen",
        "mkdir -p ~/.cache/x; touch ~/.cache/x/y /tmp/z /var/tmp/z; mkfifo fifo",
        "grep -c -e secret@index.example -e '^certificates' seen > counted; rm seen",
    )

    image = await build(provider, provider.store, replace(plan, install=commands))

    async with provider.sandbox(SandboxSpec(image=image.digest)) as box:
        assert "2" == await said(box, "cat counted")
        assert "" == await said(box, "env | grep -i -e pip -e secret || true")
        assert "" == await said(box, "ls -A /tmp /var/tmp ~/.cache 2>/dev/null | grep -v : || true")
        assert "" == await said(box, "ls fifo 2>/dev/null || true")
        assert "" == await said(box, "grep -rl -e secret@ -e index.example /opt /testbed || true")


async def test_an_absent_python_is_said_before_anything_runs(provider: LocalProvider, plan: BuildPlan) -> None:
    """The message names what is absent, what was found, and what to type."""
    with pytest.raises(ImageError, match=r"Python 3\.99\.1 is not on this machine: pyenv has .*pyenv install 3\.99\.1"):
        await build(provider, provider.store, replace(plan, python="3.99.1"))


async def test_an_image_on_the_host_is_not_exported(
    provider: LocalProvider, plan: BuildPlan, state_dir: Path, tmp_path: Path
) -> None:
    """The command says why, and how to get one that is; exit status 4, no file."""
    image = await build(provider, provider.store, plan)
    command = ["images", "export", image.digest, str(tmp_path / "x.tar"), "--state-dir", str(state_dir)]

    code = "import sys; from grader.cli import main; raise SystemExit(main(sys.argv[1:]))"
    answer = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)

    assert 2 == answer.returncode
    assert "stands on this host's own programs" in answer.stderr
    assert "" == answer.stdout
    assert not (tmp_path / "x.tar").exists()


@pytest.mark.network
@pytest.mark.slow
async def test_a_release_archive_is_fetched_once_and_verified(provider: LocalProvider, plan: BuildPlan) -> None:
    """The registry's archive is used with the hash that the recipe names, and never with another."""
    archive = Archive("six-1.17.0.tar.gz", "ff70335d468e7eb6ec65b95b99d3a2836546063f63acc5171de367e834932a81")
    fetching = replace(plan, source=archive, install=(), pins=())
    lines: list[str] = []

    await build(provider, provider.store, fetching, progress=lines.append)
    image = await build(provider, provider.store, replace(fetching, env={"X": "1"}), progress=lines.append)

    assert 1 == len([line for line in lines if "fetching" in line])
    async with provider.sandbox(SandboxSpec(image=image.digest)) as box:
        assert "1.17.0" == await said(box, "python -c 'import six; print(six.__version__)'")
    kept = provider.store.downloads / archive.sha256 / archive.file
    kept.write_bytes(kept.read_bytes() + b"tampered")
    wrong = replace(archive, sha256="0" * 64)
    with pytest.raises(ImageError, match=r"step `fetch`: six-1\.17\.0\.tar\.gz has the SHA-256 ff70335d"):
        await build(provider, provider.store, replace(fetching, source=wrong))
    await build(provider, provider.store, replace(fetching, env={"X": "2"}), progress=lines.append)
    assert 2 == len([line for line in lines if "fetching" in line]), "a kept archive is verified at each use"
