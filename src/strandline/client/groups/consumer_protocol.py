"""One member of a group on the consumer protocol (KIP-848): the coordinator shares out, heartbeats are all there is.

What the coordinator wants this member to have comes with the answers to its heartbeats. The next poll gives back and
takes up what differs, and tells so by a heartbeat of its own: that is this protocol's join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from strandline.client.config import ConsumerConfig
from strandline.client.errors import ClientError
from strandline.client.groups.coordinator import GroupCoordinator, Identity
from strandline.client.groups.membership import Membership
from strandline.client.session import Session
from strandline.client.tasks import Tasks
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

JOIN, LEAVE, AWAY = 0, -1, -2
"""Epochs that say what a heartbeat is for; AWAY: a static member that will be back."""

ANSWER_MS = 10_000
"""Milliseconds to wait for the answer to a heartbeat, which comes once its changes are committed. After that the client
looks for another coordinator."""

Assigned = frozenset[tuple[UUID, int]]


class ConsumerMembership(Membership):
    """A member of a group whose coordinator shares out.

    Every heartbeat says all that there is to say, what is owned too: none depends on the answer to the one before.
    """

    cooperative = True

    def __init__(
        self, config: ConsumerConfig, session: Session, coordinator: GroupCoordinator, tasks: Tasks,
        *, owned: Callable[[], Sequence[TopicPartition]], on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(config, session, coordinator, tasks, on_change)
        self.member_id = str(UUID(int=session.rng.getrandbits(128), version=4))
        self.interval_ms = config.heartbeat_interval_ms  # until the coordinator says another
        self.answer_ms = min(config.request_timeout_ms, ANSWER_MS)
        self._owned = owned
        self._topics: tuple[str, ...] = ()
        self._known = False
        """The coordinator may count this member in: it was asked to, and has not refused."""
        self._assigned: Assigned = frozenset()
        self._ids: dict[TopicPartition, UUID] = {}
        """Partition -> topic id under which it was assigned: a topic that was created again is not assigned yet."""

    async def _join_once(
        self, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]
    ) -> tuple[TopicPartition, ...]:
        if self.generation < 0 and not topics:
            return ()  # a pattern that nothing matches yet: a member that joins names a topic
        self._topics, self._known = topics, True
        if self.generation < 0:
            answer = await self._heartbeat(JOIN, ())
        else:
            answer = await self._heartbeat(self.generation, owned)
        if answer.error_code is not ErrorCode.NONE:
            self._coordinator.check(Api.CONSUMER_GROUP_HEARTBEAT, answer.error_code, answer.error_message)
        self._take(answer)
        return await self._named(self._assigned)

    async def _heartbeat(self, epoch: int, owned: Iterable[TopicPartition]) -> Any:
        config = self._config
        numbers: dict[UUID, list[int]] = {}
        for item in owned:
            topic_id = self._ids.get(item)
            if topic_id is not None:
                numbers.setdefault(topic_id, []).append(item.partition)
        values = {
            "group_id": self._coordinator.group_id,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "instance_id": config.group_instance_id,
            "rack_id": config.client_rack or None,
            "rebalance_timeout": config.max_poll_interval_ms,
            "subscribed_topic_names": self._topics,
            "server_assignor": config.group_remote_assignor,
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": tuple(parts)} for topic_id, parts in numbers.items()
            ],
        }
        return await self._coordinator.call(Api.CONSUMER_GROUP_HEARTBEAT, values, timeout_ms=self.answer_ms)

    def _take(self, answer: Any) -> None:
        self.generation, self.interval_ms = answer.member_epoch, answer.heartbeat_interval
        if answer.assignment is not None:
            self._assigned = frozenset(
                (topic.topic_id, number) for topic in answer.assignment.topic_partitions for number in topic.partitions
            )

    async def _named(self, assigned: Assigned) -> tuple[TopicPartition, ...]:
        """The partitions by the names of their topics. Raises ClientError: one has none yet, or none any more."""
        metadata = self._session.metadata
        ids = sorted({topic_id for topic_id, _ in assigned})
        if any(metadata.topic_name(topic_id) is None for topic_id in ids):
            await metadata.update(self._config.request_timeout_ms)
        names = {topic_id: metadata.topic_name(topic_id) for topic_id in ids}
        found: dict[TopicPartition, UUID] = {}
        for topic_id, number in sorted(assigned):
            name = names[topic_id]
            if name is None:
                raise ClientError(f"group {self._coordinator.group_id}: there is no topic with the id {topic_id}")
            found[TopicPartition(name, number)] = topic_id
        self._ids = found
        return tuple(found)

    async def _ask(self, identity: Identity) -> ErrorCode:
        before = self._assigned
        answer = await self._heartbeat(identity.generation, self._owned())
        code: ErrorCode = answer.error_code
        if code is ErrorCode.NONE and not self.joining and self.identity == identity:
            self._take(answer)
            if self._assigned != before:
                self.needs_join = True
                self._on_change()
        return code

    def _end(self, because: StrandlineError | None) -> None:
        super()._end(because)
        self._assigned = frozenset()
        self._known = False

    def _goodbye(self, reason: str) -> tuple[Api, Mapping[str, Any]] | None:
        if not self._known:
            return None
        instance_id = self._config.group_instance_id
        values = {
            "group_id": self._coordinator.group_id,
            "member_id": self.member_id,
            "member_epoch": LEAVE if instance_id is None else AWAY,
            "instance_id": instance_id,
            "topic_partitions": None,
        }
        return Api.CONSUMER_GROUP_HEARTBEAT, values
