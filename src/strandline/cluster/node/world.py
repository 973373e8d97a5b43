"""The production world of a node: the machine's clocks, chance, file system and network."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.log.disk import Disk
from strandline.proto.ports import Clock, Rng, Rpc
from strandline.proto.system import SystemClock, system_rng


@dataclass(slots=True)
class World:
    """World of a node: all that it takes from outside in one bundle, so that the simulator can give another."""

    disk: Disk
    rpc: Rpc
    clock: Clock = field(default_factory=SystemClock)
    rng: Rng = field(default_factory=system_rng)


def system_world() -> World:
    """The real disk and gRPC; imported here, for whoever only needs a clock should not pay for them."""
    from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
    from strandline.log.real_disk import RealDisk

    return World(disk=RealDisk(), rpc=GrpcRpc())
