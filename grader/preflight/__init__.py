"""Which tasks may enter a campaign under its own configuration: reference and empty patch, repeated, in new sandboxes.

`run` is the shell; `evidence`, `classes`, `variations` and `mutants` are pure; `admission_file` is what is left behind.
docs/preflight.md tells it at length.
"""
