"""JSON text to values, with one kind of failure. Pure."""

from __future__ import annotations

import json
from typing import Any


class JsonFault(ValueError):
    """Text is no JSON that can be used. The message says why and where, to follow after a name and a colon."""


def load(text: bytes | str) -> Any:
    """The value of `text`, which is UTF-8 where it is bytes. Raises JsonFault for every way in which it fails."""
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise JsonFault(f"is not UTF-8 at byte {error.start + 1}; save it as UTF-8") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise JsonFault(f"is not JSON: {error.msg} at {line}column {error.colno}; correct it") from error
    except RecursionError as error:
        raise JsonFault("is JSON that is nested too deeply to read; flatten it") from error
    except ValueError as error:  # a whole number of more digits than Python reads
        raise JsonFault(f"is JSON that cannot be read: {error}") from error
