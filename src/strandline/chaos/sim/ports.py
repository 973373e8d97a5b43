"""Ports of the world for a process."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from strandline.chaos.sim.clock import SimClock
from strandline.chaos.sim.disk_port import DiskPort
from strandline.chaos.sim.rpc import SimRpc


@dataclass
class Ports:
    """Ports of the world for a process."""

    clock: SimClock
    disk: DiskPort
    rpc: SimRpc
    rng: random.Random
    disks: dict[str, DiskPort] = field(default_factory=dict)
    """Other disks than `disk`, by the path that each is mounted on."""
