"""A row's `eval_script`, taken apart: which lines prepare, which test, which the grader does by itself. Pure.

Law: every line of a script belongs to exactly one part, and a line that fits none is an error that names it. Joining
the parts in order gives the script back, byte for byte.

The scripts run under `bash` and have one shape: options, activation, a look at the repository, installation, the test
files checked out of the base commit, the test patch as a heredoc, the test command between two markers, the test files
checked out again. The grader restores the test files, applies the test patch and reads the log by its own means, so
those lines do not enter a `TestPlan`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from tasksets.errors import TaskSetError
from tasksets.task import EvalType, TestPlan

START_MARKER = ">>>>> Start Test Output"
END_MARKER = ">>>>> End Test Output"

_COMMIT = r"[0-9a-f]{7,40}"
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1\s*$")
_MARKER = re.compile(r"(?::|echo) ([\"'])(>>>>> (?:Start|End) Test Output)\1\s*")


class Part(StrEnum):
    """What a line of an eval script is for."""

    SHEBANG = "shebang"
    OPTIONS = "options"
    """`set -uxo pipefail`: enters the plan without the trace (`x`), which would write into the log."""
    TRACE = "trace"
    """Lines that only turn the trace on and off around the markers."""
    WORKDIR = "workdir"
    ACTIVATE = "activate"
    EXPORT = "export"
    LOCALE = "locale"
    INSTALL = "install"
    """Installs the patched repository again: known installers anywhere, and every other line that stands between the
    look at the repository and the restored test files, where the official generator writes its install step."""
    INSPECT = "inspect"
    """`git status`, `git show`, `git diff` and the safe-directory setting: for a reader of the log."""
    RESTORE = "restore"
    """`git checkout COMMIT FILES`: the grader restores test files itself."""
    TEST_PATCH = "test_patch"
    """The heredoc that applies the test patch, terminator included."""
    MARKER = "marker"
    TEST = "test"
    AFTER = "after"
    """Shows what the test command has written elsewhere, after the end marker."""
    BLANK = "blank"


_SETUP_PARTS = frozenset({Part.ACTIVATE, Part.EXPORT, Part.LOCALE, Part.INSTALL})

# Order matters only in that the first full match wins; no two overlap today.
_KNOWN: tuple[tuple[Part, re.Pattern[str]], ...] = (
    (Part.SHEBANG, re.compile(r"#!/bin/(?:ba)?sh\b.*")),
    (Part.OPTIONS, re.compile(r"set -[a-z]*o pipefail")),
    (Part.TRACE, re.compile(r"\{ set \+x; \} 2>/dev/null|set [-+]x")),
    (Part.WORKDIR, re.compile(r"cd (?P<path>/\S+)")),
    (Part.ACTIVATE, re.compile(r"(?:source|\.) \S+/activate(?: \S+)?|conda activate \S+")),
    (Part.EXPORT, re.compile(r"export [A-Za-z_]\w*=.*")),
    (Part.LOCALE, re.compile(r".*\blocale-gen\b.*")),
    (Part.INSPECT, re.compile(rf"git (?:status|show|-c core\.fileMode=false diff(?: {_COMMIT})?)")),
    (Part.INSPECT, re.compile(r"git config --global --add safe\.directory \S+")),
    (Part.RESTORE, re.compile(rf"git checkout {_COMMIT}(?P<files>(?: .+)?)")),
    (Part.INSTALL, re.compile(r"(?:python3? -m )?pip3? install .+|python3? setup\.py (?:install|develop).*")),
)


@dataclass(frozen=True)
class Line:
    """One line of a script, without its newline. `number` counts from 1."""

    number: int
    text: str
    part: Part


@dataclass(frozen=True)
class EvalScript:
    """A script whose every line is accounted for."""

    lines: tuple[Line, ...]

    def of(self, *parts: Part) -> tuple[str, ...]:
        """The texts of the lines of these parts, in the script's order."""
        return tuple(line.text for line in self.lines if line.part in parts)

    @property
    def text(self) -> str:
        """The script again, byte for byte."""
        return "\n".join(line.text for line in self.lines)

    def plan(self, parser: str, eval_type: EvalType = "pass_and_fail") -> TestPlan:
        """What the grader needs of it."""
        return TestPlan(
            setup="".join(f"{text}\n" for text in self._setup()),
            test_command="\n".join(self.of(Part.TEST)),
            parser=parser,
            workdir=self.of(Part.WORKDIR)[-1].removeprefix("cd "),
            eval_type=eval_type,
            test_files=_files_of(self.of(Part.RESTORE)),
        )

    def _setup(self) -> Iterator[str]:
        for line in self.lines:
            if line.part is Part.OPTIONS:
                yield line.text.replace("x", "", 1)
            elif line.part in _SETUP_PARTS:
                yield line.text


