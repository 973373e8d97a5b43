"""The production world of a node: the machine's clocks, chance, file system and network."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from strandline.log.disk import Disk
from strandline.proto.ports import Clock, Rng, Rpc


class SystemClock:
    """The machine's clocks."""

    def monotonic_ms(self) -> float:
        """Milliseconds from an arbitrary origin; never goes back, and goes on while the process is paused."""
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


@dataclass(slots=True)
class World:
    """What a node takes from outside: one bundle, so that the simulator can give another."""

    disk: Disk
    rpc: Rpc
    clock: Clock = field(default_factory=SystemClock)
    rng: Rng = field(default_factory=random.Random)
    """Seeded by the operating system."""


def system_world() -> World:
    """The real disk and gRPC; imported here, for whoever only needs a clock should not pay for them."""
    from strandline.cluster.internal.grpc_rpc import GrpcRpc
    from strandline.log.real_disk import RealDisk

    return World(disk=RealDisk(), rpc=GrpcRpc())
