"""The grader's own result channel: what test runners told the reporter that was put beside them.

`records` reads it, `honest_log` puts it in the words of official logs, `decide` holds it against log and exit code: all
pure. `listen` is the shell. The files that run in the sandbox are `grader.reporters`. docs/channel.md tells the whole.
"""

from grader.channel.decide import Decided, decide
from grader.channel.listen import Channel, open_channel
from grader.channel.records import Heard, Suite, TestOutcome, TestRecord, read_records, statuses

__all__ = [
    "Channel",
    "Decided",
    "Heard",
    "Suite",
    "TestOutcome",
    "TestRecord",
    "decide",
    "open_channel",
    "read_records",
    "statuses",
]
