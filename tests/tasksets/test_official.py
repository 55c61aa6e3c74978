"""Plans out of the official package: asked for only by name, and equal to what the rows of 2026 carry."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tasksets import TaskSetError, open_taskset
from tests.tasksets.rows import verified_2024, write_jsonl

installed = find_spec("swebench") is not None


@pytest.mark.skipif(installed, reason="the swebench package is installed here")
def test_asking_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    """The set is refused when it is opened, not task by task."""
    path = write_jsonl(tmp_path / "set.jsonl", [verified_2024()])

    with pytest.raises(TaskSetError, match=r"swebench package, which is missing; install `swebench>=4\.1,<5`"):
        open_taskset(str(path), specs="swebench")


@pytest.mark.real
@pytest.mark.skipif(not installed, reason="the swebench package (4.1) is not installed")
@pytest.mark.filterwarnings("ignore")
def test_its_plans_are_those_of_the_2026_rows(real_data: Path) -> None:
    """Command and directory are equal for all 30; set-up too, but for two rows that were mended since."""
    old = open_taskset(str(real_data / "samples" / "swebench_verified_2024_schema.jsonl"), specs="swebench")
    new = open_taskset(str(real_data / "swebench_verified.jsonl"))
    pairs = {i: (old.get(i).plan, new.get(i).plan) for i in old.ids()}

    for ours, theirs in pairs.values():
        assert ours is not None and theirs is not None
        assert theirs.test_command == ours.test_command
        assert (theirs.workdir, theirs.eval_type) == (ours.workdir, ours.eval_type)
    moved = {i for i, (ours, theirs) in pairs.items() if ours and theirs and ours.test_files != theirs.test_files}
    assert {"astropy__astropy-7336"} == moved  # its test patch renames a file; the rows name it by its new name
    differing = {i for i, (ours, theirs) in pairs.items() if ours and theirs and ours.setup != theirs.setup}
    assert {"astropy__astropy-8707", "astropy__astropy-8872"} == differing
