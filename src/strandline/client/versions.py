"""The versions of each API that this client speaks; a connection settles on one per broker."""

from __future__ import annotations

from typing import NamedTuple

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api


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
    Api.SASL_HANDSHAKE: VersionRange(1, 1),
    Api.API_VERSIONS: VersionRange(0, 5),
    Api.CREATE_TOPICS: VersionRange(2, 7),
    Api.DELETE_TOPICS: VersionRange(1, 6),
    Api.DELETE_RECORDS: VersionRange(0, 2),
    Api.INIT_PRODUCER_ID: VersionRange(0, 5),
    Api.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
    Api.DESCRIBE_ACLS: VersionRange(1, 3),
    Api.CREATE_ACLS: VersionRange(1, 3),
    Api.DELETE_ACLS: VersionRange(1, 3),
    Api.DESCRIBE_CONFIGS: VersionRange(1, 4),
    Api.ALTER_REPLICA_LOG_DIRS: VersionRange(1, 2),
    Api.DESCRIBE_LOG_DIRS: VersionRange(1, 4),
    Api.SASL_AUTHENTICATE: VersionRange(0, 2),
    Api.CREATE_PARTITIONS: VersionRange(0, 3),
    Api.DELETE_GROUPS: VersionRange(0, 2),
    Api.ELECT_LEADERS: VersionRange(1, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
    Api.OFFSET_DELETE: VersionRange(0, 0),
    Api.DESCRIBE_CLIENT_QUOTAS: VersionRange(0, 1),
    Api.ALTER_CLIENT_QUOTAS: VersionRange(0, 1),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
    Api.ALTER_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
    Api.DESCRIBE_QUORUM: VersionRange(0, 2),
    Api.UPDATE_FEATURES: VersionRange(1, 2),
    Api.DESCRIBE_CLUSTER: VersionRange(0, 2),
    Api.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    Api.CONSUMER_GROUP_HEARTBEAT: VersionRange(0, 1),
    Api.CONSUMER_GROUP_DESCRIBE: VersionRange(0, 1),
    Api.DESCRIBE_TOPIC_PARTITIONS: VersionRange(0, 0),
    Api.ADD_RAFT_VOTER: VersionRange(0, 0),
    Api.REMOVE_RAFT_VOTER: VersionRange(0, 0),
}


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
