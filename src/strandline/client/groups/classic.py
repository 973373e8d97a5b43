"""One member of a group on the classic protocol: joins, shares out if it leads, syncs, beats, leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from strandline.client.config import ConsumerConfig
from strandline.client.errors import Disconnected, MembershipLost
from strandline.client.groups.assignors import ASSIGNORS, Member, share_out
from strandline.client.groups.coordinator import GroupCoordinator, Identity
from strandline.client.groups.membership import Membership
from strandline.client.network import GROUP
from strandline.client.session import Session
from strandline.client.tasks import Tasks
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

PROTOCOL_TYPE = "consumer"
_JOIN_GRACE_MS = 5_000
"""Time that a join is waited for beyond the rebalance itself, as in Kafka."""

Counts = Callable[[Iterable[str]], Awaitable[Mapping[str, int]]]
"""The numbers of partitions of topics, fresh from the cluster."""


class ClassicMembership(Membership):
    """A member of a group in which one of the members, its leader, shares out."""

    def __init__(
        self, config: ConsumerConfig, session: Session, coordinator: GroupCoordinator, tasks: Tasks,
        *, counts: Counts, on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(config, session, coordinator, tasks, on_change)
        # Only if everything on offer is cooperative (KIP-429).
        self.cooperative = all(ASSIGNORS[name].cooperative for name in config.strategies)
        self.interval_ms = config.heartbeat_interval_ms
        # Half a session is left to find another coordinator, should this one hang.
        self.answer_ms = min(config.request_timeout_ms, config.session_timeout_ms / 2)
        self._counts = counts

    async def _join_once(
        self, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]
    ) -> tuple[TopicPartition, ...]:
        config = self._config
        values = {
            "group_id": self._coordinator.group_id,
            "session_timeout": config.session_timeout_ms,
            "rebalance_timeout": config.max_poll_interval_ms,
            "member_id": self.member_id,
            "group_instance_id": config.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [
                {"name": name, "metadata": self._subscription(name, topics, owned)} for name in config.strategies
            ],
            "reason": "",
        }
        answer = await self._held(Api.JOIN_GROUP, values)
        if answer.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        self._coordinator.check(Api.JOIN_GROUP, answer.error_code)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        shares: list[dict[str, Any]] = []
        self.group_topics = {}
        if answer.leader == self.member_id and not getattr(answer, "skip_assignment", False):
            shares = await self._share_out(answer.protocol_name, answer.members)
        values = {
            "group_id": self._coordinator.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": config.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": answer.protocol_name,
            "assignments": shares,
        }
        synced = await self._held(Api.SYNC_GROUP, values)
        self._coordinator.check(Api.SYNC_GROUP, synced.error_code)
        return decode_assignment(synced.assignment or b"")

    def _subscription(self, strategy: str, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]) -> bytes:
        assignor = ASSIGNORS[strategy]
        user_data = assignor.remember(owned, self.generation)
        kept = owned if self.cooperative else ()
        rack = self._config.client_rack or None
        return encode_subscription(Subscription(topics, kept, self.generation, user_data, rack))

    async def _share_out(self, strategy: str, joined: Iterable[Any]) -> list[dict[str, Any]]:
        members = [
            Member(one.member_id, getattr(one, "group_instance_id", None), decode_subscription(one.metadata))
            for one in joined
        ]
        topics = dict.fromkeys(topic for member in members for topic in member.subscription.topics)
        counts = await self._counts(topics)
        self.group_topics = {topic: counts.get(topic, 0) for topic in topics}
        shares = share_out(strategy, members, counts)
        return [{"member_id": name, "assignment": encode_assignment(items)} for name, items in shares.items()]

    async def _held(self, api: Api, values: Mapping[str, Any]) -> Any:
        """A request that the coordinator answers when all members are there: until then others say whether it still
        is the coordinator, for one that hangs says nothing."""
        config, coordinator = self._config, self._coordinator
        timeout_ms = max(config.request_timeout_ms, config.max_poll_interval_ms + _JOIN_GRACE_MS)
        asked = await coordinator.find()
        call = asyncio.ensure_future(coordinator.call(api, values, timeout_ms=timeout_ms, purpose=GROUP))
        try:
            while True:
                await asyncio.wait([call], timeout=config.session_timeout_ms / 1000)
                if call.done():
                    return call.result()
                coordinator.node = None
                if (await coordinator.find()).node_id != asked.node_id:
                    raise Disconnected(f"broker {asked} coordinates group {coordinator.group_id} no more")
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)  # where it was not answered it is nobody's any more

    async def _ask(self, identity: Identity) -> ErrorCode:
        values = {
            "group_id": self._coordinator.group_id,
            "generation_id": identity.generation,
            "member_id": identity.member_id,
            "group_instance_id": identity.instance_id,
        }
        answer = await self._coordinator.call(Api.HEARTBEAT, values, timeout_ms=self.answer_ms)
        code: ErrorCode = answer.error_code
        return code

    def _end(self, because: StrandlineError | None) -> None:
        super()._end(because)
        static = self._config.group_instance_id is not None
        unknown = isinstance(because, KafkaError) and because.code is ErrorCode.UNKNOWN_MEMBER_ID
        if because is None or unknown or static or isinstance(because, MembershipLost):
            self.member_id = ""

    def _goodbye(self, reason: str) -> tuple[Api, Mapping[str, Any]] | None:
        """A static member does not leave: its place is kept for its restart."""
        instance_id = self._config.group_instance_id
        if not self.member_id or instance_id is not None:
            return None
        identity = {"member_id": self.member_id, "group_instance_id": instance_id, "reason": reason}
        group_id = self._coordinator.group_id
        return Api.LEAVE_GROUP, {"group_id": group_id, "member_id": self.member_id, "members": [identity]}
