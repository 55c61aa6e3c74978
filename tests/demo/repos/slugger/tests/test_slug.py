import pytest
from slugger import Registry, slugify


@pytest.mark.parametrize(
    "title, slug",
    [("Hello World", "hello-world"), ("a [b] c", "a-b-c"), ("--x--", "x"), ("PASSED or FAILED?", "passed-or-failed")],
)
def test_slugify(title, slug):
    assert slugify(title) == slug


def test_short_slug_is_not_cut():
    assert slugify("one two", max_length=20) == "one-two"


class TestRegistry:
    def test_first_is_plain(self):
        assert Registry().add("News") == "news"

    def test_numbers_follow(self):
        registry = Registry()
        assert [registry.add("News") for _ in range(3)] == ["news", "news-2", "news-3"]
