"""Faults that a run uses.

Swarm testing: a seed first draws which *kinds* of fault it uses and how often, then the faults themselves. A run in
which everything happens at once hides bugs that need one kind alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SUPERVISOR_MS = 200.0
"""Virtual milliseconds after which a supervisor restarts a process that has ended."""


@dataclass
class FaultOptions:
    """Options of fault injection: which faults, how often, how long. Times are virtual milliseconds."""

    kinds: tuple[str, ...] = ()
    gap_min_ms: int = 100
    gap_max_ms: int = 1500
    duration_min_ms: int = 50
    duration_max_ms: int = 4000
    first: int = 1_000_000
    """Number of drawn faults that are injected; those after them are drawn and left out."""
    without: tuple[int, ...] = ()
    """Numbers (from 0) of the faults to leave out, because `strandline sim --shrink` found them irrelevant."""

    @classmethod
    def draw(cls, rng: random.Random, kinds_there_are: Sequence[str]) -> FaultOptions:
        """Draw which kinds of faults a run uses, few or many, and how often they strike."""
        number = rng.choice((2, 3, 5, 8, len(kinds_there_are) // 2, len(kinds_there_are)))
        kinds = tuple(rng.sample(list(kinds_there_are), min(number, len(kinds_there_are))))
        gap = rng.choice((200, 700, 2000))
        duration = rng.choice((300, 1000, 3000, 6000))
        return cls(kinds, gap // 5, gap, duration // 10, duration)
