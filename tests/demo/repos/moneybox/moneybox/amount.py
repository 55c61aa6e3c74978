"""Parsing and printing amounts."""

import re
from dataclasses import dataclass

_AMOUNT = re.compile(r"(?P<units>\d+)(?:\.(?P<cents>\d{2}))?")


@dataclass(frozen=True, order=True)
class Amount:
    """An amount in cents; may be negative."""

    cents: int

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cents + other.cents)

    def __str__(self) -> str:
        sign = "-" if self.cents < 0 else ""
        units, cents = divmod(abs(self.cents), 100)
        return f"{sign}{units}.{cents:02d}"


def parse(text: str) -> Amount:
    """Read `12`, `12.50` or `1,234.50`, with an optional leading minus. Raises ValueError on anything else."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an amount: {text!r}")
    return Amount(int(match["units"]) * 100 + int(match["cents"] or 0))
