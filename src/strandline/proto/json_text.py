"""JSON that others wrote: whatever it is, reading it ends with its value or a ValueError.

Python's reader calls itself for each bracket within a bracket. A text of some thousand of them ends it by a
RecursionError, which nobody who reads JSON expects: a request, a token, a record or a file would end what reads it.
"""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str | bytes | bytearray, **options: Any) -> Any:
    """As `json.loads`. Raises ValueError: it is no JSON, or its brackets are nested deeper than can be read."""
    try:
        return json.loads(text, **options)
    except RecursionError:  # rule A21/deep-json-is-no-value-error
        raise ValueError("its brackets are nested too deeply") from None
