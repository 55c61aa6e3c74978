from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from grader.errors import UsageError
from grader.exports import export
from grader.ledger import Expected, Key
from grader.record import Grading
from grader.verdict import Outcome
from tests.grader.gradings import grading
from tests.grader.test_ledger import opened


def asked(task_id: str, model: str = "m", patch: bytes = b"p") -> Expected:
    return Expected(Key(task_id, model, hashlib.sha256(patch).hexdigest()), "d1", None, "p.jsonl:1", patch)


def test_jsonl_is_one_whole_record_per_key(tmp_path: Path) -> None:
    """The lines read back as the gradings that count, and only those."""
    counts = [grading("a", reasons=("ü\n",)), grading("b", Outcome.NO_VERDICT)]
    with opened(tmp_path / "r", asked("a"), asked("b")) as ledger:
        ledger.append([grading("a", Outcome.NO_VERDICT), *counts])
        written = export(ledger, "jsonl", tmp_path / "out")

    assert counts == [Grading.model_validate_json(line) for line in written.read_text().splitlines()]


def test_parquet_has_a_null_reward_where_there_is_no_verdict(tmp_path: Path) -> None:
    """No verdict is null in the table too, never 0, and the whole record is in the row."""
    counts = [
        grading("a"),
        grading("b", Outcome.NO_VERDICT, reasons=("lost", "twice")),
        grading("c", Outcome.TIMED_OUT),
    ]
    with opened(tmp_path / "r") as ledger:
        ledger.append(counts)
        rows = pq.read_table(export(ledger, "parquet", tmp_path / "out")).to_pylist()

    assert [1.0, None, 0.0] == [row["reward"] for row in rows]
    assert [None, "infrastructure", None] == [row["cause"] for row in rows]
    assert [[], ["lost", "twice"], []] == [row["reasons"] for row in rows]
    assert counts == [Grading.model_validate_json(row["grading"]) for row in rows]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_swebench_layout_holds_patch_log_report_and_run_report(tmp_path: Path) -> None:
    """A tool for the official harness's results finds each file where it looks for it."""
    run_dir = tmp_path / "nightly"
    log = run_dir / "logs" / "a.log"
    with_log = grading("a", model="org/m")
    with_log = with_log.model_copy(update={"evidence": with_log.evidence.model_copy(update={"log_path": "logs/a.log"})})
    tasks = [
        asked("a", "org/m"),
        asked("b", "org/m"),
        asked("c", "org/m"),
        asked("d", "org/m", b""),
        asked("e", "org/m"),
    ]
    with opened(run_dir, *tasks) as ledger:
        log.parent.mkdir()
        log.write_bytes(b"PASSED t::a\xff\n")
        ledger.append(
            [
                with_log,
                grading("b", Outcome.PATCH_REJECTED, model="org/m"),
                grading("c", Outcome.NO_VERDICT, model="org/m"),
                grading("d", Outcome.UNRESOLVED, model="org/m", patch=b""),
            ]
        )
        out = export(ledger, "swebench", tmp_path / "out")

    place = out / "logs" / "run_evaluation" / "nightly" / "org__m"
    assert b"p" == (place / "a" / "patch.diff").read_bytes()
    assert b"PASSED t::a\xff\n" == (place / "a" / "test_output.txt").read_bytes()
    assert read(place / "a" / "report.json")["a"]["resolved"] is True
    assert {"success": ["t::a"], "failure": []} == read(place / "a" / "report.json")["a"]["tests_status"][
        "FAIL_TO_PASS"
    ]
    assert not any((place / task_id / "report.json").exists() for task_id in "bc")
    told = read(out / "org__m.nightly.json")
    assert (["a"], ["b", "c"], ["d"], ["e"]) == (
        told["resolved_ids"],
        told["error_ids"],
        told["empty_patch_ids"],
        told["incomplete_ids"],
    )
    assert 5 == told["submitted_instances"] == told["total_instances"]


def test_two_patches_of_one_model_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """The second patch for a task has a directory of its own."""
    with opened(tmp_path / "r", asked("a"), asked("a", patch=b"q")) as ledger:
        ledger.append([grading("a"), grading("a", Outcome.UNRESOLVED, patch=b"q")])
        out = export(ledger, "swebench", tmp_path / "out")

    found = {path.parent.parent.name: read(path)["a"]["resolved"] for path in out.rglob("report.json")}
    assert {"m": True, "m+2": False} == found
    assert {"m.r.json", "m+2.r.json"} == {path.name for path in out.glob("*.json")}


@pytest.mark.parametrize("name", ["../../up", "..", "/etc/x"])
def test_no_name_leads_out_of_the_export(tmp_path: Path, name: str) -> None:
    """Names come from predictions, and choose no path."""
    with opened(tmp_path / "r", asked("a", name)) as ledger:
        ledger.append([grading("a", model=name)])
        export(ledger, "swebench", tmp_path / "x" / "y" / "out")

    assert {"r", "x"} == {path.name for path in tmp_path.iterdir()}
    assert ["out"] == [path.name for path in (tmp_path / "x" / "y").iterdir()]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file in the way is told, without a traceback."""
    (tmp_path / "out").write_text("in the way")
    with opened(tmp_path / "r") as ledger, pytest.raises(UsageError, match="out: cannot be written"):
        export(ledger, "jsonl", tmp_path / "out")


@pytest.mark.real
def test_the_official_report_is_reproduced(tmp_path: Path, real_data: Path) -> None:
    """A real report.json, taken into a grading and exported again, is the same file."""
    for source in sorted((real_data / "logs").rglob("report.json")):
        ((task_id, told),) = read(source).items()
        if "tests_status" not in told:
            continue
        lists = {name: {k: tuple(v) for k, v in told["tests_status"][name].items()} for name in told["tests_status"]}
        of = grading(task_id, Outcome.RESOLVED if told["resolved"] else Outcome.UNRESOLVED)
        of = of.model_copy(update={"fail_to_pass": lists["FAIL_TO_PASS"], "pass_to_pass": lists["PASS_TO_PASS"]})
        run_dir = tmp_path / source.parent.name
        with opened(run_dir, asked(task_id)) as ledger:
            ledger.append([of])
            out = export(ledger, "swebench", run_dir / "out")

        (written,) = out.rglob("report.json")
        assert read(source) == read(written)


@pytest.mark.parametrize("model", ["m" * 300, "m" * 250])
def test_a_model_name_that_is_too_long_for_the_official_layout_is_told_before_anything_is_written(
    tmp_path: Path, model: str
) -> None:
    """Another directory would not help; nothing is left half written."""
    with opened(tmp_path / "r", asked("a", model)) as ledger:
        ledger.append([grading("a", model=model)])
        with pytest.raises(UsageError, match=r"^m+\.\.\.: is too long for a name"):
            export(ledger, "swebench", tmp_path / "out")

    assert [] == list((tmp_path / "out").iterdir())
