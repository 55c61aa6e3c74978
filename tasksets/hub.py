"""Rows of a data set on the hub, through `datasets`, which is imported only here and only when it is used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tasksets.errors import TaskSetError
from tasksets.fields import Row
from tasksets.listing import index_ids

_COMMIT = re.compile(r"@([0-9a-f]{40})/")


@dataclass(frozen=True)
class HubRows:
    """One split of a data set, memory-mapped by `datasets`; a row is read when it is asked for."""

    name: str
    """Data set and split, for messages."""
    ids: tuple[str, ...]
    revision: str
    """The hub's commit, or `fingerprint:` and the one of `datasets` where no commit is known."""
    dataset: Any

    def row(self, index: int) -> Row:
        """Row `index`, counted from 0; messages count from 1."""
        return Row(self.dataset[index], f"{self.name}, row {index + 1}")


def open_hub(hub_id: str, split: str | None) -> HubRows:
    """Load `hub_id`, from the cache of `datasets` or from the hub. Raises TaskSetError."""
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(hub_id)
    except Exception as error:  # the library raises its own errors, OSError, ValueError and its HTTP client's
        raise TaskSetError(
            f"{hub_id}: is no file here, and loading it as a data set of the hub failed "
            f"({type(error).__name__}: {_first_line(error)}); check the name, or give a local file"
        ) from error
    return rows_of(loaded, hub_id, split)


def rows_of(loaded: Any, hub_id: str, split: str | None) -> HubRows:
    """The rows of one split of a loaded `DatasetDict`. Raises TaskSetError for a split that is not there."""
    names = list(loaded)
    chosen = split or ("test" if "test" in names else names[0] if len(names) == 1 else None)
    if chosen not in names:
        said = f"no split {chosen!r}" if chosen else "several splits and none called test"
        raise TaskSetError(f"{hub_id}: has {said}; choose one of {', '.join(names)}")
    dataset = loaded[chosen]
    name = f"{hub_id}, split {chosen}"
    if "instance_id" not in dataset.column_names:
        raise TaskSetError(f"{name}: has no column instance_id; it is not a task set")
    return HubRows(name, index_ids(list(dataset["instance_id"]), name), _revision_of(dataset), dataset)


def _revision_of(dataset: Any) -> str:
    """The commit stands in the addresses of the files that the data set was made of."""
    for address in dataset.info.download_checksums or {}:
        if match := _COMMIT.search(address):
            return match[1]
    return f"fingerprint:{dataset._fingerprint}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