def parse(script: str, row: str) -> EvalScript:
    """Sort every line of `script` into its part.

    `row` names the script's row in messages. Raises TaskSetError for a line that fits no part, and for a script
    without its markers, its test command or its working directory.
    """
    texts = script.split("\n")
    lines: list[Line] = []
    inside_test = after_test = installing = False
    heredoc_end: str | None = None
    for number, text in enumerate(texts, start=1):
        marker = _MARKER.fullmatch(text)
        if heredoc_end is not None:
            part = Part.TEST_PATCH
            heredoc_end = None if text == heredoc_end else heredoc_end
        elif marker is not None:
            part = Part.MARKER
            inside_test, after_test = marker[2] == START_MARKER, marker[2] == END_MARKER
        elif inside_test:
            part = Part.TEST
        elif text.startswith("git apply ") and (opened := _HEREDOC.search(text)):
            part, heredoc_end = Part.TEST_PATCH, opened[2]
        else:
            part = _part_of(text, installing, after_test, f"{row}, line {number} of its eval_script")
            installing = part is not Part.RESTORE and (installing or (" diff" in text and part is Part.INSPECT))
        lines.append(Line(number, text, part))
    if heredoc_end is not None:
        raise TaskSetError(f"{row}: its eval_script never ends the heredoc {heredoc_end!r}; fetch the row again")
    return _whole(EvalScript(tuple(lines)), row)


def parse_pair(setup_script: str, test_script: str, row: str) -> EvalScript:
    """A script that a row holds as two: SWE-Gym's `setup_script`, and the `test_script` that follows it.

    What they lack of the common shape is put in: the markers around the last line of the test script.
    """
    *before, command = test_script.rstrip("\n").split("\n")
    inspect = "git -c core.fileMode=false diff"  # from here to the restored files stands the free-form install step
    head, _, tail = setup_script.rstrip("\n").partition("\n")
    joined = [head, inspect, tail, *before, f": '{START_MARKER}'", command, f": '{END_MARKER}'"]
    return parse("\n".join(joined), row)


def _part_of(text: str, installing: bool, after_test: bool, where: str) -> Part:
    if not text.strip():
        return Part.BLANK
    for part, pattern in _KNOWN:
        if pattern.fullmatch(text):
            return part
    if installing:
        return Part.INSTALL
    if after_test and text.startswith("cat "):
        return Part.AFTER
    raise TaskSetError(
        f"{where}, is of no known kind: {text[:120]!r}; it would be lost, so extend tasksets/evalscript.py to say "
        "whether it prepares, tests or only shows"
    )


def _whole(script: EvalScript, row: str) -> EvalScript:
    markers = [match[2] for text in script.of(Part.MARKER) if (match := _MARKER.fullmatch(text))]
    if markers != [START_MARKER, END_MARKER]:
        raise TaskSetError(
            f"{row}: its eval_script must hold {START_MARKER!r} once and then {END_MARKER!r} once, "
            f"and has {markers or 'neither'}; fetch the row again"
        )
    if not "".join(script.of(Part.TEST)).strip():
        raise TaskSetError(f"{row}: its eval_script has no test command between the markers; fetch the row again")
    if len(set(script.of(Part.WORKDIR))) != 1:
        raise TaskSetError(
            f"{row}: its eval_script must change to one directory, and names {len(set(script.of(Part.WORKDIR)))}; "
            "fetch the row again"
        )
    return script


def _files_of(restores: Sequence[str]) -> tuple[str, ...]:
    """Files of the `git checkout COMMIT a b c` lines, each once, in order."""
    words = chain.from_iterable(shlex.split(text)[3:] for text in restores)
    return tuple(dict.fromkeys(words))
