"""One request for each API that is served, about things that exist or do not: what the walk of the ACLs asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from test_kafka_produce import batch

from strandline.proto.kafka.apis import Api

CLUSTER_BITS = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
CONFIG = {"name": "retention.ms", "value": "1", "config_operation": 0}


class Things(NamedTuple):
    """What a request is about: a topic by its name and its id, a group, a transactional id."""

    topic: str
    topic_id: UUID
    group: str
    transactional_id: str = "tx"


Values = Callable[[Things], dict[str, Any]]


def _both(things: Things) -> dict[str, Any]:
    """A topic in whichever way the version names it."""
    return {"name": things.topic, "topic": things.topic, "topic_id": things.topic_id}


def _group(**more: Any) -> Values:
    member = {"generation_id": 1, "generation_id_or_member_epoch": 1, "member_id": "m", "member_epoch": 1}
    return lambda things: {"group_id": things.group, "key": things.group, **member, **more}


def _produce(things: Things) -> dict[str, Any]:
    partition = {"index": 0, "records": batch(b"x")}
    return {"acks": -1, "timeout": 1000, "topic_data": [{**_both(things), "partition_data": [partition]}]}


def _fetch(things: Things) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "current_leader_epoch": -1, "last_fetched_epoch": -1}
    topics = [{**_both(things), "partitions": [{**partition, "partition_max_bytes": 1000}]}]
    session = {"session_id": 0, "session_epoch": -1, "replica_id": -1}
    return {"topics": topics, "max_wait": 0, "min_bytes": 0, "max_bytes": 1000, **session}


def _configs(kind: int, name: str | None = None) -> Values:
    def values(things: Things) -> dict[str, Any]:
        resource = {"resource_type": kind, "resource_name": things.topic if name is None else name}
        return {"resources": [{**resource, "configuration_keys": None, "configs": [CONFIG]}], "validate_only": False}

    return values


def _offsets(things: Things) -> dict[str, Any]:
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    topics = [{**_both(things), "partitions": partitions, "partition_indexes": (0,)}]
    return {**_group()(things), "topics": topics, "groups": [{**_group()(things), "topics": topics}]}


def _acl(**more: Any) -> dict[str, Any]:
    entry = {"resource_type": 2, "resource_name": "*", "principal": "User:me", "host": "*", "operation": 2}
    wanted = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    return {**wanted, "creations": [{**entry, "permission_type": 3}], "filters": [wanted], **more}


JOIN = {
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
    "protocol_name": "range",
    "assignments": (),
    "members": [{"member_id": "m"}],
}
HEARTBEAT = {"member_epoch": 0, "member_id": "n", "rebalance_timeout": 1000, "topic_partitions": ()}


class Ask(NamedTuple):
    """A request; `since`: the first version that can say so."""

    api: Api
    values: Values
    since: int = 0


def _adds(t: Things) -> dict[str, Any]:
    """A transaction of a client (versions 0 to 3), and of a broker."""
    topics = [{"name": t.topic, "partitions": (0,)}]
    client = {
        "v3_and_below_transactional_id": t.transactional_id,
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": topics,
    }
    broker = {**_transaction(t), "verify_only": True, "topics": topics}
    return {**client, "transactions": [broker]}


def _transaction(t: Things) -> dict[str, Any]:
    return {"transactional_id": t.transactional_id, "producer_id": 1, "producer_epoch": 0}


def _marker(t: Things) -> dict[str, Any]:
    topics = [{"name": t.topic, "partition_indexes": (0,)}]
    whose = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, "transaction_version": 1}
    return {"markers": [{**whose, "transaction_result": False, "topics": topics}]}


REQUESTS: list[Ask] = [
    Ask(Api.PRODUCE, _produce),
    Ask(Api.PRODUCE, lambda t: {**_produce(t), "transactional_id": t.transactional_id}),
    Ask(Api.FETCH, _fetch),
    Ask(
        Api.METADATA,
        lambda t: {"topics": [_both(t) | {"topic_id": None}], "allow_auto_topic_creation": True, **CLUSTER_BITS},
    ),
    Ask(Api.METADATA, lambda t: {"topics": [{"name": None, "topic_id": t.topic_id}], **CLUSTER_BITS}, 12),
    Ask(Api.METADATA, lambda t: {"topics": None, **CLUSTER_BITS}, 1),
    Ask(
        Api.LIST_OFFSETS, lambda t: {"topics": [{**_both(t), "partitions": [{"partition_index": 0, "timestamp": -1}]}]}
    ),
    Ask(Api.OFFSET_FOR_LEADER_EPOCH, lambda t: {"topics": [{**_both(t), "partitions": [{"partition": 0}]}]}),
    Ask(Api.DESCRIBE_TOPIC_PARTITIONS, lambda t: {"topics": [{"name": t.topic}], "response_partition_limit": 9}),
    Ask(Api.DESCRIBE_TOPIC_PARTITIONS, lambda t: {"topics": (), "response_partition_limit": 9}),
    Ask(Api.CREATE_TOPICS, lambda t: {"topics": [{"name": t.topic, "num_partitions": 1, "replication_factor": 1}]}),
    Ask(Api.CREATE_TOPICS, lambda t: {"topics": [{"name": "made", "num_partitions": 1, "replication_factor": 1}]}),
    Ask(Api.DELETE_TOPICS, lambda t: {"topics": [{"name": t.topic}], "topic_names": (t.topic,), "timeout": 1000}),
    Ask(Api.DELETE_TOPICS, lambda t: {"topics": [{"name": None, "topic_id": t.topic_id}], "timeout": 1000}, 6),
    Ask(Api.CREATE_PARTITIONS, lambda t: {"topics": [{"name": t.topic, "count": 9, "assignments": None}]}),
    Ask(Api.DELETE_RECORDS, lambda t: {"topics": [{**_both(t), "partitions": [{"partition_index": 0, "offset": -1}]}]}),
    Ask(Api.DESCRIBE_CONFIGS, _configs(2)),
    Ask(Api.DESCRIBE_CONFIGS, _configs(4, "1")),
    Ask(Api.LIST_CONFIG_RESOURCES, lambda t: {"resource_types": ()}),
    Ask(Api.ALTER_CONFIGS, _configs(2)),
    Ask(Api.ALTER_CONFIGS, _configs(4, "1")),
    Ask(Api.INCREMENTAL_ALTER_CONFIGS, _configs(2)),
    Ask(Api.INCREMENTAL_ALTER_CONFIGS, _configs(4, "")),
    Ask(Api.DESCRIBE_ACLS, lambda t: _acl()),
    Ask(Api.CREATE_ACLS, lambda t: _acl()),
    Ask(Api.DELETE_ACLS, lambda t: _acl()),
    Ask(Api.INIT_PRODUCER_ID, lambda t: {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}),
    Ask(Api.INIT_PRODUCER_ID, lambda t: {"transactional_id": t.transactional_id}),
    Ask(Api.ADD_PARTITIONS_TO_TXN, _adds),
    Ask(Api.ADD_OFFSETS_TO_TXN, lambda t: {**_transaction(t), "group_id": t.group}),
    Ask(Api.END_TXN, lambda t: {**_transaction(t), "committed": True}),
    Ask(Api.DESCRIBE_TRANSACTIONS, lambda t: {"transactional_ids": (t.transactional_id,)}),
    Ask(Api.LIST_TRANSACTIONS, lambda t: {"state_filters": (), "producer_id_filters": ()}),
    Ask(Api.WRITE_TXN_MARKERS, _marker),
    Ask(Api.DESCRIBE_PRODUCERS, lambda t: {"topics": [{"name": t.topic, "partition_indexes": (0,)}]}),
    Ask(Api.FIND_COORDINATOR, lambda t: {"key": t.group, "coordinator_keys": (t.group,), "key_type": 0}),
    Ask(
        Api.FIND_COORDINATOR,
        lambda t: {"key": t.transactional_id, "coordinator_keys": (t.transactional_id,), "key_type": 1},
    ),
    # Before the heartbeat, which makes it a group of the other protocol.
    Ask(Api.DESCRIBE_GROUPS, lambda t: {"groups": (t.group,), "include_authorized_operations": True}),
    Ask(Api.JOIN_GROUP, _group(**JOIN)),
    Ask(Api.SYNC_GROUP, _group(**{**JOIN, "member_id": "m"})),
    Ask(Api.HEARTBEAT, _group()),
    Ask(Api.LEAVE_GROUP, _group(members=[{"member_id": "nobody"}])),
    Ask(Api.CONSUMER_GROUP_HEARTBEAT, lambda t: {**_group(**HEARTBEAT)(t), "subscribed_topic_names": (t.topic,)}),
    Ask(Api.CONSUMER_GROUP_DESCRIBE, lambda t: {"group_ids": (t.group,), "include_authorized_operations": True}),
    Ask(Api.OFFSET_COMMIT, _offsets),
    Ask(Api.TXN_OFFSET_COMMIT, lambda t: {**_offsets(t), **_transaction(t)}),
    Ask(Api.OFFSET_DELETE, _offsets),
    Ask(Api.OFFSET_FETCH, _offsets),
    Ask(Api.OFFSET_FETCH, lambda t: {**_group()(t), "topics": None, "groups": [{**_group()(t), "topics": None}]}, 2),
    Ask(Api.LIST_GROUPS, lambda t: {"states_filter": (), "types_filter": ()}),
    Ask(Api.DELETE_GROUPS, lambda t: {"groups_names": (t.group,)}),
    Ask(Api.DESCRIBE_CLUSTER, lambda t: {"endpoint_type": 1, **CLUSTER_BITS}),
    Ask(
        Api.DESCRIBE_QUORUM,
        lambda t: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    ),
    Ask(Api.ADD_RAFT_VOTER, lambda t: {"voter_id": 1, "timeout": 1000}),
    Ask(Api.REMOVE_RAFT_VOTER, lambda t: {"voter_id": 1}),
    Ask(
        Api.UPDATE_RAFT_VOTER,
        lambda t: {
            "voter_id": 1,
            "current_leader_epoch": -1,
            "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
        },
    ),
    Ask(
        Api.UPDATE_FEATURES,
        lambda t: {
            "feature_updates": [
                {"feature": "no-feature", "max_version_level": 1, "upgrade_type": 1, "allow_downgrade": False}
            ]
        },
    ),
    Ask(Api.UNREGISTER_BROKER, lambda t: {"broker_id": 99}),
    Ask(Api.ELECT_LEADERS, lambda t: {"topic_partitions": [{"topic": t.topic, "partitions": (0,)}], "timeout": 1000}),
    Ask(Api.ELECT_LEADERS, lambda t: {"topic_partitions": None, "timeout": 1000}),
    Ask(
        Api.ALTER_PARTITION_REASSIGNMENTS,
        lambda t: {
            "topics": [{"name": t.topic, "partitions": [{"partition_index": 0, "replicas": (1,)}]}],
            "timeout": 1000,
        },
    ),
    Ask(Api.LIST_PARTITION_REASSIGNMENTS, lambda t: {"topics": None, "timeout": 1000}),
    Ask(
        Api.ALTER_REPLICA_LOG_DIRS,
        lambda t: {"dirs": [{"path": "/nowhere", "topics": [{"name": t.topic, "partitions": (0,)}]}]},
    ),
    Ask(Api.DESCRIBE_LOG_DIRS, lambda t: {"topics": None}),
    Ask(Api.DESCRIBE_CLIENT_QUOTAS, lambda t: {"components": (), "strict": False}),
    Ask(
        Api.ALTER_CLIENT_QUOTAS,
        lambda t: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": None}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
                }
            ],
            "validate_only": False,
        },
    ),
    Ask(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, lambda t: {"users": None}),
    Ask(
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        lambda t: {"deletions": [{"name": "alice", "mechanism": 1}], "upsertions": ()},
    ),
    Ask(Api.SASL_HANDSHAKE, lambda t: {"mechanism": "PLAIN"}),
    Ask(Api.SASL_AUTHENTICATE, lambda t: {"auth_bytes": b"x"}),
    Ask(Api.API_VERSIONS, lambda t: {"client_software_name": "t", "client_software_version": "1"}),
    Ask(Api.GET_TELEMETRY_SUBSCRIPTIONS, lambda t: {"client_instance_id": UUID(int=1)}),
    Ask(
        Api.PUSH_TELEMETRY,
        lambda t: {
            "client_instance_id": UUID(int=1),
            "subscription_id": 0,
            "terminating": False,
            "compression_type": 0,
            "metrics": b"",
        },
    ),
]
"""Names that a version does not have are left out."""
