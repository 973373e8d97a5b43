"""The admin clients' part about brokers: which there are, what they store, which leads the quorum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal
from uuid import UUID

import strandline
from strandline.client.aio.admin_base import AdminBase, Operation, Question, Route, alone, by_key, done, nothing
from strandline.client.descriptions import by_topic, none_if_negative, quorum_replica
from strandline.client.rights import answered
from strandline.client.types import (
    ClusterDescription,
    FeaturesDescription,
    LogDirDescription,
    NodeInfo,
    ProducerDescription,
    QuorumDescription,
    ReplicaDescription,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import OWN_CLIENT

_METADATA_TOPIC = "__cluster_metadata"


class ClusterAdmin(AdminBase):
    """Brokers, quorum, log directories, producers."""

    @Operation(Api.DESCRIBE_CLUSTER, also=(Api.METADATA,))
    async def describe_cluster(self) -> ClusterDescription:
        """The brokers, fenced ones included where the cluster tells them."""

        async def ask() -> ClusterDescription:
            connection = await self._network.to_any(list(self._metadata.nodes.values()))
            if Api.DESCRIBE_CLUSTER not in connection.versions:
                answer = await self._metadata.ask([], self.config.request_timeout_ms)
                nodes = tuple(self._metadata.nodes[number] for number in sorted(self._metadata.nodes))
                return ClusterDescription(answer.cluster_id, none_if_negative(answer.controller_id), nodes)
            values = {
                "include_cluster_authorized_operations": False,
                "endpoint_type": 1,
                "include_fenced_brokers": True,
            }
            answer = await connection.call(Api.DESCRIBE_CLUSTER, values, self.config.request_timeout_ms)
            if answer.error_code is not ErrorCode.NONE:
                raise KafkaError(answer.error_code, answer.error_message or "")
            nodes = tuple(
                NodeInfo(node.broker_id, node.host, node.port, node.rack, getattr(node, "is_fenced", False))
                for node in sorted(answer.brokers, key=lambda node: int(node.broker_id))
            )
            return ClusterDescription(answer.cluster_id, none_if_negative(answer.controller_id), nodes)

        return await self._retrying(ask)

    @Operation(Api.DESCRIBE_QUORUM, each="topics.partitions", key="topic_name.partition_index", about="partition")
    async def describe_quorum(self) -> Question[QuorumDescription]:
        """The metadata quorum: leader, epoch, high watermark, voters and observers with their log ends (KIP-595)."""
        values = {"topics": [{"topic_name": _METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}
        return Question(values, _quorum, alone)

    @Operation(Api.UNREGISTER_BROKER)
    async def unregister_broker(self, node_id: int) -> Question[None]:
        """Take a broker that does not come back out of the cluster. Its replicas stay assigned to it, and nothing that
        is on its disk counts any more: a partition whose last complete copy is there has no leader from then on.

        Raises:
            KafkaError: BROKER_ID_NOT_REGISTERED, CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION.
        """
        return Question({"broker_id": node_id}, nothing, done)

    @Operation(Api.REMOVE_RAFT_VOTER)
    async def remove_voter(self, node_id: int, directory_id: UUID | None) -> Question[None]:
        """Take the vote of a controller that lost its log, or its disk; its place stays vacant (KIP-853).

        Args:
            directory_id: under which it votes, as `describe_quorum` tells it.

        Raises:
            KafkaError: why the quorum's leader refuses: the voter fetches, too few would be left, there is none such.
            ClientTimeout: the quorum does not commit it.
        """
        values = {"cluster_id": None, "voter_id": node_id, "voter_directory_id": directory_id}
        return Question(values, nothing, done)

    @Operation(Api.ADD_RAFT_VOTER)
    async def add_voter(
        self, node_id: int, directory_id: UUID, endpoint: tuple[str, int] | None = None
    ) -> Question[None]:
        """Give a vote to a controller's directory that has caught up (KIP-853).

        Args:
            endpoint: host and port of its INTERNAL listener; left out: as it says itself.

        Raises:
            KafkaError: why the quorum's leader refuses: the place is not vacant, the directory lags or does not fetch.
            ClientTimeout: the quorum does not commit it.
        """
        voter = {"cluster_id": None, "voter_id": node_id, "voter_directory_id": directory_id}
        at = () if endpoint is None else ({"name": "INTERNAL", "host": endpoint[0], "port": endpoint[1]},)
        return Question({**voter, "listeners": at}, nothing, done)

    @Operation(Api.API_VERSIONS, route=Route.BROKERS)
    async def describe_features(self, node_id: int | None = None) -> Question[FeaturesDescription]:
        """The levels of features: what the build of one broker (None: of any) knows, and what is finalized (KIP-584).

        Raises:
            KafkaError: INVALID_REQUEST, there is no such broker.
        """
        values = {"client_software_name": OWN_CLIENT, "client_software_version": strandline.__version__}
        return Question(values, _features, alone, items=(node_id,), broker=lambda one: one)

    @Operation(Api.UPDATE_FEATURES, dry_run="dry_run")
    async def update_features(
        self, levels: Mapping[str, int], *, downgrade: Literal["no", "safe", "unsafe"] = "no", dry_run: bool = False
    ) -> Question[None]:
        """Give features other levels: all of them or none.

        Args:
            downgrade: "no": levels may rise alone; "safe": they may fall where nothing is lost by it; "unsafe": also
                where something is.
            dry_run: only say whether it could be done.

        Raises:
            KafkaError: why it cannot be: INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED (a node does not say what it
                knows), CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION.
        """
        kind = {"no": 1, "safe": 2, "unsafe": 3}.get(downgrade)
        if kind is None:
            raise ConfigError("downgrade", downgrade, "no, safe or unsafe")
        updates = [
            {"feature": name, "max_version_level": level, "upgrade_type": kind} for name, level in levels.items()
        ]
        return Question({"feature_updates": updates, "validate_only": dry_run}, nothing, done)

    @Operation(Api.DESCRIBE_LOG_DIRS, route=Route.EVERY_BROKER)
    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> Question[dict[int, list[LogDirDescription]]]:
        """What each broker (None: every one) keeps on its disks. A directory that is offline says so by its `error`.

        Raises:
            KafkaError: INVALID_REQUEST, there is no such broker; CLUSTER_AUTHORIZATION_FAILED.
        """
        return Question({"topics": None}, _log_dirs, by_key, items=brokers)

    @Operation(Api.ALTER_REPLICA_LOG_DIRS, route=Route.BROKERS)
    async def alter_replica_log_dirs(
        self, wanted: Mapping[tuple[str, int, int], str]
    ) -> dict[tuple[str, int, int], KafkaError | None]:
        """Move replicas between the log directories of their brokers (KIP-113): it has begun when this returns, and
        `describe_log_dirs` tells how far it is (`moving`). A replica that is there already stays, and a move that is
        under way is given up.

        Args:
            wanted: (topic, partition, broker) -> path of the directory, as in the broker's `log.dirs`.

        Returns:
            why each was refused, None where it was not: LOG_DIR_NOT_FOUND, REPLICA_NOT_AVAILABLE,
            KAFKA_STORAGE_ERROR (offline, rotten, or no room), CLUSTER_AUTHORIZATION_FAILED. The broker's log has words.

        Raises:
            KafkaError: INVALID_REQUEST, there is no such broker; UNSUPPORTED_VERSION.
            ClientTimeout: a broker does not answer.
        """
        await self._retrying(partial(self._metadata.update, self.config.request_timeout_ms))
        found: dict[tuple[str, int, int], KafkaError | None] = {}
        for node_id in dict.fromkeys(broker for _, _, broker in wanted):
            mine = {(topic, number): path for (topic, number, broker), path in wanted.items() if broker == node_id}
            dirs: dict[str, dict[str, list[int]]] = {}
            for (topic, number), path in mine.items():
                dirs.setdefault(path, {}).setdefault(topic, []).append(number)
            values = {
                "dirs": [
                    {"path": path, "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()]}
                    for path, topics in dirs.items()
                ]
            }
            answer = await self._call(Api.ALTER_REPLICA_LOG_DIRS, values, node_id=node_id)
            for topic in answer.results:
                for part in topic.partitions:
                    key = (topic.topic_name, part.partition_index, node_id)
                    code = part.error_code
                    error = answered(self.config, Api.ALTER_REPLICA_LOG_DIRS, code, log_dir=mine[key[:2]])
                    found[key] = None if code is ErrorCode.NONE else error
        return found

    @Operation(
        Api.DESCRIBE_PRODUCERS,
        route=Route.LEADERS,
        each="topics.partitions",
        key="name.partition_index",
    )
    async def describe_producers(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> Question[dict[TopicPartition, list[ProducerDescription]]]:
        """The idempotent producers that each partition's leader remembers, by their ids.

        Raises:
            UnknownTopic, KafkaError, ClientTimeout.
        """

        def values(asked: list[TopicPartition]) -> dict[str, Any]:
            return {"topics": by_topic(asked, "name", lambda item: item.partition, "partition_indexes")}

        return Question(values, _producers, by_key, items=(TopicPartition(*item) for item in partitions))


def _features(told: Any) -> FeaturesDescription:
    """Features from an ApiVersions response, which has them since version 3."""
    return FeaturesDescription(
        {one.name: (one.min_version, one.max_version) for one in getattr(told, "supported_features", ())},
        {one.name: one.max_version_level for one in getattr(told, "finalized_features", ())},
        none_if_negative(getattr(told, "finalized_features_epoch", -1)),
    )


def _quorum(told: Any) -> QuorumDescription:
    return QuorumDescription(
        told.leader_id,
        told.leader_epoch,
        told.high_watermark,
        tuple(quorum_replica(item) for item in told.current_voters),
        tuple(quorum_replica(item) for item in told.observers),
    )


def _producers(told: Any) -> list[ProducerDescription]:
    return sorted(
        ProducerDescription(
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.last_timestamp,
            none_if_negative(one.current_txn_start_offset),
            none_if_negative(one.coordinator_epoch),
        )
        for one in told.active_producers
    )


def _log_dirs(answer: Any) -> list[LogDirDescription]:
    return [_log_dir(entry) for entry in answer.results]


def _log_dir(answer: Any) -> LogDirDescription:
    error = None if answer.error_code is ErrorCode.NONE else KafkaError(answer.error_code, "", log_dir=answer.log_dir)
    replicas: dict[TopicPartition, ReplicaDescription] = {}
    moving: dict[TopicPartition, ReplicaDescription] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            found = ReplicaDescription(part.partition_size, part.offset_lag)
            (moving if part.is_future_key else replicas)[tp] = found
    total, usable = getattr(answer, "total_bytes", -1), getattr(answer, "usable_bytes", -1)
    return LogDirDescription(answer.log_dir, none_if_negative(total), none_if_negative(usable), replicas, error, moving)
