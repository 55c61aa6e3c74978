"""From what a model said to the patch in it. Pure.

A completion without a patch is graded as it is, and rejected by name: a model that wrote no diff has earned that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from grader.errors import UsageError

Completion = str | Sequence[Mapping[str, object]] | None
"""Text, the messages of a conversation, or None where nothing was said."""

_FENCED = re.compile(
    r"^(`{3,}|~{3,})[ \t]*(?:diff|patch|udiff)[ \t\r]*\n(.*?)^\1[ \t\r]*$", re.MULTILINE | re.DOTALL | re.I
)


def patch_in(completion: Completion) -> str:
    """The last fenced block that says it is a diff (or patch); without one, the whole text.

    Lines of a diff begin with `+`, `-`, a space or a header's word, so that a fence in a changed file ends no block.
    """
    text = text_of(completion)
    blocks = _FENCED.findall(text)
    return blocks[-1][1] if blocks else text


def text_of(completion: Completion) -> str:
    """The text; of a conversation, the last message's. Parts of a message that are not text are left out.

    Raises `UsageError` for what is neither.
    """
    if completion is None:
        return ""
    if isinstance(completion, str):
        return completion
    if not _is_conversation(completion):
        raise UsageError(
            f"a completion is given as `{type(completion).__name__}`; give its text, or the messages of a conversation"
        )
    content = completion[-1].get("content") if completion else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _is_conversation(given: object) -> bool:
    return isinstance(given, Sequence) and all(isinstance(message, Mapping) for message in given)
