"""Claims about `grader.channel`: what is believed of the bytes that came, and whose results count."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.channel import Heard, Suite, TestOutcome, TestRecord, decide, open_channel, read_records
from grader.channel.honest_log import honest_log
from grader.channel.listen import CLOSE_TIMEOUT_S
from grader.parsers import known_parsers, parse_log
from grader.verdict import LogResults, judge
from sandbox import Chunk, ExecResult, LocalConfig, Sandbox, SandboxSpec, open_provider
from sandbox.errors import SandboxLost
from sandbox.execs import _RESUME_DELAYS_S as RESUME_DELAYS_S
from sandbox.wire import Wire
from tasksets.task import TestPlan

KEY = "a" * 64


def lines(*told: dict[str, object], stream: str = "0" * 16, key: str = KEY) -> list[bytes]:
    """The lines of one process."""
    chain, written = key, []
    for number, record in enumerate(told):
        signed = f"{stream} {number} {json.dumps(record, separators=(',', ':'))}"
        chain = hashlib.sha256(f"{chain} {signed}".encode()).hexdigest()
        written.append(f"\ng1 {chain} {signed}\n".encode())
    return written


BEGIN: dict[str, object] = {"r": "begin", "runner": "pytest", "version": "8"}


def told(test_id: str, outcome: str = "passed", phase: str = "call") -> dict[str, object]:
    return {"r": "test", "id": test_id, "outcome": outcome, "phase": phase, "name": None}


def end(tests: int, status: int | None = 0) -> dict[str, object]:
    return {"r": "end", "tests": tests, "status": status}


WHOLE = lines(BEGIN, told("t.py::a"), told("t.py::b", "failed"), end(2, 1))


def test_a_whole_session_is_read() -> None:
    """Records, order, count and status come out as they were written."""
    heard = read_records(b"".join(WHOLE), KEY)
    assert {"t.py::a": "passed", "t.py::b": "failed"} == heard.outcomes
    assert ((), 0, True, 1) == (heard.faults, heard.noise_bytes, heard.suites[0].whole, heard.suites[0].status)


@pytest.mark.parametrize("flood", [b"\n", b"ab\n", b"g1 \n"])
def test_a_flood_takes_no_memory_of_its_own(flood: bytes) -> None:
    """Millions of lines that are no records are counted without a value for each, and a session behind them is read."""
    data = flood * ((8 << 20) // len(flood))
    tracemalloc.start()
    try:
        heard = read_records(data + b"".join(WHOLE), KEY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert heard.suites[0].whole
    assert len(data) - data.count(b"\n") == heard.noise_bytes
    assert peak < 2 * len(data)


def test_a_record_of_megabytes_is_a_fault() -> None:
    """Whoever has the key gets no values made that are many times the channel's own limit."""
    bomb = {"r": "test", "id": [[]] * (2 << 20)}
    assert read_records(b"".join(lines(BEGIN, bomb, end(0))), KEY).faults


@pytest.mark.parametrize("lost", range(len(WHOLE)))
def test_a_record_that_is_gone_is_seen(lost: int) -> None:
    """Whichever line is left out, the session is not whole: the chain breaks, or its end is missing."""
    heard = read_records(b"".join(WHOLE[:lost] + WHOLE[lost + 1 :]), KEY)
    assert not (heard.suites and heard.suites[0].whole and not heard.faults)


@pytest.mark.parametrize("at", range(1, len(WHOLE)))
def test_a_record_that_comes_twice_or_too_late_is_seen(at: int) -> None:
    """A repeated line, and two lines in the wrong order, are faults."""
    assert read_records(b"".join([*WHOLE[: at + 1], WHOLE[at], *WHOLE[at + 1 :]]), KEY).faults
    swapped = [*WHOLE[: at - 1], WHOLE[at], WHOLE[at - 1], *WHOLE[at + 1 :]]
    heard = read_records(b"".join(swapped), KEY)
    assert heard.faults or heard.noise_bytes
    assert not (heard.suites and heard.suites[0].whole and not heard.faults)


@given(st.binary(max_size=80), st.integers(0, 3))
def test_what_others_write_is_noise_and_hides_nothing(noise: bytes, at: int) -> None:
    """Bytes between two records are counted and change no result."""
    heard = read_records(b"".join([*WHOLE[:at], noise, *WHOLE[at:]]), KEY)
    assert ({"t.py::a": "passed", "t.py::b": "failed"}, ()) == (heard.outcomes, heard.faults)
    assert heard.noise_bytes == sum(len(part) for part in noise.split(b"\n"))


