"""The embedded default provider: bubblewrap on one machine, no root needed."""
