"""What a scorer is given: patches for tasks, looked at before the first of them is graded. Pure.

Law. One sample that is none refuses all that came with it: a group that was half given is not scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeVar

from grader.errors import UsageError

T = TypeVar("T")

Patch = bytes | str | None
"""As submitted. Text is taken as UTF-8; None is the empty patch, as null is in a file of predictions."""
Pair = tuple[str, Patch]
"""A task's id and a patch for it."""


def pairs_of(task_id: str, patches: Sequence[Patch]) -> list[Pair]:
    """A group as pairs. Raises `UsageError` where it is no list."""
    return [(task_id, patch) for patch in listed("patches", patches)]


def read_pairs(pairs: Sequence[Pair]) -> list[tuple[str, bytes]]:
    """The pairs, with their patches as they are graded. Raises `UsageError`, which names the first that is none."""
    return [_pair(place, pair) for place, pair in enumerate(listed("samples", pairs))]


def listed(what: str, given: Iterable[T]) -> list[T]:
    """The members of a list. Text, bytes, mappings and sets have members too, and are not what is meant."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | bytearray | memoryview | Mapping | Set):
        raise UsageError(f"the {what} are given as {_kind(given)}; give a list of them")
    return list(given)


def as_bytes(patch: object) -> bytes:
    """A patch as it is graded. No text is refused here: what a model can say, the grader can reject by name."""
    if patch is None:
        return b""
    if isinstance(patch, str):
        return patch.encode("utf-8", "surrogatepass")
    if isinstance(patch, bytes):
        return patch
    raise UsageError(f"a patch is given as {_kind(patch)}; give bytes, text, or None for the empty patch")


def _pair(place: int, pair: object) -> tuple[str, bytes]:
    if not isinstance(pair, Sequence) or isinstance(pair, str | bytes) or len(pair) != 2:
        raise UsageError(f"sample {place} is {_kind(pair)}; give pairs of task id and patch")
    task_id, patch = pair
    if not isinstance(task_id, str):
        raise UsageError(f"the task of sample {place} is given as {_kind(task_id)}; give its id, as text")
    try:
        return task_id, as_bytes(patch)
    except UsageError as error:
        raise UsageError(f"sample {place}: {error}") from None


def _kind(given: object) -> str:
    return "None" if given is None else f"`{type(given).__name__}`"
