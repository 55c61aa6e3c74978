"""Rows of a Parquet file: the id column is read at once, a row's other columns when the row is asked for."""

from __future__ import annotations

import bisect
import hashlib
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from tasksets.errors import TaskSetError
from tasksets.fields import Row
from tasksets.listing import index_ids


@dataclass(frozen=True)
class ParquetRows:
    """The rows of one Parquet file. The row group read last stays in memory, so that a walk reads each once."""

    path: Path
    ids: tuple[str, ...]
    revision: str
    """SHA-256 (hex) of the file's bytes."""
    group_ends: tuple[int, ...]
    """For each row group, the index after its last row."""
    _last: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)

    def row(self, index: int) -> Row:
        """Row `index`, counted from 0; messages count from 1."""
        group = bisect.bisect_right(self.group_ends, index)
        start = self.group_ends[group - 1] if group else 0
        table = self._group(group)
        return Row(table.slice(index - start, 1).to_pylist()[0], f"{self.path}, row {index + 1}")

    def _group(self, group: int) -> Any:
        import pyarrow.parquet

        if group not in self._last:
            try:
                with pyarrow.parquet.ParquetFile(self.path) as file:
                    table = file.read_row_group(group)
            except (OSError, pyarrow.ArrowException) as error:
                raise TaskSetError(f"{self.path}: row group {group} cannot be read: {error}") from error
            self._last.clear()
            self._last[group] = table
        return self._last[group]


def open_parquet(path: Path) -> ParquetRows:
    """Open `path` and read its ids. Raises TaskSetError that names the file."""
    import pyarrow.parquet

    try:
        with path.open("rb") as raw:
            revision = hashlib.file_digest(raw, "sha256").hexdigest()
        with pyarrow.parquet.ParquetFile(path) as file:
            if "instance_id" not in file.schema_arrow.names:
                raise TaskSetError(f"{path}: has no column instance_id; it is not a task set")
            found = file.read(columns=["instance_id"]).column(0).to_pylist()
            groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    except (OSError, pyarrow.ArrowException) as error:
        raise TaskSetError(f"{path}: is not a Parquet file that can be read: {error}") from error
    return ParquetRows(path, index_ids(found, str(path)), revision, tuple(accumulate(groups)))
