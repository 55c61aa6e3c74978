"""What a sandbox gets beside the tests: the reporter of the grader's own channel, as files.

Nothing here is imported by the grader; `grader.channel.listen` ships the text. The files run in the tests' own Python,
on any image: Python 3.4 syntax, standard library only, and every fault is swallowed, for a suite must never end
otherwise than it would have without them. docs/channel.md describes the protocol.
"""
