"""An image as the local provider mounts it: a stack of directories and a configuration. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class StoredImage:
    """An unpacked image. Two images with one digest are the same image."""

    digest: str
    """`sha256:<hex>`. Of the OCI manifest where there is one; of a recipe's text and its base's digest for a recipe;
    for `host`, over what identifies the host's own programs."""
    reference: str
    """What the caller asked for."""
    layers: tuple[Path, ...]
    """Overlay layer directories, lowest first, in overlayfs form (whiteouts are character devices 0:0, opaque
    directories carry `user.overlay.opaque=y`). All files belong to the user that unpacked them."""
    host_programs: bool
    """The host's `/usr` lies underneath, read-only (the `host` image and recipes on it)."""
    env: Mapping[str, str]
    workdir: str
    python: str
    """Absolute path inside the image of the Python that runs execd."""
    size_bytes: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)
    """What a reader of `grader images list` wants to know: the recipe's name, the Python asked for and used."""
