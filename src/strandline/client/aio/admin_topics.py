"""The admin clients' part about topics and their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from strandline.client.aio.admin_base import (
    AdminBase,
    Known,
    Operation,
    Question,
    Route,
    alone,
    by_key,
    done,
    nothing,
    results_of,
)
from strandline.client.descriptions import by_topic, described, described_with_elr, each_once, new_topic
from strandline.client.metadata import topic_view
from strandline.client.types import (
    CreatedTopic,
    Election,
    EpochEnd,
    ListedOffset,
    MoveOutcome,
    NewTopic,
    PartitionMove,
    TopicDescription,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

_DESCRIBED = Operation(Api.DESCRIBE_TOPIC_PARTITIONS, also=(Api.METADATA,), about="topic")


class TopicAdmin(AdminBase):
    """Topics, partitions, leaders, offsets, and the deletion of records."""

    @Operation(Api.CREATE_TOPICS, each="topics", key="name", about="topic", dry_run="validate_only")
    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Question[dict[str, CreatedTopic]]:
        """Create topics; with `validate_only` the brokers check everything and create nothing.

        Raises:
            KafkaError: TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, INVALID_PARTITIONS, INVALID_CONFIG.
        """
        values = {"topics": [new_topic(topic) for topic in topics], "validate_only": validate_only}
        return Question(values, _created, by_key)

    @Operation(
        Api.DELETE_TOPICS,
        also=(Api.METADATA, Api.DESCRIBE_TOPIC_PARTITIONS),
        each="responses",
        about="topic",
        dry_run="dry_run",
    )
    async def delete_topics(self, names: Iterable[str], *, dry_run: bool = False) -> Question[list[str]]:
        """Delete topics with all their records; `dry_run` only checks that they exist. The names, as deleted.

        They are named by their ids, as of now: a request that is sent again, or comes late, does not hit another topic
        that was made under the name meanwhile (schedule 63).

        Raises:
            UnknownTopic, KafkaError.
        """
        wanted = each_once(names)
        if dry_run:
            return Known([topic.name for topic in await self._described(wanted)])
        ids = await self._topic_ids(wanted)
        named_by = {topic_id: name for name, topic_id in ids.items()}
        values = {
            "topics": [{"name": None if ids.get(name) else name, "topic_id": ids.get(name)} for name in wanted],
            "topic_names": wanted,
        }
        return Question(values, nothing, list, key=lambda entry: str(entry.name or named_by[entry.topic_id]))

    async def _topic_ids(self, names: list[str]) -> dict[str, UUID]:
        """Ids of those topics that exist, by name, from brokers that have topic ids."""
        answer = await self._retrying(lambda: self._metadata.ask(names, self.config.request_timeout_ms))
        found = {entry.name: getattr(entry, "topic_id", None) for entry in answer.topics}
        return {name: topic_id for name, topic_id in found.items() if topic_id is not None}

    @Operation(Api.CREATE_PARTITIONS, each="results", key="name", about="topic", dry_run="validate_only")
    async def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> Question[None]:
        """Raise the number of partitions of topics to these totals. Keys then map to other partitions than before.

        Raises:
            UnknownTopic; KafkaError: INVALID_PARTITIONS when the total is not more than there are.
        """
        topics = [{"name": name, "count": total, "assignments": None} for name, total in totals.items()]
        return Question({"topics": topics, "validate_only": validate_only}, nothing, done)

    @Operation(Api.ELECT_LEADERS, dry_run="dry_run")
    async def elect_leaders(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None, *, unclean: bool, dry_run: bool = False
    ) -> Question[list[Election]]:
        """Give leadership to the preferred replicas or, `unclean`, to any live replica of partitions without a leader:
        committed records that it lacks are lost. None: every partition that needs it. `dry_run` only tells what each
        election would do and lose, which Strandline alone can (Apache Kafka refuses it).

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST. The error of one partition stands in its result.
        """
        values = {
            "election_type": (-2 if unclean else -1) if dry_run else int(unclean),
            "topic_partitions": None if partitions is None else by_topic(partitions),
        }
        return Question(values, _elections, alone, words=_first_words)

    @Operation(Api.ALTER_PARTITION_REASSIGNMENTS)
    async def alter_partition_reassignments(
        self,
        moves: Mapping[TopicPartition, Sequence[int] | None] | Mapping[tuple[str, int], Sequence[int] | None],
    ) -> Question[list[MoveOutcome]]:
        """Move partitions to these brokers, the preferred leader first; None: cancel the move under way. It returns
        once the moves have begun: `list_partition_reassignments` says which are under way. A move of a partition that
        is moving replaces that one.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED; UNSUPPORTED_VERSION: the cluster is at a level without moves. The
                error of one partition stands in its result.
        """
        wanted = {TopicPartition(*item): replicas for item, replicas in moves.items()}

        def asked(item: TopicPartition) -> dict[str, Any]:
            replicas = wanted[item]
            return {"partition_index": item.partition, "replicas": None if replicas is None else tuple(replicas)}

        values = {"allow_replication_factor_change": True, "topics": by_topic(wanted, "name", asked)}
        return Question(values, _move_outcomes, alone)

    @Operation(Api.LIST_PARTITION_REASSIGNMENTS)
    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> Question[dict[TopicPartition, PartitionMove]]:
        """The moves under way, of these partitions or of all: the others are not moving, or there are none such.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED.
        """
        topics = None if partitions is None else by_topic(partitions, "name", parts="partition_indexes")
        return Question({"topics": topics}, _moves, alone)

    @Operation(Api.METADATA)
    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(topic.name for topic in await self._every_topic() if include_internal or not topic.is_internal)

    @_DESCRIBED
    async def describe_topics(
        self, names: Iterable[str] | None, *, include_internal: bool = False
    ) -> list[TopicDescription]:
        """Leaders, replicas, ISR and eligible leader replicas of every partition, in the order of `names`.

        None: every topic, sorted, as one broker has them at one moment (which does not tell the eligible leader
        replicas). No topic can be gone between its name and its description then. Internal topics are among them with
        `include_internal` alone.

        Raises:
            UnknownTopic, KafkaError.
        """
        if names is None:
            every = [topic_view(topic) for topic in await self._every_topic()]
            wanted_views = (view for view in every if include_internal or not view.is_internal)
            return sorted((described(view) for view in wanted_views), key=lambda topic: topic.name)
        return await self._described(each_once(names))

    @Operation(Api.LIST_OFFSETS, route=Route.LEADERS)
    async def list_offsets(
        self, wanted: Mapping[TopicPartition | tuple[str, int], int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset for EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED or a time in ms, asked of each
        partition's leader.

        Raises:
            UnknownTopic, KafkaError, ClientTimeout.
        """
        asked = {TopicPartition(*item): timestamp for item, timestamp in wanted.items()}
        timeout_ms = self.config.default_api_timeout_ms
        return await self._leaders.list_offsets(asked, timeout_ms, read_committed=read_committed)

    @Operation(Api.OFFSET_FOR_LEADER_EPOCH, route=Route.LEADERS)
    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, EpochEnd]:
        """Where each partition's log ends a leader epoch, asked of its leader (KIP-320): for who keeps a position of
        its own beside the epoch that `list_offsets` told with it. Brokers that are too old for it tell nothing: -1, -1.

        Raises:
            UnknownTopic, KafkaError, ClientTimeout.
        """
        asked = {TopicPartition(*item): epoch for item, epoch in epochs.items()}
        try:
            return await self._leaders.epoch_ends(asked, self.config.default_api_timeout_ms)
        except KafkaError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return dict.fromkeys(asked, EpochEnd(-1, -1))

    @Operation(Api.DELETE_RECORDS, route=Route.LEADERS, each="topics.partitions", key="name.partition_index")
    async def delete_records(
        self, before: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> Question[dict[TopicPartition, int]]:
        """Delete the records before an offset of each partition (-1: before the high watermark). The log starts now.

        Raises:
            UnknownTopic, ClientTimeout; KafkaError: OFFSET_OUT_OF_RANGE (past the high watermark), POLICY_VIOLATION.
        """
        wanted = {TopicPartition(*item): offset for item, offset in before.items()}

        def values(asked: list[TopicPartition]) -> dict[str, Any]:
            parts = by_topic(asked, "name", lambda item: {"partition_index": item.partition, "offset": wanted[item]})
            return {"topics": parts}

        return Question(values, lambda told: int(told.low_watermark), by_key, items=wanted)

    async def _described(self, wanted: list[str]) -> list[TopicDescription]:
        if not wanted:
            return []
        results: dict[str, TopicDescription] = {}
        errors: dict[str, ErrorCode] = {}
        asked = wanted

        async def ask() -> bool:
            nonlocal asked
            for name, code, description in await self._retrying(partial(self._describe_topics, asked)):
                errors.pop(name, None)
                if code is ErrorCode.NONE and description is not None:
                    results[name] = description
                else:
                    errors[name] = code
            asked = [name for name, code in errors.items() if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            return bool(asked)

        await self._while_unknown(ask)
        results_of(results, {name: self._error(_DESCRIBED, name, code, "") for name, code in errors.items()})
        return [results[name] for name in wanted]

    async def _every_topic(self) -> list[Any]:
        answer = await self._retrying(lambda: self._metadata.ask(None, self.config.request_timeout_ms))
        return [entry for entry in answer.topics if entry.error_code is ErrorCode.NONE]

    async def _describe_topics(self, names: list[str]) -> list[tuple[str, ErrorCode, TopicDescription | None]]:
        connection = await self._network.to_any(list(self._metadata.nodes.values()))
        timeout_ms = self.config.request_timeout_ms
        if Api.DESCRIBE_TOPIC_PARTITIONS not in connection.versions:
            topics = (await self._metadata.ask(names, timeout_ms)).topics
            return [
                (item.name, item.error_code, described(topic_view(item)) if not item.error_code else None)
                for item in topics
            ]
        found: dict[str, tuple[Any, list[Any]]] = {}
        cursor: dict[str, Any] | None = None
        while True:
            values = {"topics": [{"name": name} for name in sorted(names)], "cursor": cursor}
            answer = await connection.call(Api.DESCRIBE_TOPIC_PARTITIONS, values, timeout_ms)
            for topic in answer.topics:
                found.setdefault(topic.name, (topic, []))[1].extend(topic.partitions)
            if answer.next_cursor is None:
                break
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }
        return [
            (name, topic.error_code, described_with_elr(topic, partitions) if not topic.error_code else None)
            for name, (topic, partitions) in found.items()
        ]


def _created(told: Any) -> CreatedTopic:
    configs = {item.name: item.value for item in getattr(told, "configs", None) or ()}
    partitions, replicas = getattr(told, "num_partitions", -1), getattr(told, "replication_factor", -1)
    return CreatedTopic(told.name, getattr(told, "topic_id", None), partitions, replicas, configs)


def _elections(answer: Any) -> list[Election]:
    found = [
        Election(topic.topic, one.partition_id, one.error_code, one.error_message or "")
        for topic in answer.replica_election_results
        for one in topic.partition_result
    ]
    return sorted(found, key=lambda one: (one.topic, one.partition))


def _move_outcomes(answer: Any) -> list[MoveOutcome]:
    return [
        MoveOutcome(topic.name, one.partition_index, one.error_code, one.error_message or "")
        for topic in answer.responses
        for one in topic.partitions
    ]


def _moves(answer: Any) -> dict[TopicPartition, PartitionMove]:
    return {
        TopicPartition(topic.name, one.partition_index): PartitionMove(
            one.replicas, one.adding_replicas, one.removing_replicas
        )
        for topic in answer.topics
        for one in topic.partitions
    }


def _first_words(answer: Any) -> str:
    """An answer that refuses all of it has words for each partition alone."""
    return next((one.message for one in _elections(answer)), "")
