"""One member of a group on the classic protocol: joins, syncs, beats, leaves.

Heartbeats are a task of their own and go on while the caller handles records. A member that is not polled for
`max.poll.interval.ms` leaves by itself: it would hold its partitions without reading them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from strandline.client.config import ConsumerConfig
from strandline.client.errors import ClosedError, Disconnected, MembershipLost
from strandline.client.groups.assignors import ASSIGNORS, Member, share_out
from strandline.client.groups.coordinator import GroupCoordinator, Identity
from strandline.client.groups.protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from strandline.client.network import GROUP
from strandline.client.session import Session
from strandline.client.wire.apis import Api
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError, StrandlineError
from strandline.proto.ids import TopicPartition

PROTOCOL_TYPE = "consumer"
_JOIN_GRACE_MS = 5_000
"""How much longer than the rebalance itself a join is waited for, as in Kafka."""

EXPELLED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
"""The group goes on without this member, and what it had may belong to others."""

Counts = Callable[[Iterable[str]], Awaitable[Mapping[str, int]]]
"""The numbers of partitions of topics, fresh from the cluster."""


class Membership:
    """What one consumer is in its group.

    Invariants:
    - `generation` >= 0 exactly while the coordinator counts this member in, as far as it knows.
    - No heartbeat is sent while a join is out: the join itself keeps the session.
    - `lost` is set once per membership that ended without being asked to, and taken by the consumer.
    """

    def __init__(
        self, config: ConsumerConfig, session: Session, coordinator: GroupCoordinator, counts: Counts,
        on_news: Callable[[], None],
    ) -> None:  # fmt: skip
        self.member_id = ""
        self.generation = -1
        self.needs_join = False
        self.joining = False
        self.polling = False
        self.touched = False
        """The caller has taken a record since the last heartbeat; a flag, for it is set with each record."""
        self.lost: StrandlineError | None = None
        self.fatal: StrandlineError | None = None
        self.last_error: StrandlineError | None = None
        self.group_topics: Mapping[str, int] = {}
        """What the leader shared out, with the counts that it went by; empty at the others."""
        self._config = config
        self._clock = session.clock
        self._session = session
        self._coordinator = coordinator
        self._counts = counts
        self._on_news = on_news
        self._polled_ms = self._clock.monotonic_ms()
        self._beating: asyncio.Task[None] | None = None

    @property
    def cooperative(self) -> bool:
        """Partitions are kept over a rebalance; only if everything on offer can do so (KIP-429)."""
        return all(ASSIGNORS[name].cooperative for name in self._config.strategies)

    @property
    def identity(self) -> Identity:
        """What a commit is signed with."""
        return Identity(self.member_id, self.generation, self._config.group_instance_id)

    def polled(self) -> None:
        """The caller is alive."""
        self._polled_ms = self._clock.monotonic_ms()

    # -- joining ----------------------------------------------------------------------------------------------------

    async def join(self, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        """Join, share out if this member leads, and return what it is given.

        Args:
            topics: subscribed to.
            owned: held at this moment; under the eager protocol what was held before.

        Raises:
            ProtocolError: another member says what nobody can read.
            KafkaError: what another attempt does not mend; UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION: all that was owned
                is lost.
        """
        failures = 0
        self.joining, self.needs_join = True, False
        try:
            while True:
                try:
                    partitions = await self._join_once(topics, owned)
                except KafkaError as error:
                    self.last_error = error
                    if error.code is ErrorCode.MEMBER_ID_REQUIRED or error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                        continue
                    if not error.retriable:
                        raise
                except (ProtocolError, ClosedError):
                    raise
                except StrandlineError as error:
                    self.last_error = error
                else:
                    self._keep_beating()
                    return partitions
                failures += 1
                await asyncio.sleep(self._session.backoff_ms(failures) / 1000)
        finally:
            self.joining = False

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
        told = await self._held(Api.JOIN_GROUP, values)
        if told.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = told.member_id
        self._coordinator.check(told.error_code)
        self.member_id, self.generation = told.member_id, told.generation_id
        shares: list[dict[str, Any]] = []
        self.group_topics = {}
        if told.leader == self.member_id and not getattr(told, "skip_assignment", False):
            shares = await self._share_out(told.protocol_name, told.members)
        values = {
            "group_id": self._coordinator.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": config.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": told.protocol_name,
            "assignments": shares,
        }
        synced = await self._held(Api.SYNC_GROUP, values)
        self._coordinator.check(synced.error_code)
        return decode_assignment(synced.assignment or b"")

    def _subscription(self, strategy: str, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]) -> bytes:
        assignor = ASSIGNORS[strategy]
        user_data = assignor.remember(owned, self.generation)
        kept = owned if self.cooperative else ()
        rack = self._config.client_rack or None
        return encode_subscription(Subscription(topics, kept, self.generation, user_data, rack))

    async def _share_out(self, strategy: str, told: Iterable[Any]) -> list[dict[str, Any]]:
        members = [
            Member(one.member_id, getattr(one, "group_instance_id", None), decode_subscription(one.metadata))
            for one in told
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
            if not call.done():
                call.cancel()
                await asyncio.wait([call])

    # -- staying ----------------------------------------------------------------------------------------------------

    def _keep_beating(self) -> None:
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat_on())

    async def _beat_on(self) -> None:
        failures = 0
        while True:
            wait_ms: float = self._config.heartbeat_interval_ms
            if failures:
                wait_ms = min(wait_ms, self._session.backoff_ms(failures))
            await asyncio.sleep(min(wait_ms, self._poll_left_ms()) / 1000)
            if self.touched:
                self.touched = False
                self.polled()
            if self.joining or self.generation < 0:
                failures = 0
                continue
            if self._poll_left_ms() <= 0:
                await self._leave_idle()
                continue
            try:
                await self._beat()
                failures = 0
            except StrandlineError as error:
                self.last_error = error
                failures += 1

    def _poll_left_ms(self) -> float:
        """How long until the caller has not polled for too long."""
        if self.polling or self.generation < 0:
            return float("inf")
        return max(self._polled_ms + self._config.max_poll_interval_ms - self._clock.monotonic_ms(), 0.0)

    async def _beat(self) -> None:
        who = self.identity
        values = {
            "group_id": self._coordinator.group_id,
            "generation_id": who.generation,
            "member_id": who.member_id,
            "group_instance_id": who.instance_id,
        }
        # Half a session is left to find another coordinator, should this one hang.
        timeout_ms = min(self._config.request_timeout_ms, self._config.session_timeout_ms / 2)
        told = await self._coordinator.call(Api.HEARTBEAT, values, timeout_ms=timeout_ms)
        if self.joining or self.identity != who:
            return  # the answer is about what this member was before
        if told.error_code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.needs_join = True
            self._on_news()
        elif told.error_code in EXPELLED:
            self.expelled(KafkaError(told.error_code, "the coordinator no longer counts this member in"))
        elif told.error_code is ErrorCode.FENCED_INSTANCE_ID:
            self.fail(KafkaError(told.error_code, "another consumer runs under this name (group.instance.id)"))
        else:
            self._coordinator.check(told.error_code)

    async def _leave_idle(self) -> None:
        interval = self._config.max_poll_interval_ms
        error = MembershipLost(
            f"no poll for max.poll.interval.ms={interval}: this member left its group; handle fewer records at a time "
            "(max.poll.records) or raise max.poll.interval.ms"
        )
        await self.leave(error)

    def expelled(self, error: StrandlineError) -> None:
        """The group goes on without this member; the next poll says so to the listeners and joins anew."""
        static = self._config.group_instance_id is not None
        unknown = isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_MEMBER_ID
        if unknown or static or isinstance(error, MembershipLost):
            self.member_id = ""
        self.generation = -1
        self.needs_join = True
        self.lost = self.last_error = error
        self._on_news()

    def fail(self, error: StrandlineError) -> None:
        """Nothing this consumer can do will make it a member again."""
        self.fatal = self.last_error = error
        self.generation = -1
        self._on_news()

    # -- leaving ----------------------------------------------------------------------------------------------------

    async def leave(self, because: StrandlineError | None = None) -> None:
        """Leave the group, a static member excepted, whose place is kept for its restart. Never raises for the
        network's sake: a coordinator that does not hear it finds out after the session."""
        member_id, known = self.member_id, self.generation >= 0 or bool(self.member_id)
        if because is not None:
            self.expelled(because)
        else:
            self.generation, self.member_id = -1, ""
        if not known or self._config.group_instance_id is not None:
            return
        identity = {
            "member_id": member_id,
            "group_instance_id": self._config.group_instance_id,
            "reason": "the consumer is closed" if because is None else str(because)[:250],
        }
        values = {"group_id": self._coordinator.group_id, "member_id": member_id, "members": [identity]}
        timeout_ms = min(self._config.request_timeout_ms, self._config.session_timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                told = await self._coordinator.call(Api.LEAVE_GROUP, values, timeout_ms=timeout_ms)
            self._coordinator.check(told.error_code)
        except (StrandlineError, TimeoutError) as error:
            if isinstance(error, StrandlineError):
                self.last_error = error

    async def stop(self) -> None:
        """Stop beating."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
            self._beating = None
