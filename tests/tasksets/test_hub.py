"""Data sets of the hub, through the real `datasets` library, on sets made in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tasksets import TaskSetError
from tasksets.hub import open_hub, rows_of
from tasksets.taskset import TaskSet
from tests.tasksets.rows import multilingual, verified_2024


def loaded(**splits: list[dict[str, Any]]) -> Any:
    import datasets

    return datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})


def test_the_test_split_is_taken_unless_another_is_named() -> None:
    """Tasks come from `test`, a named split, or the only one; messages name data set and split."""
    both = loaded(dev=[verified_2024(instance_id="lamp__lamp-2")], test=[verified_2024()])

    taskset = TaskSet("lamps/set", rows_of(both, "lamps/set", None))

    assert ("lamp__lamp-1",) == taskset.ids()
    assert "lamps/set, split test, row 1" == taskset.get("lamp__lamp-1").source
    assert ("lamp__lamp-2",) == rows_of(both, "lamps/set", "dev").ids
    assert ("lamp__lamp-1",) == rows_of(loaded(train=[verified_2024()]), "lamps/set", None).ids


def test_list_fields_of_the_hub_become_ids() -> None:
    """Arrow lists are lists of test ids."""
    taskset = TaskSet("lamps/set", rows_of(loaded(test=[multilingual()]), "lamps/set", None))

    assert ("lamp.SwitchTest#on",) == taskset.get("lamp__lamp-1").fail_to_pass


def test_a_split_that_is_not_there_lists_those_that_are() -> None:
    """Neither a wrong split nor a choice between several is guessed."""
    several = loaded(dev=[verified_2024()], train=[verified_2024()])

    with pytest.raises(TaskSetError, match="lamps/set: has no split 'tset'; choose one of dev, train"):
        rows_of(several, "lamps/set", "tset")
    with pytest.raises(TaskSetError, match="several splits and none called test; choose one of dev, train"):
        rows_of(several, "lamps/set", None)


def test_the_revision_is_the_hubs_commit_where_it_is_known() -> None:
    """The commit stands in the addresses that the library recorded; else its fingerprint is named as one."""
    commit = "ab" * 20
    known = loaded(test=[verified_2024()])
    known["test"].info.download_checksums = {f"hub:lamps/set@{commit}/data/test.parquet": {}}

    assert commit == rows_of(known, "lamps/set", None).revision
    assert rows_of(loaded(test=[verified_2024()]), "lamps/set", None).revision.startswith("fingerprint:")


def test_a_set_without_ids_is_refused() -> None:
    """A data set of something else is no task set."""
    with pytest.raises(TaskSetError, match="lamps/set, split test: has no column instance_id"):
        rows_of(loaded(test=[{"text": "x"}]), "lamps/set", None)


def test_a_set_that_cannot_be_loaded_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, or under a wrong name, the message says what was tried and what to do."""
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(TaskSetError, match=r"^lamps/no-such-set-here: is no file here, and loading it .* failed"):
        open_hub("lamps/no-such-set-here", None)
