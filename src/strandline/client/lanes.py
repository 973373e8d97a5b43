"""The open batches of a producer: compiled (`_lanes.c`) where the installation could build them, else their twin in
Python (`lanes_python.py`), which means the same."""

from __future__ import annotations

try:
    from strandline.client._lanes import Lanes, Memory, OpenBatch, RecordSlot, murmur2

    COMPILED = True
except ImportError:  # there was no compiler at the installation
    from strandline.client.lanes_python import (  # type: ignore[assignment]
        Lanes,
        Memory,
        OpenBatch,
        RecordSlot,
        murmur2,
    )

    COMPILED = False
"""Whether they are compiled."""

__all__ = ["COMPILED", "Lanes", "Memory", "OpenBatch", "RecordSlot", "murmur2"]
