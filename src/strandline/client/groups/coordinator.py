"""Requests to a group's coordinator that need no membership: offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from strandline.client.coordinator import GROUP, Coordinator
from strandline.client.errors import TopicReplaced
from strandline.client.session import Session
from strandline.client.types import OffsetAndMetadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

BY_NAME_AT_MOST = {Api.OFFSET_COMMIT: 9, Api.OFFSET_FETCH: 9, Api.TXN_OFFSET_COMMIT: 5}
"""API -> last version that names topics by name; later versions use topic ids."""


class Identity(NamedTuple):
    """Member that commits. The default is no member: the group must then be empty (rule C7)."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class GroupCoordinator(Coordinator):
    """Asks the coordinator of one group. Runs on one event loop."""

    def __init__(self, session: Session, group_id: str, request_timeout_ms: int) -> None:
        super().__init__(session, group_id, GROUP, request_timeout_ms)
        self.group_id = group_id

    # -- offsets ----------------------------------------------------------------------------------------------------

    async def commit(self, identity: Identity, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Send one OffsetCommit, with topic ids if they are known and the broker supports them.

        Raises:
            TopicReplaced: an offset belongs to a deleted topic.
            KafkaError: the first error of a partition; the retriable ones may be sent again.
        """
        self.check_ids(offsets)
        values = {
            "generation_id_or_member_epoch": identity.generation,
            "member_id": identity.member_id,
            "group_instance_id": identity.instance_id,
        }
        await self._commit(Api.OFFSET_COMMIT, values, offsets)

    async def commit_in_transaction(
        self, values: Mapping[str, Any], offsets: Mapping[TopicPartition, OffsetAndMetadata], at_most: int | None
    ) -> None:
        """Send one TxnOffsetCommit, with topic ids as in `commit`. `values`: fields that identify the producer and the
        group's member.

        Raises:
            KafkaError: the first error of a partition; the retriable ones may be sent again.
        """
        await self._commit(Api.TXN_OFFSET_COMMIT, values, offsets, at_most)

    def check_ids(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Check that no topic was replaced, as far as this client knows. Raises TopicReplaced if an offset belongs to a
        deleted topic with the same name."""
        ids = self._ids(item.topic for item in offsets)
        for item, offset in offsets.items():
            known = ids[item.topic]
            if offset.topic_id is not None and known is not None and known != offset.topic_id:
                raise TopicReplaced(item.topic, str(offset.topic_id), str(known))

    async def _commit(
        self,
        api: Api,
        values: Mapping[str, Any],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        at_most: int | None = None,
    ) -> None:
        ids = self._ids(item.topic for item in offsets)
        topics: dict[tuple[str, UUID | None], list[dict[str, Any]]] = {}
        for item, offset in offsets.items():
            topics.setdefault((item.topic, offset.topic_id or ids[item.topic]), []).append(
                {
                    "partition_index": item.partition,
                    "committed_offset": offset.offset,
                    "committed_leader_epoch": offset.leader_epoch,
                    "committed_metadata": offset.metadata,
                }
            )
        listed = [
            {"name": name, "topic_id": topic_id, "partitions": parts} for (name, topic_id), parts in topics.items()
        ]
        if any(topic_id is None for _, topic_id in topics):
            at_most = min(at_most or BY_NAME_AT_MOST[api], BY_NAME_AT_MOST[api])
        answer = await self.call(api, {**values, "group_id": self.group_id, "topics": listed}, at_most=at_most)
        names = {topic_id: name for name, topic_id in topics}
        for topic in answer.topics:
            name = names.get(topic.topic_id) if hasattr(topic, "topic_id") else topic.name
            for entry in topic.partitions:
                item = TopicPartition(str(name), entry.partition_index)
                gone = self._session.metadata.absence(item) if entry.error_code.refresh_metadata else None
                if gone is not None:
                    raise gone
                self._check_topic(api, entry.error_code, item)

    async def committed(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Send one OffsetFetch. Returns the committed offsets of these partitions, or (None) of all partitions that
        have one, with the topic id if it is known.

        Raises:
            KafkaError: the coordinator's error; UNSTABLE_OFFSET_COMMIT while a transaction is open (`stable`);
                UNKNOWN_TOPIC_ID if this client and the coordinator know different topics with one name.
        """
        wanted: list[dict[str, Any]] | None = None
        ids: dict[str, UUID | None] = {}
        if partitions is not None:
            numbers: dict[str, list[int]] = {}
            for item in partitions:
                numbers.setdefault(item.topic, []).append(item.partition)
            ids = self._ids(numbers)
            wanted = [
                {"name": name, "topic_id": ids[name], "partition_indexes": tuple(parts)}
                for name, parts in numbers.items()
            ]
            if not wanted:
                return {}
        group = {"group_id": self.group_id, "topics": wanted}
        values = {**group, "groups": [group], "require_stable": stable}
        at_most = BY_NAME_AT_MOST[Api.OFFSET_FETCH] if wanted is None or None in ids.values() else None
        answer = await self.call(Api.OFFSET_FETCH, values, at_most=at_most)
        entry = answer.groups[0] if hasattr(answer, "groups") else answer
        self.check(Api.OFFSET_FETCH, entry.error_code)
        names = {topic_id: name for name, topic_id in ids.items()}
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in entry.topics:
            name = names.get(topic.topic_id) if hasattr(topic, "topic_id") else topic.name
            for part in topic.partitions:
                item = TopicPartition(str(name), part.partition_index)
                self._check_topic(Api.OFFSET_FETCH, part.error_code, item)
                if part.committed_offset >= 0:
                    epoch = getattr(part, "committed_leader_epoch", -1)
                    text = part.metadata or ""
                    found[item] = OffsetAndMetadata(part.committed_offset, text, epoch, ids.get(item.topic))
        return found

    def _ids(self, names: Iterable[str]) -> dict[str, UUID | None]:
        """Ids of topics, as far as this client knows them."""
        metadata = self._session.metadata
        return {name: metadata.topic_id(name) if metadata.is_known(name) else None for name in names}

    def _check_topic(self, api: Api, code: ErrorCode, partition: TopicPartition) -> None:
        """Request new metadata if the coordinator does not know a topic: it may be new, or deleted."""
        if code.refresh_metadata:
            self._session.metadata.request_update()
        self.check(api, code, topic=partition.topic, partition=partition)
