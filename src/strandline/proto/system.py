"""The machine's own clock and chance: what production gives for the `Clock` and `Rng` ports."""

from __future__ import annotations

import random
import time

from strandline.proto.ports import Rng


class SystemClock:
    """The machine's clocks, as the `Clock` port wants them."""

    def monotonic_ms(self) -> float:
        """Milliseconds from an arbitrary origin; never goes back, and goes on while the process is paused."""
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


def system_rng() -> Rng:
    """The operating system's own generator: nobody can tell what comes next, as nonces, salts and secrets need it."""
    return random.SystemRandom()
