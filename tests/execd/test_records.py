"""How long the daemon keeps what a command wrote."""

from __future__ import annotations

import pytest

from execd.execs import KEPT_OUTPUT, Exec, Records
from execd.protocol import Refusal


def end(records: Records, exec_id: str, size: int) -> None:
    record = Exec(exec_id, "main", b"", b"", 1.0, 2 * KEPT_OUTPUT)
    record.output.add(bytes(size))
    records.add(record)
    records.ended(record)


def test_a_large_output_is_kept_until_the_next_one_or_for_its_own_time() -> None:
    """The time of a large output that the next one has replaced does not end the next one's."""
    records = Records()
    for exec_id in ("first", "second"):
        end(records, exec_id, KEPT_OUTPUT + 1)
    records.drop_large("first")
    assert KEPT_OUTPUT + 1 == len(records.find("second").output)
    records.drop_large("second")
    for exec_id in ("first", "second"):
        with pytest.raises(Refusal):
            records.find(exec_id)


def test_outputs_within_the_bounds_outlive_a_large_one() -> None:
    """Only what is beyond the bounds is dropped for its size."""
    records = Records()
    end(records, "large", KEPT_OUTPUT + 1)
    end(records, "small", 1)
    for exec_id in ("large", "small"):
        records.drop_large(exec_id)
    assert 1 == len(records.find("small").output)
