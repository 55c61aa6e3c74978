import pytest
from moneybox import Amount, parse


@pytest.mark.parametrize("text, cents", [("12", 1200), ("12.50", 1250), ("0.05", 5), (" 7.00 ", 700)])
def test_parse(text, cents):
    assert parse(text) == Amount(cents)


@pytest.mark.parametrize("text", ["", "12.5", "1.2.3", "twelve"])
def test_parse_refuses(text):
    with pytest.raises(ValueError, match="not an amount"):
        parse(text)


def test_str_keeps_two_places():
    assert str(Amount(1205)) == "12.05"


def test_str_of_negative_amount():
    assert str(Amount(-5)) == "-0.05"


class TestAdd:
    def test_sum(self):
        assert Amount(150) + Amount(250) == Amount(400)