@given(st.lists(st.tuples(st.integers(0, len(WHOLE[2]) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_record_that_was_changed_is_never_believed(changes: list[tuple[int, int]]) -> None:
    """No change of a record's bytes yields other results from a session that still looks whole."""
    changed = bytearray(WHOLE[2])
    for place, value in changes:
        changed[place] = value
    heard = read_records(b"".join([*WHOLE[:2], bytes(changed), *WHOLE[3:]]), KEY)
    if heard.suites[0].whole and not heard.faults:
        assert {"t.py::a": "passed", "t.py::b": "failed"} == heard.outcomes


def test_a_stream_without_the_key_is_noise() -> None:
    """A session under another key is no session."""
    heard = read_records(b"".join(lines(BEGIN, told("t.py::a"), end(1), key="b" * 64)), KEY)
    assert () == heard.suites
    assert heard.noise_bytes > 0


@pytest.mark.parametrize(
    "record",
    [
        {"r": "test", "id": 1, "outcome": "passed", "phase": "call", "name": None},
        {"r": "test", "id": "a", "outcome": "perfect", "phase": "call", "name": None},
        {"r": "test", "id": "a"},
        {"r": "end", "tests": "1", "status": 0},
        {"r": "surprise"},
        {},
    ],
)
def test_a_record_of_another_form_is_a_fault(record: dict[str, object]) -> None:
    """What has the key and not the form is a fault, and never an exception."""
    assert read_records(b"".join(lines(BEGIN, record, end(0))), KEY).faults


# -- whose results count ------------------------------------------------------------------------------------------

PLAN = TestPlan("", "pytest -rA t.py", "parse_log_pytest")
LISTED = ("t.py::a", "t.py::b")


def suite(*records: tuple[str, str], ended: bool = True, status: int | None = 0, runner: str = "pytest") -> Suite:
    tests = tuple(TestRecord(test_id, TestOutcome(outcome), "call", test_id) for test_id, outcome in records)
    return Suite(runner, "8", tests, ended, status, len(tests) if ended else None)


PASSES = suite(("t.py::a", "passed"), ("t.py::b", "passed"))
UNENDED = suite(("t.py::a", "passed"), ("t.py::b", "passed"), ended=False, status=None)
FAILS = suite(("t.py::a", "passed"), ("t.py::b", "failed"), status=1)
GOOD_LOG = b"PASSED t.py::a\nPASSED t.py::b\n"
BAD_LOG = b"PASSED t.py::a\nFAILED t.py::b\n"
PYTEST = "/venv/bin/python /venv/bin/pytest -rA t.py"


def outcome_of(
    heard: Heard, log: bytes, *, exit_code: int = 0, plan: TestPlan = PLAN, listed: tuple[str, ...] = LISTED
) -> tuple[str, str, str, set[str]]:
    """Outcome, where it comes from, state of the channel, names of the flags."""
    decided = decide(
        heard, parse_log(plan.parser, log), plan, listed, lambda text: parse_log(plan.parser, text), exit_code=exit_code
    )
    judged = judge(listed[:1], listed[1:], decided.results, exit_code=exit_code)
    names = {flag.partition(":")[0] for flag in decided.flags}
    return str(judged.outcome), decided.source, decided.state, names


def test_channel_and_log_that_agree_raise_no_flag() -> None:
    """The usual run: one outcome, no flag."""
    assert ("resolved", "channel", "complete", set()) == outcome_of(Heard((PYTEST,), (PASSES,)), GOOD_LOG)
    assert ("unresolved", "channel", "complete", set()) == outcome_of(Heard((PYTEST,), (FAILS,)), BAD_LOG, exit_code=1)


@pytest.mark.parametrize(
    ("heard", "log", "exit_code", "expected"),
    [
        (Heard((PYTEST,), (FAILS,)), GOOD_LOG, 0, ("unresolved", {"log_disagrees", "exit_code_disagrees"})),
        (Heard((PYTEST,), (PASSES,)), BAD_LOG, 0, ("resolved", {"log_disagrees"})),
        (Heard((PYTEST,), (PASSES,)), b"", 0, ("resolved", {"log_lacks_results"})),
        (
            Heard((PYTEST,), (suite(("t.py::a", "passed")),)),
            GOOD_LOG,
            0,
            ("unresolved", {"log_claims_results"}),
        ),
        (Heard((PYTEST,), (UNENDED,)), GOOD_LOG, 0, ("unresolved", {"channel_unended"})),
        (Heard((PYTEST,), (PASSES,), faults=("x",)), GOOD_LOG, 0, ("unresolved", {"channel_broken"})),
        (Heard((PYTEST,)), GOOD_LOG, 0, ("unresolved", {"runner_never_began"})),
        (Heard((PYTEST,), (suite(runner="unittest"),)), GOOD_LOG, 0, ("unresolved", {"runner_never_began"})),
        (
            Heard((PYTEST,), (FAILS, PASSES)),
            GOOD_LOG,
            0,
            ("unresolved", {"channel_suites", "results_doubled", "results_conflict", "log_disagrees"}),
        ),
        (Heard((PYTEST,), (PASSES,), noise_bytes=3), GOOD_LOG, 0, ("resolved", {"channel_noise"})),
    ],
)
def test_each_disagreement_is_said(heard: Heard, log: bytes, exit_code: int, expected: tuple[str, set[str]]) -> None:
    """Where a session began its own results count, and every way in which the rest disagrees is a flag."""
    seen = outcome_of(heard, log, exit_code=exit_code)
    assert expected == (seen[0], seen[3])
    assert "channel" == seen[1]


@pytest.mark.parametrize(
    "heard",
    [
        Heard(),
        Heard(closed="no room"),
        Heard(("/venv/bin/python /venv/bin/tox -epy39",)),
        Heard(("/venv/bin/python -c import\\ pytest",)),
        Heard(("/venv/bin/python run.py pytest",)),
        Heard((PYTEST,), blind=("pytest_suite",)),
        Heard(("/venv/bin/python check.py",), (suite(("m.T.a", "passed"), runner="unittest"),)),
    ],
)
def test_other_runs_are_judged_by_their_log(heard: Heard) -> None:
    """Where the reporter could not be there, or the runner is none that it knows, the log counts as before."""
    assert ("resolved", "log") == outcome_of(heard, GOOD_LOG)[:2]
    assert ("unresolved", "log") == outcome_of(heard, BAD_LOG, exit_code=1)[:2]


@pytest.mark.parametrize(
    "command", ["python -m pytest", "python -mpytest -rA", "python3 -Bm pytest", "python -X dev -bb -m pytest t.py"]
)
def test_a_runner_is_known_however_its_module_is_named(command: str) -> None:
    """A Python that was started as a runner by any spelling of `-m` owes a session."""
    assert ("unresolved", "channel") == outcome_of(Heard((command,)), GOOD_LOG)[:2]


def test_what_official_logs_do_not_tell_stays_untold() -> None:
    """A skipped test and an unexpected pass have no id in pytest's summary, so official rules miss them here too."""
    skipped = suite(("t.py::a", "passed"), ("t.py::b", "skipped"))
    assert "unresolved" == outcome_of(Heard((PYTEST,), (skipped,)), b"PASSED t.py::a\n")[0]
    xpassed = suite(("t.py::a", "passed"), ("t.py::b", "xpassed"))
    assert "unresolved" == outcome_of(Heard((PYTEST,), (xpassed,)), b"PASSED t.py::a\n")[0]


def test_ids_that_a_log_cuts_are_matched_cut_and_whole() -> None:
    """A listed id as the official parser cuts it is found, and so is the whole id that no log could give."""
    spaced = suite(("t.py::a[x y]", "passed"), ("t.py::b", "passed"))
    log = honest_log(spaced)
    assert "resolved" == outcome_of(Heard((PYTEST,), (spaced,)), log, listed=("t.py::a[x", "t.py::b"))[0]
    assert "resolved" == outcome_of(Heard((PYTEST,), (spaced,)), log, listed=("t.py::a[x y]", "t.py::b"))[0]


@pytest.mark.parametrize("end_of_line", ["\n", "\r", "\r\n", "\n\n"])
@pytest.mark.parametrize("others", [(), (("t.py::b", "skipped"),)], ids=["missing", "skipped"])
def test_no_id_of_one_test_tells_of_another(end_of_line: str, others: tuple[tuple[str, str], ...]) -> None:
    """An id with line breaks, which a product's own classes can give to a test, is no result of another test."""
    liar = f"t.py::c[{end_of_line}PASSED t.py::b"
    heard = Heard((PYTEST,), (suite(("t.py::a", "passed"), (liar, "passed"), *others),))
    assert "unresolved" == outcome_of(heard, GOOD_LOG)[0]
    assert "resolved" == outcome_of(heard, GOOD_LOG, listed=("t.py::a", "t.py::c[", liar))[0]


@pytest.mark.parametrize("end_of_line", ["\n", "\r", "\r\n"])
def test_no_description_of_one_test_tells_of_another(end_of_line: str) -> None:
    """A name in unittest's log is that of its test and the first line of its docstring, and no more."""
    name = end_of_line.join(["test_a (x.T)", "Words.", "test_b (x.T) ... ok", "test_c (x.T)"])
    heard = Heard(
        (), (Suite("unittest", "", (TestRecord("x.T.test_a", TestOutcome.PASSED, "call", name),), True, 0, 1),)
    )
    assert "resolved" == outcome_of(heard, b"", plan=DJANGO, listed=("Words.",))[0]
    for other in ("test_b (x.T)", "test_c (x.T)"):
        assert "unresolved" == outcome_of(heard, b"", plan=DJANGO, listed=(other,))[0]


def test_a_listed_id_that_is_no_test_is_taken_from_the_log() -> None:
    """Two tasks of Verified list `[100%]`, which a line of the log gave, and one a test of a test's own run."""
    log = GOOD_LOG + b"PASSED [100%]\nPASSED inner.py::test_x\n"
    assert "resolved" == outcome_of(Heard((PYTEST,), (PASSES,)), log, listed=(*LISTED, "[100%]"))[0]
    assert "resolved" == outcome_of(Heard((PYTEST,), (PASSES,)), log, listed=(*LISTED, "inner.py::test_x"))[0]
    claimed = GOOD_LOG + b"PASSED t.py::never\n"
    assert "unresolved" == outcome_of(Heard((PYTEST,), (PASSES,)), claimed, listed=(*LISTED, "t.py::never"))[0]


DJANGO = TestPlan("", "./tests/runtests.py --verbosity 2 x", "parse_log_django")


def test_django_tests_count_by_the_name_that_their_log_gives_them() -> None:
    """A test with a docstring is listed by it, and one that the log lost in its own output is not lost."""
    records = (
        TestRecord("x.T.test_a", TestOutcome.PASSED, "call", "test_a (x.T)\nThe words."),
        TestRecord("x.T.test_b", TestOutcome.PASSED, "call", "test_b (x.T)"),
    )
    heard = Heard(("python ./tests/runtests.py",), (Suite("unittest", "", records, True, 0, 2),))
    torn = b"test_a (x.T)\nThe words. ... ok\ntest_b (x.T) ... some output of the test itself\n"
    seen = outcome_of(heard, torn, plan=DJANGO, listed=("The words.", "test_b (x.T)"))
    assert ("resolved", "channel", "complete", {"log_lacks_results"}) == seen


def test_sympy_tests_count_by_name() -> None:
    """sympy's lists hold bare names."""
    plan = TestPlan("", "bin/test -C --verbose sympy/x.py", "parse_log_sympy")
    records = (
        TestRecord("sympy/x.py:test_a", TestOutcome.PASSED, "call", "test_a"),
        TestRecord("sympy/x.py:test_b", TestOutcome.ERROR, "call", "test_b"),
    )
    heard = Heard(("python bin/test -C",), (Suite("sympy", "", records, True, 1, 2),))
    log = b"test_a ok\ntest_b E\n"
    assert "unresolved" == outcome_of(heard, log, plan=plan, listed=("test_a", "test_b"), exit_code=1)[0]
    never = Heard(("python bin/test -C",))
    forged = outcome_of(never, b"test_a ok\ntest_b ok\n", plan=plan, listed=("test_a", "test_b"))
    assert ("unresolved", {"runner_never_began"}) == (forged[0], forged[3])


IDS = st.from_regex(r"t\.py::[a-z]{1,8}(\[[a-z]{0,3}\])?", fullmatch=True)
WORDS = {"passed": "PASSED", "failed": "FAILED", "error": "ERROR", "xfailed": "XFAIL"}


@given(st.dictionaries(IDS, st.sampled_from(sorted(WORDS)), min_size=1))
def test_an_honest_log_says_what_the_channel_says(ends: dict[str, str]) -> None:
    """For each parser of pytest's family, reading the honest log gives each test the channel's own status."""
    log = honest_log(suite(*ends.items()))
    for parser in known_parsers():
        if parser.removeprefix("parse_log_") in {"django", "sympy", "unittest", "seaborn"}:
            continue
        expected = {test_id: WORDS[outcome] for test_id, outcome in ends.items()}
        assert expected == parse_log(parser, log).words


def test_a_cut_log_does_not_lose_what_the_channel_brought() -> None:
    """With results by the channel a cut log masks nothing: a failure is one, and a pass is one."""
    whole = LogResults({"t.py::a": "PASSED"}, complete=True)
    assert "unresolved" == judge(LISTED, (), whole, exit_code=0, log_truncated=True).outcome
    assert "no_verdict" == judge(LISTED, (), LogResults({"t.py::a": "PASSED"}), exit_code=0, log_truncated=True).outcome


@pytest.mark.anyio
async def test_a_sandbox_without_fifos_gives_a_closed_channel(tmp_path: Path) -> None:
    """Where no channel can be had the tests run all the same, and the reason is kept."""
    async with (
        open_provider(LocalConfig(state_dir=tmp_path)) as provider,
        provider.sandbox(SandboxSpec(image="host")) as box,
    ):
        await box.run("mkfifo() { return 1; }; mkdir -p /tmp/none", timeout_s=10, session="grader")
        async with open_channel(box, time_limit_s=10) as channel:
            assert "" == channel.export
        assert channel.heard.closed is not None


@pytest.mark.anyio
async def test_the_channel_brings_what_was_written_until_the_end(tmp_path: Path) -> None:
    """What runs in the tests' shell is heard, up to the last byte before the suite ended."""
    async with (
        open_provider(LocalConfig(state_dir=tmp_path)) as provider,
        provider.sandbox(SandboxSpec(image="host")) as box,
    ):
        text = "import unittest\nclass A(unittest.TestCase):\n" + "".join(
            f"    def test_{n}(self):\n        pass\n" for n in range(500)
        )
        await box.write("/testbed/t.py", text.encode())
        async with open_channel(box, time_limit_s=60) as channel:
            ran = await box.run(channel.export + "cd /testbed && python3 -m unittest t", timeout_s=60)
    assert 0 == ran.exit_code, ran.output
    assert [(500, True)] == [(len(suite.records), suite.whole) for suite in channel.heard.suites]
    assert 0 == channel.heard.noise_bytes


@pytest.mark.anyio
async def test_a_record_that_the_fifo_took_half_of_goes_on_in_the_spill_file(tmp_path: Path) -> None:
    """What a reporter wrote to the file because nobody read the FIFO any more follows without a break."""
    async with (
        open_provider(LocalConfig(state_dir=tmp_path)) as provider,
        provider.sandbox(SandboxSpec(image="host")) as box,
        open_channel(box, time_limit_s=60) as channel,
    ):
        halves = "cd {} && printf 'first half, ' >pipe && printf 'second half' >>spill"
        ran = await box.run(halves.format(channel.directory), timeout_s=10)
    assert 0 == ran.exit_code, ran.output
    assert b"first half, second half" == channel.raw.strip()


class _Breaking:
    """A sandbox whose way to the channel's listener breaks at a given moment; all else is the real one's."""

    def __init__(self, box: Sandbox, breaks: asyncio.Event) -> None:
        self._box, self._breaks = box, breaks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)

    async def stream(self, command: str, **how: Any) -> AsyncIterator[Chunk | ExecResult]:
        async with contextlib.aclosing(cast(Any, self._box.stream(command, **how))) as items:
            yield await anext(items)
        await self._breaks.wait()
        raise SandboxLost("the connection broke; take a new sandbox", cause="unknown")


@pytest.mark.anyio
async def test_a_broken_way_to_the_listener_is_the_sandboxes_trouble(tmp_path: Path) -> None:
    """Where the listener's connection is lost while the tests' own holds, nothing is concluded from what is missing."""
    breaks = asyncio.Event()
    async with (
        open_provider(LocalConfig(state_dir=tmp_path)) as provider,
        provider.sandbox(SandboxSpec(image="host")) as box,
    ):
        with pytest.raises(SandboxLost):
            async with open_channel(cast(Sandbox, _Breaking(box, breaks)), time_limit_s=60):
                breaks.set()
                await asyncio.sleep(0.1)


def test_a_stalled_way_to_the_listener_is_given_the_time_to_be_resumed() -> None:
    """The channel's last line is waited for longer than a silent connection lasts before it is taken up again: records
    that are late for that are no sign of a session that died."""
    unnoticed_s = inspect.signature(Wire.request).parameters["wait_s"].default
    connecting_s = inspect.signature(Wire).parameters["connect_wait_s"].default
    assert unnoticed_s + connecting_s + sum(RESUME_DELAYS_S) < CLOSE_TIMEOUT_S
