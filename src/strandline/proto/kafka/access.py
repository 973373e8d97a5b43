"""Who may ask what: for each API the operations that its handler asks the authorizer about, as Kafka's KafkaApis does.

The handlers ask; this table says what they ask, for the documentation and for the tests, which hold one against the
other in both directions: a handler asks for nothing that does not stand here, every row is asked for, and an API that
stands nowhere is not served (rule A20).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from strandline.proto.acls import Operation, ResourceKind
from strandline.proto.kafka.apis import Api


class Asks(NamedTuple):
    """One question of an API.

    Attributes:
        where: which resources it is about.
        denied: what the client gets where the answer is no.
    """

    operation: Operation
    kind: ResourceKind
    where: str
    denied: str


_TOPIC, _GROUP, _CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER
_TRANSACTIONAL_ID = ResourceKind.TRANSACTIONAL_ID
_REFUSED = {
    _TOPIC: "TOPIC_AUTHORIZATION_FAILED",
    _GROUP: "GROUP_AUTHORIZATION_FAILED",
    _CLUSTER: "CLUSTER_AUTHORIZATION_FAILED",
    _TRANSACTIONAL_ID: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}


def _asks(operation: Operation, kind: ResourceKind, where: str = "", denied: str = "") -> Asks:
    return Asks(operation, kind, where or f"each {kind.name.lower()}", denied or _REFUSED[kind])


def _cluster(operation: Operation, denied: str = "", where: str = "the cluster") -> Asks:
    return _asks(operation, _CLUSTER, where, denied)


_LEFT_OUT = "left out"
_ID_UNKNOWN = "TOPIC_AUTHORIZATION_FAILED; by id UNKNOWN_TOPIC_ID"
_MAY_DESCRIBE = _asks(
    Operation.DESCRIBE, _TOPIC, "each topic named by an id", "UNKNOWN_TOPIC_ID instead of TOPIC_AUTHORIZATION_FAILED"
)
_READS_GROUP = (_asks(Operation.READ, _GROUP, "the group"),)
_WRITES_TRANSACTION = _asks(Operation.WRITE, _TRANSACTIONAL_ID, "the transactional id")


def _bits(kind: ResourceKind, *operations: Operation) -> tuple[Asks, ...]:
    one = "the cluster" if kind is _CLUSTER else f"each {kind.name.lower()}"
    where = f"{one}, where its authorized operations are asked for"
    return tuple(_asks(operation, kind, where, "its bit is 0") for operation in operations)


_TOPIC_BITS = _bits(
    _TOPIC,
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_GROUP_BITS = _bits(_GROUP, Operation.READ, Operation.DELETE)
_CLUSTER_BITS = (
    _cluster(Operation.DESCRIBE, "every bit is 0", "the cluster, where its authorized operations are asked for"),
    *_bits(
        _CLUSTER,
        Operation.CREATE,
        Operation.ALTER,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
)

ACCESS: Mapping[Api, tuple[Asks, ...]] = {
    Api.PRODUCE: (
        _asks(Operation.WRITE, _TOPIC),
        _asks(Operation.WRITE, _TRANSACTIONAL_ID, "the transactional id, where there is one"),
    ),
    Api.FETCH: (_asks(Operation.READ, _TOPIC, "each topic, at each fetch of a session, and again when it has waited"),),
    Api.LIST_OFFSETS: (_asks(Operation.DESCRIBE, _TOPIC),),
    Api.OFFSET_FOR_LEADER_EPOCH: (_asks(Operation.DESCRIBE, _TOPIC),),
    Api.METADATA: (
        _asks(Operation.DESCRIBE, _TOPIC, "each topic", f"{_ID_UNKNOWN}; {_LEFT_OUT} where all are asked for"),
        _cluster(Operation.CREATE, "CREATE of the topic is asked for", "the cluster, where a topic would be created"),
        _asks(Operation.CREATE, _TOPIC, "each topic that would be created"),
        *_TOPIC_BITS,
        *_CLUSTER_BITS,
    ),
    Api.DESCRIBE_TOPIC_PARTITIONS: (
        _asks(Operation.DESCRIBE, _TOPIC, "each topic", f"TOPIC_AUTHORIZATION_FAILED; {_LEFT_OUT} where none is named"),
        *_TOPIC_BITS,
    ),
    Api.CREATE_TOPICS: (
        _cluster(Operation.CREATE, "CREATE of each topic is asked for"),
        _asks(Operation.CREATE, _TOPIC),
        _asks(Operation.DESCRIBE_CONFIGS, _TOPIC, "each topic created", "no configs and counts in the answer"),
    ),
    Api.DELETE_TOPICS: (
        _cluster(Operation.DELETE, "DELETE of each topic is asked for"),
        _asks(Operation.DELETE, _TOPIC),
        _MAY_DESCRIBE,
    ),
    Api.CREATE_PARTITIONS: (_asks(Operation.ALTER, _TOPIC),),
    Api.DELETE_RECORDS: (_asks(Operation.DELETE, _TOPIC),),
    Api.DESCRIBE_CONFIGS: (
        _asks(Operation.DESCRIBE_CONFIGS, _TOPIC),
        _cluster(Operation.DESCRIBE_CONFIGS, where="the cluster, for configs of brokers"),
    ),
    Api.ALTER_CONFIGS: (
        _asks(Operation.ALTER_CONFIGS, _TOPIC),
        _cluster(Operation.ALTER_CONFIGS, where="the cluster, for configs of brokers"),
    ),
    Api.INCREMENTAL_ALTER_CONFIGS: (
        _asks(Operation.ALTER_CONFIGS, _TOPIC),
        _cluster(Operation.ALTER_CONFIGS, where="the cluster, for configs of brokers"),
    ),
    Api.LIST_CONFIG_RESOURCES: (_cluster(Operation.DESCRIBE_CONFIGS),),
    Api.DESCRIBE_ACLS: (_cluster(Operation.DESCRIBE),),
    Api.CREATE_ACLS: (_cluster(Operation.ALTER),),
    Api.DELETE_ACLS: (_cluster(Operation.ALTER),),
    Api.INIT_PRODUCER_ID: (
        _asks(Operation.WRITE, _TOPIC, "any topic", "IDEMPOTENT_WRITE of the cluster is asked for"),
        _cluster(Operation.IDEMPOTENT_WRITE),
        _asks(Operation.WRITE, _TRANSACTIONAL_ID, "the transactional id, where there is one, and nothing else"),
    ),
    Api.ADD_PARTITIONS_TO_TXN: (
        _asks(Operation.WRITE, _TRANSACTIONAL_ID, "the transactional id, before version 4"),
        _asks(Operation.WRITE, _TOPIC, "each topic, before version 4"),
        _cluster(Operation.CLUSTER_ACTION, where="the cluster, from version 4"),
    ),
    Api.ADD_OFFSETS_TO_TXN: (_WRITES_TRANSACTION, _asks(Operation.READ, _GROUP, "the group")),
    Api.END_TXN: (_WRITES_TRANSACTION,),
    Api.DESCRIBE_TRANSACTIONS: (
        _asks(Operation.DESCRIBE, _TRANSACTIONAL_ID),
        _asks(Operation.DESCRIBE, _TOPIC, "each topic of a transaction", _LEFT_OUT),
    ),
    Api.LIST_TRANSACTIONS: (_asks(Operation.DESCRIBE, _TRANSACTIONAL_ID, "each transactional id", _LEFT_OUT),),
    Api.DESCRIBE_PRODUCERS: (_asks(Operation.READ, _TOPIC),),
    Api.WRITE_TXN_MARKERS: (
        _cluster(Operation.ALTER, "CLUSTER_ACTION is asked for"),
        _cluster(Operation.CLUSTER_ACTION),
    ),
    Api.FIND_COORDINATOR: (_asks(Operation.DESCRIBE, _GROUP), _asks(Operation.DESCRIBE, _TRANSACTIONAL_ID)),
    Api.JOIN_GROUP: _READS_GROUP,
    Api.SYNC_GROUP: _READS_GROUP,
    Api.HEARTBEAT: _READS_GROUP,
    Api.LEAVE_GROUP: _READS_GROUP,
    Api.CONSUMER_GROUP_HEARTBEAT: (
        *_READS_GROUP,
        _asks(
            Operation.DESCRIBE,
            _TOPIC,
            "each topic subscribed to, and each that is assigned",
            f"TOPIC_AUTHORIZATION_FAILED; of the assignment it is {_LEFT_OUT}",
        ),
    ),
    Api.CONSUMER_GROUP_DESCRIBE: (
        _asks(Operation.DESCRIBE, _GROUP),
        _asks(Operation.DESCRIBE, _TOPIC, "each topic assigned to a member"),
        *_GROUP_BITS,
    ),
    Api.OFFSET_COMMIT: (*_READS_GROUP, _asks(Operation.READ, _TOPIC), _MAY_DESCRIBE),
    Api.TXN_OFFSET_COMMIT: (_WRITES_TRANSACTION, *_READS_GROUP, _asks(Operation.READ, _TOPIC), _MAY_DESCRIBE),
    Api.OFFSET_DELETE: (_asks(Operation.DELETE, _GROUP, "the group"), _asks(Operation.READ, _TOPIC)),
    Api.OFFSET_FETCH: (
        _asks(Operation.DESCRIBE, _GROUP),
        _asks(Operation.DESCRIBE, _TOPIC, "each topic", f"{_ID_UNKNOWN}; {_LEFT_OUT} where all are asked for"),
    ),
    Api.DESCRIBE_GROUPS: (_asks(Operation.DESCRIBE, _GROUP), *_GROUP_BITS),
    Api.LIST_GROUPS: (
        _cluster(Operation.DESCRIBE, "DESCRIBE of each group is asked for"),
        _asks(Operation.DESCRIBE, _GROUP, "each group", _LEFT_OUT),
    ),
    Api.DELETE_GROUPS: (_asks(Operation.DELETE, _GROUP),),
    Api.DESCRIBE_CLUSTER: _CLUSTER_BITS,
    Api.DESCRIBE_QUORUM: (_cluster(Operation.DESCRIBE),),
    Api.UPDATE_FEATURES: (_cluster(Operation.ALTER),),
    Api.UNREGISTER_BROKER: (_cluster(Operation.ALTER),),
    Api.ADD_RAFT_VOTER: (_cluster(Operation.ALTER),),
    Api.REMOVE_RAFT_VOTER: (_cluster(Operation.ALTER),),
    Api.UPDATE_RAFT_VOTER: (_cluster(Operation.CLUSTER_ACTION),),
    Api.ELECT_LEADERS: (_cluster(Operation.ALTER),),
    Api.ALTER_PARTITION_REASSIGNMENTS: (_cluster(Operation.ALTER),),
    Api.LIST_PARTITION_REASSIGNMENTS: (_cluster(Operation.DESCRIBE),),
    Api.ALTER_REPLICA_LOG_DIRS: (_cluster(Operation.ALTER),),
    Api.DESCRIBE_LOG_DIRS: (_cluster(Operation.DESCRIBE),),
    Api.DESCRIBE_CLIENT_QUOTAS: (_cluster(Operation.DESCRIBE_CONFIGS),),
    Api.ALTER_CLIENT_QUOTAS: (_cluster(Operation.ALTER_CONFIGS),),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: (_cluster(Operation.DESCRIBE),),
    Api.ALTER_USER_SCRAM_CREDENTIALS: (_cluster(Operation.ALTER),),
}
"""API -> rights that it needs."""

OPEN: Mapping[Api, str] = {
    Api.API_VERSIONS: "which APIs there are, and in which versions: a client needs it before it can say who it is",
    Api.SASL_HANDSHAKE: "which mechanisms a listener has: it comes before the client has said who it is",
    Api.SASL_AUTHENTICATE: "nothing but whether a proof is right",
    Api.GET_TELEMETRY_SUBSCRIPTIONS: "which of its own metrics a client is asked for, after its login",
    Api.PUSH_TELEMETRY: "nothing, after its login; what a client says of itself is kept, within bounds",
}
"""APIs that ask nothing, and what they tell everybody. DescribeCluster and Metadata tell everybody the addresses of the
brokers and the cluster's id too, as in Kafka."""
