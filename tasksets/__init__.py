"""Task sets: SWE-bench-style rows of every schema, typed into one frozen `Task`."""
