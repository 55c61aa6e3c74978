"""An agent's work as a patch, exactly, and the proof of it. `grader.extract` puts these parts together.

exclusions  what is left out by declaration
baseline    what the image shipped
changes     what the agent changed, and what of it a patch carries (pure)
objects     the patch, by a git of our own
compare     two trees: what differs, in words, and whether it matters (pure)
"""
