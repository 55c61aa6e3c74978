import pytest
from moneybox import Amount, allocate, split


def test_split_evenly():
    assert split(Amount(900), 3) == [Amount(300)] * 3


def test_split_needs_one_way():
    with pytest.raises(ValueError):
        split(Amount(100), 0)


def test_allocate_by_weight():
    assert allocate(Amount(1000), [1, 4]) == [Amount(200), Amount(800)]


@pytest.mark.parametrize("weights", [[], [0, 0], [-1, 2]])
def test_allocate_refuses(weights):
    with pytest.raises(ValueError):
        allocate(Amount(100), weights)
