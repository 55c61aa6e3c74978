"""Names for web addresses."""

from slugger.slug import Registry, slugify

__all__ = ["Registry", "slugify"]
