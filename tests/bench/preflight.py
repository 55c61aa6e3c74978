"""`python -m tests.bench.preflight ADMISSION`: an admission file as the Markdown that docs/results.md holds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from grader.preflight.admission_file import Admissions, Entry, read


def lines(found: Admissions) -> Iterator[str]:
    """Sums by repository, then each task that is not admitted or has something to be said of it, then the cost."""
    entries = found.entries
    kinds = Counter(entry.kind.replace("_", " ") for entry in entries)
    yield f"{len(entries)} tasks, {found.header.repeats} repeats of reference and empty patch: " + ", ".join(
        f"{count} {kind}" for kind, count in kinds.most_common()
    )
    yield ""
    yield "| repository | tasks | admitted | longest suite s | sandbox-hours |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for repo in dict.fromkeys(map(_repository, entries)):
        own = [entry for entry in entries if _repository(entry) == repo]
        longest = max((entry.suite_s or 0.0 for entry in own), default=0.0)
        hours = sum(entry.sandbox_hours for entry in own)
        yield f"| {repo} | {len(own)} | {sum(e.admitted for e in own)} | {longest:.1f} | {hours:.3f} |"
    total = sum(entry.sandbox_hours for entry in entries)
    admitted = sum(entry.admitted for entry in entries)
    yield f"| all | {len(entries)} | {admitted} | | {total:.3f}, {total / max(len(entries), 1):.4f} a task |"
    said = [entry for entry in entries if not entry.admitted or entry.hints]
    if said:
        yield ""
        yield "| task | class | why |"
        yield "| --- | --- | --- |"
    for entry in said:
        why = "; ".join(word for word in (entry.why, *entry.hints) if word).replace("|", "\\|").replace("\n", " ")
        yield f"| {entry.task_id} | {entry.kind.replace('_', ' ')} | {why} |"


def _repository(entry: Entry) -> str:
    """An instance id of SWE-bench is `owner__name-number`."""
    return entry.task_id.rpartition("-")[0] or entry.task_id.partition("__")[0]


if __name__ == "__main__":
    print("\n".join(lines(read(Path(sys.argv[1])))))
