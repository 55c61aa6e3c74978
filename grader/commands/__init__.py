"""The commands of `grader`, one file each. A command parses flags, calls one library function and renders."""
