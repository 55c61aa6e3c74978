"""execd: the daemon inside a sandbox. Standard library only, Python 3.6 syntax, imported by nobody."""
