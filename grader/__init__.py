"""The grader: one patch, one sandbox, one verdict with its evidence."""
