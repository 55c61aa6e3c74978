"""From a title to a slug, and slugs that are unique."""

import re


def slugify(title: str, *, max_length: int | None = None) -> str:
    """Lower-case letters, digits and single dashes. Accents are dropped: `Café au lait` is `cafe-au-lait`.

    With `max_length` the slug is cut at a dash, so that no word is broken.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    if max_length is not None:
        slug = slug[:max_length]
    return slug


class Registry:
    """Gives each title a slug that it has not given before: `a`, `a-2`, `a-3`."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def add(self, title: str) -> str:
        slug = slugify(title)
        number = 2
        while slug in self._taken:
            slug = f"{slugify(title)}-{number}"
            number += 1
        self._taken.add(slug)
        return slug
