"""Logs of our own writing for each family, against what they say; and which part of a log is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grader.parsers import UnknownParser, known_parsers, parse_log

LOGS = Path(__file__).parents[1] / "golden" / "logs"
PASSED = b"PASSED t.py::a\n"


def words(name: str, log: bytes) -> dict[str, str]:
    return dict(parse_log(name, log).words)


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_a_log_is_read_as_written_down(path: Path) -> None:
    """Each family's log gives the words that lie beside it, in their order."""
    expected = json.loads(path.with_suffix(".json").read_text(encoding="ascii"))
    assert list(expected.items()) == list(words(path.stem, path.read_bytes()).items())


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_line_ends_do_not_matter(path: Path) -> None:
    """A log with CRLF says the same as one with LF."""
    log = path.read_bytes()
    assert words(path.stem, log) == words(path.stem, log.replace(b"\n", b"\r\n"))


def test_the_official_rules_agree() -> None:
    """Where the official package is installed (5.0 or newer: older ones read some lines otherwise), its parsers read
    the same words from each family's log."""
    package = pytest.importorskip("swebench.harness.log_parsers", reason="the swebench package is not installed")
    by_name = getattr(package, "PARSER_REGISTRY", None)
    if by_name is None:
        pytest.skip("the swebench package is older than 5.0")
    parsers = {path: by_name.get(f"parse_log_{path.stem}") for path in LOGS.glob("*.log")}
    read = {path: parser(path.read_text(encoding="utf-8"), None) for path, parser in parsers.items() if parser}
    assert 7 == len(read)
    assert read == {path: words(path.stem, path.read_bytes()) for path in read}


@pytest.mark.parametrize(
    ("repository_family", "general"),
    [
        ("astropy", "pytest_v2"),
        ("scikit", "pytest_v2"),
        ("sphinx", "pytest_v2"),
        ("flask", "pytest"),
        ("xarray", "pytest"),
        ("requests", "pytest_options"),
        ("pylint", "pytest_options"),
    ],
)
def test_a_repository_is_read_by_its_general_family(repository_family: str, general: str) -> None:
    """Repositories that print alike are read alike."""
    log = (LOGS / f"{general}.log").read_bytes()
    assert words(general, log) == words(f"parse_log_{repository_family}", log)


def test_an_unknown_parser_lists_the_known_ones() -> None:
    """A wrong name is refused with the nearest name and all names."""
    with pytest.raises(UnknownParser) as refused:
        parse_log("djagno", b"")
    assert "Did you mean parse_log_django?" in str(refused.value)
    assert [] == [name for name in known_parsers() if name not in str(refused.value)]


def test_a_word_that_only_begins_like_a_status_is_no_status() -> None:
    """`ERROR: usage` leaves a word that is kept as evidence and is not a status."""
    results = parse_log("pytest", b"ERROR: usage\nPASSEDx t.py::a\n")
    assert ({"usage": "ERROR:", "t.py::a": "PASSEDx"}, {}) == (dict(results.words), results.statuses)


def test_different_results_for_one_test_are_remembered() -> None:
    """The last word counts, and the ones before it are kept in order, each once."""
    results = parse_log("pytest", b"PASSED t.py::a\nERROR t.py::a\nPASSED t.py::a\nPASSED t.py::b\n")
    assert ("PASSED", {"t.py::a": ("PASSED", "ERROR")}) == (results.words["t.py::a"], dict(results.conflicts))


def test_bytes_that_are_not_text_spoil_only_their_own_id() -> None:
    """An undecodable byte becomes U+FFFD and its neighbours are read."""
    expected = {"t.py::a[\ufffd]": "PASSED", "t.py::b": "PASSED"}
    assert expected == words("pytest", b"PASSED t.py::a[\xff]\nPASSED t.py::b\n")


def test_a_heading_without_a_name_is_no_result() -> None:
    """Django's `FAIL:` with nothing after it is passed over (official rules end with an error there)."""
    assert {"test_a (m.C)": "PASSED"} == words("django", b"FAIL:\nERROR:\ntest_a (m.C) ... ok\n")


