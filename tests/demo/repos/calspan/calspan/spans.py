"""Spans of whole days, both ends included."""

from dataclasses import dataclass
from datetime import date, timedelta


@dataclass(frozen=True, order=True)
class Span:
    """The days from `first` to `last`, both included."""

    first: date
    last: date

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise ValueError("a span ends on or after its first day")

    def __len__(self) -> int:
        return (self.last - self.first).days + 1

    def overlaps(self, other: "Span") -> bool:
        return self.first <= other.last and other.first <= self.last


def merge(spans: list[Span]) -> list[Span]:
    """Join spans that overlap or touch (one ends on the day before the next begins); in order."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and merged[-1].overlaps(span):
            merged[-1] = Span(merged[-1].first, span.last)
        else:
            merged.append(span)
    return merged


def workdays(span: Span) -> int:
    """How many days of `span` are Monday to Friday."""
    count = 0
    day = span.first
    while day < span.last:
        if day.weekday() < 5:
            count += 1
        day += timedelta(days=1)
    return count
