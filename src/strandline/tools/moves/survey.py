"""The cluster as the planner wants it, asked of an admin client."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.client.admin import Admin
from strandline.client.types import EARLIEST, LATEST, ConfigResource, LogDirDescription, NodeInfo
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.tools.moves.layout import Broker, Cluster, Directory, Partition

CORDONED = "cordoned.log.dirs"

DAY_MS = 24 * 3600 * 1000


def survey(admin: Admin, since_ms: int | None = None) -> Cluster:
    """Brokers, partitions, sizes, and the moves under way. A broker that is alive and does not answer counts as one
    that says nothing of its disks.

    Args:
        since_ms: a time: the partitions get the bytes that came since then as their load. None: no load is asked for.

    Raises:
        KafkaError, ClientTimeout: no broker tells of the cluster.
    """
    nodes = admin.describe_cluster().nodes
    disks = {node.node_id: directories(admin, node.node_id) for node in nodes if not node.fenced}
    sizes: dict[TopicPartition, dict[int, int]] = {}
    homes: dict[TopicPartition, dict[int, str]] = {}
    for node_id, found in disks.items():
        for one in found:
            for tp, replica in one.replicas.items():
                sizes.setdefault(tp, {})[node_id] = replica.size_bytes
                homes.setdefault(tp, {})[node_id] = one.path
    moves = admin.list_partition_reassignments()
    loads = {} if since_ms is None else _loads(admin, since_ms)
    partitions = []
    for topic in admin.describe_topics(None, include_internal=True):
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition)
            move = moves.get(tp)
            known = sizes.get(tp, {})
            size = known.get(-1 if part.leader is None else part.leader, max(known.values(), default=0))
            partitions.append(
                Partition(
                    tp=tp,
                    replicas=part.replicas if move is None else move.replicas,
                    leader=part.leader,
                    isr=part.isr,
                    size=size,
                    load=int(loads.get(tp, 0.0) * size),
                    adding=() if move is None else move.adding,
                    removing=() if move is None else move.removing,
                    homes=homes.get(tp, {}),
                    sizes=known,
                )
            )
    return Cluster.of([_broker(admin, node, disks.get(node.node_id, [])) for node in nodes], partitions)


def directories(admin: Admin, node_id: int) -> list[LogDirDescription]:
    """The log directories of a broker that are online; none where it does not answer."""
    try:
        [found] = admin.describe_log_dirs([node_id]).values()
    except StrandlineError:
        return []
    return [one for one in found if one.error is None]


def _broker(admin: Admin, node: NodeInfo, disks: list[LogDirDescription]) -> Broker:
    return Broker(
        node.node_id,
        node.rack,
        alive=not node.fenced,
        cordoned=not node.fenced and is_cordoned(admin, node.node_id),
        directories=tuple(Directory(one.path, one.usable_bytes) for one in disks),
    )


def is_cordoned(admin: Admin, node_id: int) -> bool:
    """True if a broker reports that its directories are cordoned; False if it does not answer, or has no such
    setting."""
    resource = ConfigResource("broker", str(node_id))
    try:
        entries = admin.describe_configs([resource])[resource]
    except StrandlineError:
        return False
    return any(entry.name == CORDONED and bool(entry.value) for entry in entries)


def _loads(admin: Admin, since_ms: int) -> Mapping[TopicPartition, float]:
    """The part of each partition's offsets that came since then."""
    topics = admin.describe_topics(None, include_internal=True)
    led = [
        TopicPartition(one.name, part.partition) for one in topics for part in one.partitions if part.leader is not None
    ]
    starts, ends = (admin.list_offsets(dict.fromkeys(led, at)) for at in (EARLIEST, LATEST))
    recent = admin.list_offsets(dict.fromkeys(led, since_ms))
    loads = {}
    for tp in led:
        first, end, then = starts[tp].offset, ends[tp].offset, recent[tp].offset
        loads[tp] = 0.0 if then < 0 or end <= first else (end - max(first, then)) / (end - first)
    return loads
