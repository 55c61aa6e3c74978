"""Which tasks may enter a campaign, from their rows alone: static, pure, nothing is run.

An `error` means that no trustworthy verdict can come of the task, so that it is refused. A `warning` means that the
official rules still give one, on data that a reader should know of. Each finding says what to do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from tasksets.patchfiles import inspect
from tasksets.task import Task

if TYPE_CHECKING:
    from tasksets.images import Recipe

_PINNED = re.compile(r"host|sha256:[0-9a-f]{64}|oci:.+|.+@sha256:[0-9a-f]{64}")

_PLAN_REMEDY = "give recipes, or add `eval_script` and `log_parser` as the 2026 rows of SWE-bench have them"
_PLAN_REMEDIES = {
    "swebench-2024": "give recipes, take the rows of 2026, or install `swebench` 4.1 and use `--specs swebench`",
}


class Severity(StrEnum):
    """What a finding does to its task."""

    ERROR = "error"
    WARNING = "warning"


class Code(StrEnum):
    """The closed table of findings."""

    UNREADABLE_ROW = "unreadable-row"
    NO_F2P = "no-fail-to-pass"
    NO_P2P = "no-pass-to-pass"
    TRUNCATED_ID = "truncated-id"
    AMBIGUOUS_ID = "ambiguous-id"
    DUPLICATE_ID = "duplicate-id"
    ID_IN_BOTH_LISTS = "id-in-both-lists"
    PROGRESS_MARK = "progress-mark"
    BAD_PATCH = "bad-patch"
    BAD_TEST_PATCH = "bad-test-patch"
    NO_PATCH = "no-patch"
    SAME_FILE = "same-file"
    NO_IMAGE = "no-image"
    UNPINNED_IMAGE = "unpinned-image"
    NO_PLAN = "no-plan"
    UNKNOWN_PARSER = "unknown-parser"


_WARNINGS = frozenset(
    {
        Code.NO_P2P,
        Code.TRUNCATED_ID,
        Code.AMBIGUOUS_ID,
        Code.DUPLICATE_ID,
        Code.PROGRESS_MARK,
        Code.NO_PATCH,
        Code.SAME_FILE,
        Code.UNPINNED_IMAGE,
    }
)


@dataclass(frozen=True)
class Finding:
    """One thing that a reader should know of one task."""

    task_id: str
    code: Code
    message: str
    """What was found, and what to do."""
    items: tuple[str, ...] = ()
    """The test ids, files or names that it is about. A finding about several counts as one."""

    @property
    def severity(self) -> Severity:
        return Severity.WARNING if self.code in _WARNINGS else Severity.ERROR


@dataclass(frozen=True)
class Known:
    """What the check may take for granted beside the row."""

    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Image recipes by task id. A task with one is checked as the recipe runs it: its ids, its plan, its image."""
    parsers: Collection[str] | None = None
    """Names of log parsers. None: not known here, so that no parser is called unknown."""


def check(task: Task, known: Known = Known()) -> tuple[Finding, ...]:
    """All findings of one task, errors and warnings, in the order of the table of codes."""
    task = _as_graded(task, known)
    found = [*_ids(task), *_patches(task), *_image(task), *_plan(task, known)]
    order = list(Code)
    return tuple(sorted(found, key=lambda finding: order.index(finding.code)))


def refused(findings: Iterable[Finding]) -> frozenset[str]:
    """Ids of the tasks that have at least one error."""
    return frozenset(finding.task_id for finding in findings if finding.severity is Severity.ERROR)


def is_truncated(test_id: str) -> bool:
    """Whether a pytest id was cut inside its parameters: it opens a `[` after `::` and does not end in `]`.

    Ids of other runners may hold any brackets and quotes; they are never called truncated.
    """
    _, separator, name = test_id.partition("::")
    return bool(separator) and "[" in name and not name.endswith("]")


def ambiguous(test_ids: Collection[str]) -> tuple[str, ...]:
    """The truncated ids with which another id of the same task begins: matching by prefix finds more than one test."""
    ordered = sorted(set(test_ids))
    following = dict(pairwise(ordered))  # whatever begins with an id stands right after it
    return tuple(i for i in test_ids if is_truncated(i) and following.get(i, "").startswith(i))


