"""What a parser fills while it reads: the last word for each test, and which tests had more than one."""

from __future__ import annotations

MAX_TESTS = 500_000
"""Ids kept of one log: two hundred times the most that a task of Verified lists. Further ids are counted, not kept."""


class Tally:
    """Words by test id in order of first appearance, as a later word replaces an earlier one."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}
        self.conflicts: dict[str, tuple[str, ...]] = {}
        self.dropped = 0
        """Results of ids beyond `MAX_TESTS`."""

    def record(self, test_id: str, word: str) -> None:
        """The log has `word` for `test_id`."""
        earlier = self.words.get(test_id)
        if earlier is None and len(self.words) >= MAX_TESTS:
            self.dropped += 1
            return
        if earlier is not None and earlier != word:
            seen = self.conflicts.get(test_id, (earlier,))
            self.conflicts[test_id] = seen if word in seen else (*seen, word)
        self.words[test_id] = word