def framed(inside: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
    start, end = b"+ : '>>>>> Start Test Output'\n", b"+ : '>>>>> End Test Output'\n"
    return before + start + inside + end + after


def test_an_official_log_is_read_between_its_markers() -> None:
    """What stands before the first and after the second marker names no test."""
    log = framed(PASSED, b"PASSED t.py::before\n", b"PASSED t.py::after\n")
    assert ({"t.py::a": "PASSED"}, None) == (
        dict(parse_log("pytest", log, framing="auto").words),
        parse_log("pytest", log, framing="auto").unreadable,
    )


def test_an_official_log_without_results_between_its_markers_is_read_whole() -> None:
    """Some runners' output lands outside the markers; reading it there is flagged."""
    results = parse_log("pytest", framed(b"", after=PASSED), framing="official")
    assert {"t.py::a": "PASSED"} == dict(results.words)
    assert [flag.partition(":")[0] for flag in results.flags] == ["outside_markers"]


@pytest.mark.parametrize("marker", [b">>>>> Start Test Output", b">>>>> End Test Output"])
def test_an_official_log_that_lacks_a_marker_is_not_read(marker: bytes) -> None:
    """Without both markers official rules take no result, and the missing one is named."""
    results = parse_log("pytest", framed(PASSED).replace(marker, b""), framing="official")
    assert {} == dict(results.words)
    assert marker.decode() in str(results.unreadable)


def test_markers_in_our_own_logs_are_text_of_the_tests() -> None:
    """A test that prints markers can neither hide nor make results in a log of ours; it is flagged."""
    log = b"FAILED t.py::a\n" + framed(b"PASSED t.py::b\n") + b"FAILED t.py::c\n>>>>> Patch Apply Failed\n"
    results = parse_log("pytest", log)
    assert {"t.py::a": "FAILED", "t.py::b": "PASSED", "t.py::c": "FAILED"} == dict(results.words)
    assert ["markers_in_output"] == [flag.partition(":")[0] for flag in results.flags]


def test_repeated_markers_are_flagged() -> None:
    """Official rules read up to the next start marker; a log with two is read so, and said."""
    results = parse_log("pytest", framed(PASSED) + framed(b"PASSED t.py::b\n"), framing="official")
    assert {"t.py::a": "PASSED"} == dict(results.words)
    assert ["markers_repeated"] == [flag.partition(":")[0] for flag in results.flags]


@pytest.mark.parametrize("said_by", ["harness", "tests"])
def test_only_a_harness_can_say_that_a_patch_did_not_apply(said_by: str) -> None:
    """The words before the tests are the harness's; later ones may be printed by tests, and reject nothing."""
    text = b">>>>> Patch Apply Failed\n"
    log = framed(PASSED, before=text) if said_by == "harness" else framed(PASSED + text)
    results = parse_log("pytest", log, framing="auto")
    assert (said_by == "harness", True) == (results.patch_apply_failed, results.unreadable is not None)


@pytest.mark.parametrize(("recorded", "expected"), [(b"1", 1), (b" -9", -9), (b"x", None)])
def test_the_recorded_exit_code_is_read(recorded: bytes, expected: int | None) -> None:
    """Official logs record the test command's status after the end marker."""
    log = framed(PASSED, after=b">>>>> Test Exit Code: " + recorded + b"\n")
    assert expected == parse_log("pytest", log, framing="auto").exit_code


@pytest.mark.parametrize(
    ("text", "ran"),
    [
        ("Executed 2 of 3", True),
        ("Executed 0 of 3", False),
        ("TOTAL: 4 SUCCESS", True),
        ("010 passing", True),
        ("000 passing", False),
        ("Tests:  \n 3", True),
        ("Test Suites: 1 failed, 3 total, rest", True),
        ("Test Suites: 0 total", False),
        ("# tests 2", True),
        ("12 specs, 0 failures", True),
        ("0 specs, 0 failures", False),
        ("it draws': ok", True),
        ("nothing", False),
    ],
)
def test_a_runners_own_count_shows_that_a_suite_ran(text: str, ran: bool) -> None:
    """Where no test is named, a count above zero tells a silent run from none."""
    assert ran == parse_log("pytest", text.encode()).suite_ran
