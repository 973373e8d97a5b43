"""The APIs this client calls and the versions of each that it speaks; a connection settles on one per broker."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


class Api(IntEnum):
    """Kafka's API keys, as far as this client uses them."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81


class VersionRange(NamedTuple):
    """Versions from `low` to `high`, both included."""

    low: int
    high: int


SUPPORTED: dict[Api, VersionRange] = {
    Api.PRODUCE: VersionRange(3, 13),
    Api.FETCH: VersionRange(4, 17),
    Api.LIST_OFFSETS: VersionRange(1, 10),
    Api.METADATA: VersionRange(1, 13),
    Api.OFFSET_COMMIT: VersionRange(2, 10),
    Api.OFFSET_FETCH: VersionRange(2, 10),
    Api.FIND_COORDINATOR: VersionRange(0, 6),
    Api.JOIN_GROUP: VersionRange(2, 9),
    Api.HEARTBEAT: VersionRange(0, 4),
    Api.LEAVE_GROUP: VersionRange(0, 5),
    Api.SYNC_GROUP: VersionRange(0, 5),
    Api.DESCRIBE_GROUPS: VersionRange(0, 6),
    Api.LIST_GROUPS: VersionRange(0, 5),
    Api.API_VERSIONS: VersionRange(0, 4),
    Api.CREATE_TOPICS: VersionRange(2, 7),
    Api.DELETE_TOPICS: VersionRange(1, 6),
    Api.DELETE_RECORDS: VersionRange(0, 2),
    Api.INIT_PRODUCER_ID: VersionRange(0, 5),
    Api.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
    Api.DESCRIBE_CONFIGS: VersionRange(1, 4),
    Api.DESCRIBE_LOG_DIRS: VersionRange(1, 4),
    Api.CREATE_PARTITIONS: VersionRange(0, 3),
    Api.DELETE_GROUPS: VersionRange(0, 2),
    Api.ELECT_LEADERS: VersionRange(1, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
    Api.OFFSET_DELETE: VersionRange(0, 0),
    Api.DESCRIBE_QUORUM: VersionRange(0, 2),
    Api.DESCRIBE_CLUSTER: VersionRange(0, 2),
    Api.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    Api.CONSUMER_GROUP_HEARTBEAT: VersionRange(0, 1),
    Api.CONSUMER_GROUP_DESCRIBE: VersionRange(0, 1),
    Api.DESCRIBE_TOPIC_PARTITIONS: VersionRange(0, 0),
    Api.ADD_RAFT_VOTER: VersionRange(0, 0),
    Api.REMOVE_RAFT_VOTER: VersionRange(0, 0),
}

FIRST_FLEXIBLE: dict[Api, int] = {
    Api.PRODUCE: 9,
    Api.FETCH: 12,
    Api.LIST_OFFSETS: 6,
    Api.METADATA: 9,
    Api.OFFSET_COMMIT: 8,
    Api.OFFSET_FETCH: 6,
    Api.FIND_COORDINATOR: 3,
    Api.JOIN_GROUP: 6,
    Api.HEARTBEAT: 4,
    Api.LEAVE_GROUP: 4,
    Api.SYNC_GROUP: 4,
    Api.DESCRIBE_GROUPS: 5,
    Api.LIST_GROUPS: 3,
    Api.API_VERSIONS: 3,
    Api.CREATE_TOPICS: 5,
    Api.DELETE_TOPICS: 4,
    Api.DELETE_RECORDS: 2,
    Api.INIT_PRODUCER_ID: 2,
    Api.OFFSET_FOR_LEADER_EPOCH: 4,
    Api.DESCRIBE_CONFIGS: 4,
    Api.DESCRIBE_LOG_DIRS: 2,
    Api.CREATE_PARTITIONS: 2,
    Api.DELETE_GROUPS: 2,
    Api.ELECT_LEADERS: 2,
    Api.INCREMENTAL_ALTER_CONFIGS: 1,
    Api.OFFSET_DELETE: 1,
    Api.DESCRIBE_QUORUM: 0,
    Api.DESCRIBE_CLUSTER: 0,
    Api.DESCRIBE_PRODUCERS: 0,
    Api.CONSUMER_GROUP_HEARTBEAT: 0,
    Api.CONSUMER_GROUP_DESCRIBE: 0,
    Api.DESCRIBE_TOPIC_PARTITIONS: 0,
    Api.ADD_RAFT_VOTER: 0,
    Api.REMOVE_RAFT_VOTER: 0,
}
"""The version from which an API uses compact lengths and tagged fields (KIP-482)."""


def choose_version(api: Api, offered: VersionRange | None, broker: str, at_most: int | None = None) -> int:
    """The highest version that both sides speak.

    Raises:
        KafkaError: UNSUPPORTED_VERSION, with both ranges, when there is none.
    """
    mine = SUPPORTED[api]
    top = mine.high if at_most is None else min(mine.high, at_most)
    if offered is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{broker} does not offer {api.name} at all")
    version = min(top, offered.high)
    if version < max(mine.low, offered.low):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{broker} speaks {api.name} {offered.low} to {offered.high}, this client {mine.low} to {top}",
        )
    return version
