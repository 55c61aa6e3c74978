"""`python -m tests.bench.torture` writes docs/torture.md: each case of the torture suite, ours and SWE-ReX's answer."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sandbox import LocalConfig, SandboxSpec, open_provider
from sandbox.torture import CASES, Case, run_case
from tests.bench import swerex
from tests.execd.conftest import PYTHONS

PAGE = Path("docs/torture.md")
CASE_S = 45.0
AT_ONCE = 3
COUNTS = "| execd's Python, in the local provider | cases | right | wrong |\n| --- | ---: | ---: | --- |"
HEAD = """# The torture suite

Written by `python -m tests.bench.torture`. Each case of `sandbox/torture.py`, run in the local provider and, where it
can be installed and a case harms nothing outside a sandbox, in SWE-ReX's local runtime (of PyPI, as it comes). Exit
codes and output are compared alike for both; SWE-ReX has no stdin, no output cap and no restart, so that cases which
need those are not asked of it. SWE-ReX adds line ends in front of and behind every output; that is not held against it
here: line ends at both ends of an output are left out of the comparison, and CR LF counts as LF. "EOF" is pexpect's
word for a session that has ended for good.

%s
| case | execd | SWE-ReX |
| --- | --- | --- |
"""


async def ours(cases: Sequence[Case], python: Path | None = None) -> dict[str, str]:
    """What execd answers on a Python (None: the provider's choice), each case in a sandbox of its own, some at once."""
    answers = {}
    some = asyncio.Semaphore(AT_ONCE)
    with tempfile.TemporaryDirectory() as folder:
        async with open_provider(LocalConfig(state_dir=Path(folder), host_python=python)) as provider:

            async def one(case: Case) -> None:
                async with some, provider.sandbox(SandboxSpec(image="host")) as box:
                    try:
                        await run_case(box, case)
                        answers[case.name] = "right"
                    except AssertionError as error:
                        answers[case.name] = f"wrong: {error}"

            await asyncio.gather(*map(one, cases))
    return answers


def theirs(cases: list[Case]) -> dict[str, str]:
    """What SWE-ReX answers; empty where it cannot be had."""
    asked = [case for case in cases if _can_be_asked(case)]
    steps = {case.name: [[str(step.command), step.timeout_s] for step in case.steps] for case in asked}
    with tempfile.TemporaryDirectory() as folder:
        python = swerex.install(Path(folder) / "swerex")
        if python is None:
            return {}
        said: dict[str, list[Any]] = {}
        with ThreadPoolExecutor(2) as pool:  # a process for each case: what hangs or dies takes no other along
            for answer in pool.map(lambda item: swerex.ask(python, {"cases": dict([item])}, CASE_S), steps.items()):
                said |= answer["cases"]
    return {case.name: _judged(case, said.get(case.name, ["no answer"])) for case in asked}


def _can_be_asked(case: Case) -> bool:
    usual = all(isinstance(s.command, str) and not s.stdin and s.max_output_bytes == 1 << 20 for s in case.steps)
    return usual and not case.needs_isolation and not case.slow


def _judged(case: Case, said: list[Any]) -> str:
    for step, answer in zip(case.steps, [*said, *["no answer"] * len(case.steps)], strict=False):
        if isinstance(answer, str):
            if step.timed_out and answer == "CommandTimeoutError":
                continue
            return f"{answer} at `{_shown(step.command)}`"
        exit_code, output = answer[0], answer[1].encode("utf-8", "replace").replace(b"\r\n", b"\n").strip(b"\n")
        if step.exit_code is not None and exit_code != step.exit_code:
            return f"exit code {exit_code} for {step.exit_code} at `{_shown(step.command)}`"
        expected = step.output if step.output is not None else step.has
        found = expected is None or (expected.strip(b"\n") == output if step.output is not None else expected in output)
        if not found:
            return f"other output at `{_shown(step.command)}`"
    return "right"


def _shown(command: str | bytes) -> str:
    text = " ".join(str(command).split())
    return (text if len(text) < 50 else text[:47] + "...").replace("|", "\\|").replace("`", "'")


def each_python(cases: Sequence[Case]) -> tuple[str, dict[str, str]]:
    """A table of counts and of the cases that were wrong, one line for each Python found; and what was wrong."""
    lines, wrong = [COUNTS], {}
    for version, python in PYTHONS.items():
        answers = asyncio.run(ours(cases, Path(python)))
        missed = {name: answer for name, answer in answers.items() if answer != "right"}
        wrong |= {f"{name} ({version})": answer for name, answer in missed.items()}
        lines.append(f"| {version} | {len(answers)} | {len(answers) - len(missed)} | {', '.join(missed)} |")
    return "\n".join(lines) + "\n", wrong


def main(argv: Sequence[str]) -> int:
    """Ask both and write the page; with `pythons` its first table only. Exit code 1 when ours is wrong anywhere."""
    cases = [case for case in CASES if not case.slow]
    counts, wrong = each_python(cases)
    print(counts, *wrong.items(), sep="\n", flush=True)
    if argv == ["pythons"]:
        page = PAGE.read_text(encoding="utf-8")
        cases_at = page.index("| case |")
        counts_at = page.find(COUNTS)
        head = page[: cases_at if counts_at < 0 else counts_at]
        PAGE.write_text(f"{head}{counts}\n{page[cases_at:]}", encoding="utf-8")
    else:
        mine = asyncio.run(ours(cases))
        wrong |= {name: answer for name, answer in mine.items() if answer != "right"}
        PAGE.write_text(HEAD % counts + _side_by_side(cases, mine, theirs(cases)), encoding="utf-8")
    return 1 if wrong else 0


def _side_by_side(cases: Sequence[Case], mine: dict[str, str], others: dict[str, str]) -> str:
    lines = [f"| {case.name} | {mine[case.name]} | {others.get(case.name, 'not asked')} |" for case in cases]
    right = sum(answer == "right" for answer in mine.values())
    their_right = sum(answer == "right" for answer in others.values())
    tail = f"execd: {right} of {len(mine)} right. SWE-ReX: {their_right} of {len(others)} that it was asked."
    return "\n".join([*lines, "", tail, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
