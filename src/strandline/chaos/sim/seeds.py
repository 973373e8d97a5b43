"""One root seed, split by name: a draw added to one subsystem must not shift the draws of all others."""

from __future__ import annotations

import hashlib
import random


def split(seed: int, *names: str | int) -> random.Random:
    """The generator of the subsystem called `names` under the root `seed`; the same in every process and run."""
    path = "/".join(str(name) for name in (seed, *names))
    return random.Random(int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big"))
