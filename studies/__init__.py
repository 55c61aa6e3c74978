"""Studies over ledgers: whether verdicts agree, and what they cost."""
