"""The state of an explored broker: what does not belong to it, or follows from the rest, is named here once."""

from __future__ import annotations

from typing import Any

from lab.explore.brokers import (
    BEGINNINGS,
    CLOCK,
    CLUSTER,
    CONFIG,
    CREDIT_BYTES,
    ENDPOINT,
    LONG_AGO_MS,
    NOW_MS,
    PAUSES,
    RNG,
    ROT,
    RPC,
    Broker,
    nothing,
    refuse,
)
from lab.explore.directories import DIRECTORIES
from lab.explore.logs import TOPIC_ID, TOPIC_PARTITION, ModelLog
from lab.explore.values import Codec, Fresh
from strandline.log.config import LogConfig
from strandline.log.epochs import LeaderEpochs
from strandline.proto.isr import AlterPartitionItem
from strandline.proto.tasks import Signal
from strandline.proto.timers import Delayed
from strandline.replica.core import FollowerProgress, LeaderCore
from strandline.replica.fetcher import Fetcher, Following, Pieces
from strandline.replica.leader_stream import CatchUp, FollowerLink
from strandline.replica.partition import Partition, Watchers
from strandline.replica.partition_set import PartitionSet
from strandline.replica.refusals import EarlyRefusals
from strandline.replica.shared import Shared
from strandline.replica.states import BrokerState, PartitionState, ReplicaCounters
from strandline.replica.streams import Streams


def _member(member: Any) -> Any:
    return member.node_id


def _itself(node: Any) -> Any:
    return node


def broker_codec() -> Codec:
    """Codec of a broker's state."""
    times: dict[tuple[type, str], Any] = {
        (Fetcher, "received_ms"): NOW_MS,
        (Fetcher, "sent_ms"): NOW_MS,
        (Fetcher, "lost_ms"): None,
        (Following, "retry_ms"): NOW_MS,
        (FollowerLink, "now_ms"): NOW_MS,
        (FollowerLink, "received_ms"): NOW_MS,
        (FollowerLink, "sent_ms"): NOW_MS,
        (FollowerProgress, "last_ack_ms"): NOW_MS,
        (FollowerProgress, "leader_end_at_last_ack"): -1,
        (LeaderCore, "_propose_after_ms"): LONG_AGO_MS,
    }
    world: dict[tuple[type, str], Any] = {
        (Shared, "cluster_id"): CLUSTER,
        (Shared, "clock"): CLOCK,
        (Shared, "config"): CONFIG,
        (Shared, "counters"): Fresh(ReplicaCounters),
        (Shared, "early_refusals"): Fresh(EarlyRefusals),
        (Shared, "directories"): DIRECTORIES,
        (Shared, "beginnings"): BEGINNINGS,
        (Shared, "rot"): ROT,
        (Shared, "pauses"): PAUSES,
        (Shared, "on_change"): nothing,
        (Shared, "on_fatal"): refuse,
        (PartitionSet, "_deletions"): Fresh(dict),
        (PartitionSet, "_asides"): Fresh(dict),
        (PartitionSet, "_awaiting_deletion"): Fresh(dict),
        (Partition, "watchers"): Fresh(Watchers),
        (LeaderCore, "_effects"): Fresh(list),
        (PartitionState, "log_config"): LogConfig(),
        (ModelLog, "config"): LogConfig(),
        (LeaderEpochs, "version"): 0,
        (LeaderEpochs, "written"): 0,
        (Fetcher, "_retry_timer"): None,
        (Fetcher, "_signal"): Fresh(Signal),
        (Fetcher, "_task"): None,
        (Fetcher, "_consumed"): 0,
        (Fetcher, "attempts"): 0,
        (Following, "attempts"): 0,
        (Following, "cuts"): 0,
        (FollowerLink, "_signal"): Fresh(Signal),
        (CatchUp, "_cold_read"): None,
        (CatchUp, "_wake"): nothing,
        (CatchUp, "_fatal"): refuse,
        (CatchUp, "_in_pieces"): None,
        (Fetcher, "_in_pieces"): Fresh(Pieces),
        (FollowerLink, "_credit"): CREDIT_BYTES,
        (FollowerLink, "_catch_up_is_next"): True,
        (FollowerLink, "bytes_out"): 0,
        (Streams, "_ending"): Fresh(dict),
        (Streams, "_ended_bytes_out"): 0,
        (Streams, "_rpc"): RPC,
        (Streams, "_rng"): RNG,
        (Fetcher, "_rpc"): RPC,
        (Fetcher, "_rng"): RNG,
        (Delayed, "_timer"): None,
        (BrokerState, "endpoint"): ENDPOINT,
        (Fetcher, "_endpoint"): ENDPOINT,
        (PartitionState, "topic"): TOPIC_PARTITION.topic,
        (PartitionState, "topic_id"): TOPIC_ID,
        (PartitionState, "partition"): TOPIC_PARTITION.partition,
        (Broker, "trouble"): "",
    }
    unordered: dict[tuple[type, str], Any] = {
        (PartitionState, "replicas"): _itself,
        (PartitionState, "isr"): _itself,
        (LeaderCore, "isr"): _itself,
        (LeaderCore, "maximal_isr"): _itself,
        (AlterPartitionItem, "new_isr"): _member,
    }
    derived: dict[tuple[type, str], Any] = {
        (LeaderCore, "_followers"): lambda core: tuple(core.followers.values()),
    }
    return Codec(fixed=times | world, unordered=unordered, derived=derived)
