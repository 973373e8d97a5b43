"""The open batches of a producer: compiled (`_open_batches.c`) where the installation could build them, else their twin
in Python (`open_batches_python.py`), which means the same."""

from __future__ import annotations

try:
    from strandline.client._open_batches import Memory, OpenBatch, OpenBatches, RecordSlot, murmur2

    COMPILED = True
except ImportError:  # there was no compiler at the installation
    from strandline.client.open_batches_python import (  # type: ignore[assignment]
        Memory,
        OpenBatch,
        OpenBatches,
        RecordSlot,
        murmur2,
    )

    COMPILED = False
"""Whether they are compiled."""

__all__ = ["COMPILED", "Memory", "OpenBatch", "OpenBatches", "RecordSlot", "murmur2"]