def _ids(task: Task) -> Iterator[Finding]:
    both = (*task.fail_to_pass, *task.pass_to_pass)
    if not task.fail_to_pass:
        yield _finding(task, Code.NO_F2P, "FAIL_TO_PASS is empty, so any patch would resolve it; list the tests")
    if not task.pass_to_pass:
        yield _finding(task, Code.NO_P2P, "PASS_TO_PASS is empty, so that nothing guards what worked before")
    if cut := tuple(filter(is_truncated, both)):
        yield _finding(
            task,
            Code.TRUNCATED_ID,
            "test ids are cut inside their parameters and match by prefix; give them whole",
            cut,
        )
    if twofold := ambiguous(both):
        yield _finding(
            task, Code.AMBIGUOUS_ID, "truncated ids are a prefix of another listed id; give them whole", twofold
        )
    if overlap := tuple(test_id for test_id in task.fail_to_pass if test_id in set(task.pass_to_pass)):
        yield _finding(
            task,
            Code.ID_IN_BOTH_LISTS,
            "tests are said both to fail and to pass at base; keep each in one list",
            overlap,
        )
    if repeated := tuple(i for ids in (task.fail_to_pass, task.pass_to_pass) for i, n in Counter(ids).items() if n > 1):
        yield _finding(task, Code.DUPLICATE_ID, "test ids are listed more than once; keep each once", repeated)
    if marks := tuple(test_id for test_id in both if re.fullmatch(r"\[ *\d+%\]", test_id)):
        yield _finding(
            task, Code.PROGRESS_MARK, "a runner's progress mark is listed as a test; take it out of the list", marks
        )


def _patches(task: Task) -> Iterator[Finding]:
    reference, tests = inspect(task.reference_patch), inspect(task.test_patch)
    if not task.reference_patch.strip():
        yield _finding(
            task, Code.NO_PATCH, "the row has no reference patch, so that its tests cannot be proved; add one"
        )
    elif reference.fault:
        yield _finding(task, Code.BAD_PATCH, f"the reference patch is no patch: {reference.fault}; correct the row")
    if task.test_patch.strip() and tests.fault:
        yield _finding(task, Code.BAD_TEST_PATCH, f"the test patch is no patch: {tests.fault}; correct the row")
    if shared := tuple(path for path in reference.paths if path in tests.paths):
        yield _finding(
            task,
            Code.SAME_FILE,
            "the reference patch and the test patch touch the same file, of which the test patch's version is graded; "
            "move the change to one of them",
            shared,
        )


def _as_graded(task: Task, known: Known) -> Task:
    recipe = known.recipes.get(task.task_id)
    if recipe is None:
        return task
    from tasksets.images import with_recipe

    return with_recipe(task, recipe, f"sha256:{recipe.image_key}")


def _image(task: Task) -> Iterator[Finding]:
    if task.image is None:
        yield _finding(
            task, Code.NO_IMAGE, "the row names no image and no recipe was given; add `image`, or give recipes"
        )
    elif not _PINNED.fullmatch(task.image):
        yield _finding(
            task,
            Code.UNPINNED_IMAGE,
            "the image is named by a tag, which may move; pin it with @sha256:<digest>, or give recipes",
            (task.image,),
        )


def _plan(task: Task, known: Known) -> Iterator[Finding]:
    if task.plan is None:
        remedy = _PLAN_REMEDIES.get(task.schema, _PLAN_REMEDY)
        yield _finding(task, Code.NO_PLAN, f"a row of {task.schema} does not say how to run its tests; {remedy}")
    elif known.parsers is not None and task.plan.parser not in known.parsers:
        yield _finding(
            task,
            Code.UNKNOWN_PARSER,
            "no log parser of that name is known, so that its log cannot be read; correct `log_parser`",
            (task.plan.parser,),
        )


def _finding(task: Task, code: Code, message: str, items: tuple[str, ...] = ()) -> Finding:
    return Finding(task.task_id, code, message, items)
