"""Faults that a run uses.

Swarm testing: a seed first draws which *kinds* of fault it uses and how often, then the faults themselves. A run in
which everything happens at once hides bugs that need one kind alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SUPERVISOR_MS = 200.0
"""A supervisor starts what has ended so soon."""


@dataclass
class FaultOptions:
    """Which faults, how often, how long. Times in virtual milliseconds."""

    kinds: tuple[str, ...] = ()
    gap_min_ms: int = 100
    gap_max_ms: int = 1500
    duration_min_ms: int = 50
    duration_max_ms: int = 4000
    first: int = 1_000_000
    """Only so many of the faults drawn are injected: the others are drawn and left out."""
    without: tuple[int, ...] = ()
    """Nor are these, counted from 0: what `strandline sim --shrink` found to be of no matter."""

    @classmethod
    def draw(cls, rng: random.Random, kinds_there_are: Sequence[str]) -> FaultOptions:
        """A few or many of the kinds, at a pace between gentle and furious."""
        number = rng.choice((2, 3, 5, 8, len(kinds_there_are) // 2, len(kinds_there_are)))
        kinds = tuple(rng.sample(list(kinds_there_are), min(number, len(kinds_there_are))))
        gap = rng.choice((200, 700, 2000))
        duration = rng.choice((300, 1000, 3000, 6000))
        return cls(kinds, gap // 5, gap, duration // 10, duration)
