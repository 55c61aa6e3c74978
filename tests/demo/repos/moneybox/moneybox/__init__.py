"""Amounts of money in whole cents."""

from moneybox.amount import Amount, parse
from moneybox.split import allocate, split

__all__ = ["Amount", "allocate", "parse", "split"]
