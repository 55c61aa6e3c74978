"""A list of images: which image each task runs on, where neither its row nor its recipe is to say so.

JSON lines, each with `instance_id` and `image`. `archive`, which `grader images build --export` notes, is for people.
"""

from __future__ import annotations

import re
from pathlib import Path

from tasksets.errors import TaskSetError
from tasksets.jsonl import open_jsonl

_PINNED = re.compile(r"(?:[^\s@]+@)?sha256:[0-9a-f]{64}|oci:.+")
_KNOWN = frozenset({"instance_id", "image", "archive"})


def images_by_task(path: Path) -> dict[str, str]:
    """The images of a JSON lines file, by task id. Raises `TaskSetError`, naming the line.

    An image that may change under its name, or that is the host itself, is refused.
    """
    if not path.is_file():
        raise TaskSetError(f"{path}: is no file; give a JSON lines file of instance_id and image")
    images: dict[str, str] = {}
    rows = open_jsonl(path)
    for index, task_id in enumerate(rows.ids):
        row = rows.row(index)
        if unknown := sorted(row.fields.keys() - _KNOWN):
            raise TaskSetError(f"{row.where}: {unknown[0]!r} is not known here; a line has instance_id and image")
        image = row.text("image")
        if not _PINNED.fullmatch(image):
            raise TaskSetError(f"{row.where}: image {image!r} is not fixed by a digest; name it as name@sha256:<hex>")
        images[task_id] = image
    return images
