"""The production world of a node: the machine's clocks, random numbers, file system and network."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.log.disk import Disk
from strandline.proto.ports import Clock, Rng, Rpc
from strandline.proto.system import SystemClock, system_rng


@dataclass(slots=True)
class World:
    """World of a node: everything that it uses from outside, in one object, so that the simulator can replace it."""

    disk: Disk
    rpc: Rpc
    clock: Clock = field(default_factory=SystemClock)
    rng: Rng = field(default_factory=system_rng)


def system_world() -> World:
    """Return the world with the real disk and gRPC, imported here, as users of only a clock do not need them."""
    from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
    from strandline.log.real_disk import RealDisk

    return World(disk=RealDisk(), rpc=GrpcRpc())
