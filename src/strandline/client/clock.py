"""The client's default clock and generator; the simulator passes its own to the async classes."""

from __future__ import annotations

import random
import time

from strandline.proto.ports import Rng


class SystemClock:
    """The machine's clocks, as `strandline.proto.ports.Clock` wants them."""

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back."""
        return time.monotonic() * 1000

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


def system_rng() -> Rng:
    """A generator seeded by the operating system."""
    return random.Random()
