"""What a build is made of, without building: the plan's digest and pins, registry settings, the choice of a Python."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.errors import ImageError
from sandbox.local.pythons import choose_python, python_layer
from sandbox.local.recipe import Archive, BuildPlan, parse_installed
from sandbox.local.registry import parse_settings
from sandbox.local.store import ImageStore

PLAN = BuildPlan(
    name="demo",
    base="host",
    python="3.9.18",
    source=Archive("Demo_Kit-1.0rc1.tar.gz", "a" * 64),
    install=("true",),
    env={"A": "1"},
    pins=("six==1.17.0", "Demo.Kit==1.0rc1", "pip==24.0", "typing_extensions==4.1.1"),
)


def test_the_digest_covers_all_that_decides_the_image() -> None:
    """Base, Python, source, commands, environment and pins; not the name."""
    digest = PLAN.digest("base", "python")

    assert digest == replace(PLAN, name="other").digest("base", "python")
    others = [
        replace(PLAN, install=("false",)).digest("base", "python"),
        replace(PLAN, env={}).digest("base", "python"),
        replace(PLAN, pins=()).digest("base", "python"),
        replace(PLAN, source=Archive("Demo_Kit-1.0rc1.tar.gz", "b" * 64)).digest("base", "python"),
        PLAN.digest("another base", "python"),
        PLAN.digest("base", "another python"),
    ]
    assert 7 == len({digest, *others})


def test_an_archive_is_fetched_by_name_and_version() -> None:
    """The file name gives the requirement, dashes and pre-releases included."""
    assert "Demo_Kit==1.0rc1" == Archive("Demo_Kit-1.0rc1.tar.gz", "").requirement
    assert "a-b==2.0" == Archive("a-b-2.0.zip", "").requirement


def test_pins_become_constraints_but_for_the_project_and_pip() -> None:
    """A constraint on what is installed from the directory, or on pip itself, would only fight the commands."""
    assert "six==1.17.0\ntyping_extensions==4.1.1\n" == PLAN.constraints


def test_what_is_not_as_pinned_is_named() -> None:
    """Names compare as indexes compare them; a skipped package is as wrong as another version."""
    listing = "Six==1.17.0\ntyping-extensions==4.2.0\nWARNING: something\n"

    assert ("typing_extensions==4.1.1 (4.2.0)",) == PLAN.differing_pins(parse_installed(listing))
    assert "(absent)" in PLAN.differing_pins({})[0]


def test_registry_settings_are_taken_over_but_for_local_files(tmp_path: Path) -> None:
    """Index, proxy and certificates go into a build; find-links, file indexes and constraints do not."""
    certificates = tmp_path / "ca.pem"
    certificates.write_text("x")
    listing = "\n".join(
        [
            ":env:.find-links='/opt/wheels'",
            "global.index-url='https://index.example/simple'",
            "global.extra-index-url='file:///opt/simple https://extra.example/simple'",
            f"global.cert='{certificates}'",
            "global.constraint='/etc/constraints.txt'",
            "user.trusted-host='index.example'",
        ]
    )

    registry = parse_settings(listing, {"https_proxy": "http://proxy.example:1", "HOME": "/secret", "TOKEN": "secret"})

    assert {
        "PIP_INDEX_URL": "https://index.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://extra.example/simple",
        "PIP_TRUSTED_HOST": "index.example",
        "https_proxy": "http://proxy.example:1",
    } == dict(registry.env)
    assert certificates == registry.certificates
    assert "/s/ca-certificates.pem" == registry.inside("/s")["PIP_CERT"]
    assert "example" not in repr(registry), "an index may carry a password: it is never printed"


def fake_python(folder: Path, name: str, version: str, *, complete: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = f"echo {version}" if complete else "exit 1"
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_python_is_chosen_and_the_choice_is_told(tmp_path: Path) -> None:
    """The exact release under pyenv; else the system's of the same line, with a note; else pyenv's newest of it."""
    pyenv, system, own = tmp_path / "versions", tmp_path / "bin", tmp_path / "own"
    for version in ("3.9.18", "3.8.9", "3.8.18", "2.7.18"):
        fake_python(pyenv / version / "bin", "python3", version)
    fake_python(system, "python3.11", "3.11.2")
    fake_python(system, "python3.12", "3.12.1", complete=False)

    def choose(wanted: str) -> tuple[str, str]:
        choice = choose_python(wanted, versions=pyenv, system=[system], running=("3.13.5", own))
        return choice.executable, choice.note

    assert (str(pyenv / "3.9.18/bin/python3.9"), "") == choose("3.9.18")
    assert (str(system / "python3.11"), "asked for 3.11.7, used the system's 3.11.2") == choose("3.11.7")
    assert (str(system / "python3.11"), "") == choose("3.11")
    assert (str(pyenv / "3.8.18/bin/python3.8"), "asked for 3.8.1, used pyenv's 3.8.18") == choose("3.8.1")
    with pytest.raises(
        ImageError, match=r"Python 3\.12\.1 is not on this machine: pyenv has 3\.8\.9, 3\.8\.18, 3\.9\.18"
    ):
        choose("3.12.1")
    with pytest.raises(ImageError, match="pyenv has none"):
        choose_python("3.7.0", versions=tmp_path / "nowhere", system=[], running=("3.11.2", Path("/usr")))


def test_a_pythons_layer_holds_the_interpreter_at_its_own_path(tmp_path: Path) -> None:
    """Not what was installed into it, nor its test suites; the same Python gives the same layer, made once."""
    prefix = tmp_path / "versions/3.9.18"
    library = prefix / "lib/python3.9"
    fake_python(prefix / "bin", "python3.9", "3.9.18")
    fake_python(prefix / "bin", "some-tool", "")
    (prefix / "bin/python3").symlink_to("python3.9")
    for name in ("site-packages/x.py", "test/test_x.py", "json/__init__.py", "unittest/case.py", "ctypes/test/t.py"):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text("x")
    store = ImageStore(tmp_path / "store")
    choice = choose_python("3.9.18", versions=tmp_path / "versions", system=[])

    record = python_layer(store, choice)

    tree = store.layer_path(record.layers[0]) / prefix.relative_to("/")
    files = {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()}
    assert {"bin/python3", "bin/python3.9", "lib/python3.9/json/__init__.py", "lib/python3.9/unittest/case.py"} == files
    assert [] == list((tree / "lib/python3.9/site-packages").iterdir())
    assert record == python_layer(store, choice)
    os.utime(prefix / "bin/python3.9", (1, 1))
    assert record.digest == python_layer(store, choice).digest, "another time is not another Python"
