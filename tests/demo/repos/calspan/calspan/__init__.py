"""Spans of days."""

from calspan.spans import Span, merge, workdays

__all__ = ["Span", "merge", "workdays"]
