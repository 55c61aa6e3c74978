import unittest
from datetime import date

from calspan import Span, merge, workdays


def span(first, last):
    return Span(date(2024, 7, first), date(2024, 7, last))


class SpanTest(unittest.TestCase):
    def test_length_counts_both_ends(self):
        self.assertEqual(3, len(span(1, 3)))

    def test_backwards_is_refused(self):
        with self.assertRaises(ValueError):
            span(3, 1)

    def test_overlap(self):
        """Spans that share a day overlap."""
        self.assertTrue(span(1, 3).overlaps(span(3, 5)))


class MergeTest(unittest.TestCase):
    def test_overlapping(self):
        self.assertEqual([span(1, 5)], merge([span(3, 5), span(1, 3)]))

    def test_apart(self):
        self.assertEqual([span(1, 2), span(5, 6)], merge([span(5, 6), span(1, 2)]))


class WorkdaysTest(unittest.TestCase):
    def test_weekend_has_none(self):
        self.assertEqual(0, workdays(span(6, 7)))

    @unittest.skip("needs a calendar of public holidays")
    def test_holidays(self):
        self.fail()


if __name__ == "__main__":
    unittest.main()
