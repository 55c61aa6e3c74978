from __future__ import annotations

import json
from pathlib import Path

import pytest

from grader.ledger import Key, Row, ledger_path
from grader.verdict import Cause, Outcome
from studies.cli import main
from studies.compare import compare
from tests.grader.gradings import grading
from tests.grader.test_ledger import IDENTITY, opened


def rows(**outcomes: str) -> dict[Key, Row]:
    found = {}
    for task_id, name in outcomes.items():
        key, outcome = Key(task_id, "m", "p"), Outcome(name)
        cause = Cause.INFRASTRUCTURE if outcome is Outcome.NO_VERDICT else None
        found[key] = Row(key, outcome, cause, None, 1.0, "", (), ())
    return found


def test_each_shared_grading_is_in_one_place() -> None:
    """Agreement, flips and missing verdicts add up to what both runs have."""
    a = rows(same="resolved", lost="resolved", won="timed_out", odd="unresolved", gone="no_verdict", first="resolved")
    b = rows(same="resolved", lost="unresolved", won="resolved", odd="timed_out", gone="resolved", second="resolved")

    found = compare(a, b)

    assert (5, 1, 1) == (found.both, found.only_a, found.only_b)
    assert ["lost", "won", "odd"] == [flip.key.task_id for flip in found.flips]
    assert (1, 1, 1, 1) == (found.agree, found.lost, found.won, found.no_verdict_a)
    assert found.both == found.pairs + found.no_verdict_a + found.no_verdict_b + found.no_verdict_both
    assert found.flip_share is not None
    assert pytest.approx(0.75) == found.flip_share.share


def test_without_a_pair_of_verdicts_nothing_is_claimed() -> None:
    """Two runs that share only lost gradings have no flip share."""
    found = compare(rows(a="no_verdict"), rows(a="no_verdict"))

    assert (1, None, 1.0) == (found.no_verdict_both, found.flip_share, found.p_value)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    with opened(tmp_path / "a") as ledger:
        ledger.append([grading("one"), grading("two"), grading("three", Outcome.NO_VERDICT)])
    other = {**IDENTITY, "conditions": {"egress": "open", "time_zone": None}}
    with opened(tmp_path / "b", identity=other) as ledger:
        ledger.append([grading("one"), grading("two", Outcome.UNRESOLVED), grading("three")])
    return tmp_path


def test_the_command_prints_flips_and_how_sure_they_are(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A reader sees which task flipped, what differed between the runs, and the interval."""
    assert 0 == main(["compare", "a", "b", "--runs-dir", str(runs)])

    out = capfd.readouterr().out
    assert 'setting: conditions.egress was "denied" and is now "open"' in out
    assert "two" in out
    assert "3 = 1 agree + 1 flip + 1 no verdict (1 first, 0 second, 0 both)" in out
    assert "50.0% of 2 pairs (95% 9.5% to 90.5%)" in out


def test_the_command_changes_no_ledger(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Comparing is reading: files are as they were, and JSON holds the same numbers."""
    before = {run: ledger_path(runs / run).read_bytes() for run in "ab"}

    assert 0 == main(["compare", str(runs / "a"), str(runs / "b"), "--json"])

    told = json.loads(capfd.readouterr().out)
    assert (2, 1, 1.0) == (told["pairs"], told["agree"], told["mcnemar_p"])
    assert ["two"] == [flip["task_id"] for flip in told["flips"]]
    assert before == {run: ledger_path(runs / run).read_bytes() for run in "ab"}


def test_a_run_that_is_not_there_is_bad_usage(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A wrong name is one line and exit 2."""
    assert 2 == main(["compare", "a", "none", "--runs-dir", str(runs)])
    assert "none: holds no ledger" in capfd.readouterr().err
