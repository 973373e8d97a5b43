"""A consumer's commits: in order, under its membership, again where an outcome is unknown, anew before they expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol
from uuid import UUID

from strandline.client import logs
from strandline.client.config import ConsumerConfig
from strandline.client.errors import ClientError, CommitFailed, TopicReplaced
from strandline.client.groups.coordinator import GroupCoordinator, Identity
from strandline.client.groups.membership import EXPELLED, Membership
from strandline.client.groups.progress import Progress
from strandline.client.limits import Limit
from strandline.client.loop_thread import end_where_forked
from strandline.client.metadata import Metadata
from strandline.client.tasks import Tasks, log
from strandline.client.types import OffsetAndMetadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitDone = Callable[[Offsets, StrandlineError | None], object]
"""Told what became of an asynchronous commit: the offsets, and the error if there was one."""

PARTING_COMMIT_MS = 10_000
"""How long a commit before partitions are given up may take: others wait for them."""
RENEWAL_AT_CLOSE_MS = 3_000
"""How long a consumer that is closed waits until its unchanged offsets are committed anew."""
RENEWAL_MS_MAX = 3_600_000
"""Unchanged offsets are committed anew this often at least, and after a quarter of `offsets.retention.minutes`."""
RENEWAL_MS_MIN = 1_000
_BROKER = 4
"""DescribeConfigs: the resource is a broker."""
_RETENTION = "offsets.retention.minutes"

OVER = {
    ErrorCode.UNKNOWN_MEMBER_ID: "this consumer is no member any more: it was silent for too long, or left",
    ErrorCode.ILLEGAL_GENERATION: "the group has rebalanced without this consumer",
    ErrorCode.FENCED_MEMBER_EPOCH: "the group has gone on without this consumer",
    ErrorCode.STALE_MEMBER_EPOCH: "the group has gone on; poll, then commit what is still assigned",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing; poll, then commit what is still assigned",
    ErrorCode.FENCED_INSTANCE_ID: "another consumer runs under this name (group.instance.id)",
}
_FROM_OUTSIDE = (
    "the group has members, and they alone commit: partitions that are assigned by name need a group of their own"
)


class Holder(Protocol):
    """The consumer, as far as its commits are concerned."""

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """Of the topic that it reads, or would read, as this partition; None: not known."""


class Commits:
    """Runs on one event loop; one commit after the other.

    Args:
        subscribed: whether the partitions are the group's to give.
        on_callback_error: called with what a callback raised.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        metadata: Metadata,
        coordinator: GroupCoordinator,
        member: Membership,
        *,
        holder: Holder,
        subscribed: Callable[[], bool],
        on_callback_error: Callable[[BaseException], None],
    ) -> None:
        self.progress = Progress()
        self._config = config
        self._metadata = metadata
        self._coordinator = coordinator
        self._member = member
        self._holder = holder
        self._subscribed = subscribed
        self._on_callback_error = on_callback_error
        self._in_turn = asyncio.Lock()
        self._later: dict[asyncio.Task[None], None] = {}
        self._renewed = False

    # -- commits ----------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets | None, timeout_ms: float) -> None:
        """Commit these, or (None) everything that was handed out.

        Raises:
            CommitFailed: the group has moved on.
            TopicReplaced, UnknownTopic: of offsets of topics that are gone; the others were committed.
            KafkaError, ClientTimeout.
        """
        async with self._in_turn:
            wanted = self._wanted(offsets)
            if wanted or self._member.lost is not None:
                await self._send(self._signature(), wanted, timeout_ms)

    def commit_later(self, tasks: Tasks, offsets: Offsets | None, done: CommitDone | None) -> None:
        """As `commit`, beside everything else; `done` gets the outcome. In the order of the calls."""
        wanted = self._wanted(offsets)
        # Under the membership of this moment: behind other commits its turn may come in another generation. By then
        # another member may read the partitions, and this commit would take its commits back.
        identity = self._member.identity if self._subscribed() else None
        tenures = self.progress.tenures(wanted)
        task = tasks.spawn("a commit", self._commit_later(identity, wanted, tenures, done))
        self._later[task] = None
        task.add_done_callback(lambda ended: self._later.pop(ended, None))

    async def _commit_later(
        self,
        identity: Identity | None,
        offsets: Offsets,
        tenures: Mapping[TopicPartition, int],
        done: CommitDone | None,
    ) -> None:
        failed: StrandlineError | None = None
        try:
            async with self._in_turn:
                if offsets:
                    signed = Identity() if identity is None else self._member_only(identity)
                    await self._send(signed, offsets, self._config.default_api_timeout_ms, tenures)
        except StrandlineError as error:
            failed = self._member.last_error = error
        if done is not None:
            try:
                done(offsets, failed)
            # rule B37/an-exit-in-a-commits-callback-ends-the-commits
            except BaseException as error:  # SystemExit too: it would end the loop here
                log.exception("a callback of commit_async failed")
                self._on_callback_error(error)
            end_where_forked()

    async def commit_done(self, timeout_ms: float) -> None:
        """Commit what is done; an error is kept in `state` and the offsets for the next time."""
        group_id = self._coordinator.group_id
        try:
            await Limit(timeout_ms, f"no commit within {timeout_ms:.0f} ms").keep(self._commit_done(timeout_ms))
        except StrandlineError as error:
            self._member.last_error = error
            logs.group.warning("group %s: what is done could not be committed, and may come again: %s", group_id, error)

    async def _commit_done(self, timeout_ms: float) -> None:
        async with self._in_turn:
            offsets = self._signed(self.progress.to_commit())
            if offsets:
                await self._send(self._signature(), offsets, timeout_ms)

    async def commit_parting(self, timeout_ms: float = PARTING_COMMIT_MS) -> None:
        """What is done, before partitions go; what cannot be committed comes again."""
        if self._config.enable_auto_commit:
            await self.commit_done(min(timeout_ms, PARTING_COMMIT_MS))

    async def commit_now_and_then(self) -> None:
        """`enable.auto.commit`, until it is cancelled."""
        interval_ms = self._config.auto_commit_interval_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if not self._subscribed() or (self._member.generation >= 0 and not self._member.joining):
                await self.commit_done(max(interval_ms, 1_000))

    async def finish(self, timeout_ms: float) -> None:
        """Wait for the commits that are under way, though not for ever."""
        if self._later:
            await asyncio.wait(list(self._later), timeout=min(timeout_ms, PARTING_COMMIT_MS) / 1000)

    # -- offsets that do not change ---------------------------------------------------------------------------------

    async def renew_now_and_then(self) -> None:
        """Commit unchanged offsets anew while their reader polls, until it is cancelled.

        Brokers forget an offset `offsets.retention.minutes` after its commit where no member of the group reads the
        topic: that of a reader without membership, on a quiet topic, under its very eyes (schedule 65).
        """
        await asyncio.sleep(self._config.auto_commit_interval_ms / 1000)
        while True:
            if not self._subscribed() and self._member.is_polled:
                await self._renew()
            await asyncio.sleep(await self._renewal_ms() / 1000)

    async def renew_at_close(self, timeout_ms: float) -> None:
        """A reader that lives too shortly for `renew_now_and_then` keeps its commits, too."""
        if not self._subscribed() and not self._renewed:
            try:
                async with asyncio.timeout(min(timeout_ms, RENEWAL_AT_CLOSE_MS) / 1000):
                    await self._renew()
            except TimeoutError:
                log.info("group %s: unchanged offsets were not committed anew in time", self._coordinator.group_id)

    async def _renew(self) -> None:
        """What others have changed meanwhile is theirs."""
        timeout_ms = self._config.default_api_timeout_ms
        try:
            async with self._in_turn:
                mine = self.progress.known_committed(found_too=self._config.enable_auto_commit)
                stored = await self.stored(mine, timeout_ms)
                same = {item: found for item, found in stored.items() if found and found.offset == mine[item]}
                if same:  # schedule 65/unchanged-offset-never-committed-again
                    await self._send(Identity(), same, timeout_ms)
                self._renewed = True
        except StrandlineError as error:
            self._member.last_error = error

    async def _renewal_ms(self) -> float:
        """A quarter of the brokers' retention, as the coordinator tells it."""
        try:
            coordinator = await self._coordinator.find()
            resource = {"resource_type": _BROKER, "resource_name": str(coordinator.node_id)}
            asked = {"resources": [{**resource, "configuration_keys": (_RETENTION,)}], "include_synonyms": False}
            [answer] = (await self._coordinator.call(Api.DESCRIBE_CONFIGS, asked)).results
            self._coordinator.check(Api.DESCRIBE_CONFIGS, answer.error_code, answer.error_message)
            retention_ms = int(next(one.value for one in answer.configs if one.name == _RETENTION)) * 60_000
        except (StrandlineError, StopIteration, TypeError, ValueError) as error:
            log.debug("%s is not known: %r", _RETENTION, error)
            return RENEWAL_MS_MAX
        return min(max(retention_ms / 4, RENEWAL_MS_MIN), RENEWAL_MS_MAX)

    # -- what is stored ---------------------------------------------------------------------------------------------

    async def stored(
        self, partitions: Iterable[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What is committed of those of the partitions whose topic is known to this client; None: nothing is. A topic
        that is not known (yet, or any more) has to be waited for: nothing would say which topic the offset is of.

        Raises:
            KafkaError, ClientTimeout.
        """
        wanted = list(partitions)

        async def ask() -> dict[TopicPartition, OffsetAndMetadata | None]:
            known = [item for item in wanted if self._metadata.is_known(item.topic)]
            found = await self._coordinator.committed(known)
            return {item: found.get(item) for item in known}

        return await self._coordinator.retrying(ask, timeout_ms)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _wanted(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            self.progress.finish()
            offsets = self.progress.to_commit()
        else:
            for item, offset in offsets.items():
                self.progress.declare(item, offset)
        return self._signed(offsets)

    def _signed(self, offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
        """With the ids of the topics that they count records of."""
        return {
            item: offset if offset.topic_id else offset._replace(topic_id=self._holder.topic_id(item))
            for item, offset in offsets.items()
        }

    def _signature(self) -> Identity:
        """The membership to commit under: a subscriber that is no member commits nothing, for nobody could fence it."""
        return self._member_only(self._member.identity) if self._subscribed() else Identity()

    def _member_only(self, identity: Identity) -> Identity:
        if identity.generation < 0:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            raise CommitFailed(self._coordinator.group_id, code, OVER[code])
        return identity

    async def _send(
        self,
        identity: Identity,
        offsets: Offsets,
        timeout_ms: float,
        tenures: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        coordinator, member = self._coordinator, self._member
        held = self.progress.tenures(offsets) if tenures is None else tenures
        self.progress.doubt(held)  # rule C7/what-an-unanswered-commit-replaced-counts
        try:
            committed = await coordinator.retrying(partial(self._commit_as, identity, offsets, held), timeout_ms)
        except KafkaError as error:
            why = OVER.get(error.code)
            if why is None:
                raise
            if not self._subscribed():
                why = _FROM_OUTSIDE
            elif error.code in EXPELLED and identity == member.identity and not member.joining:
                member.expelled(error)
            elif error.code is ErrorCode.REBALANCE_IN_PROGRESS and not member.joining:
                member.needs_join = True
            raise CommitFailed(coordinator.group_id, error.code, why) from error
        now = self.progress.tenures(offsets)
        for item in committed:
            if now.get(item) == held.get(item):
                self.progress.was_committed(item, offsets[item].offset)
        gone = next((self._end_of(item, offsets[item]) for item in offsets if item not in committed), None)
        if gone is not None:
            raise gone

    async def _commit_as(
        self, identity: Identity, offsets: Offsets, tenures: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """One attempt, without the offsets of topics that are gone; the others are returned.

        A member of the consumer protocol comes to a new epoch between two polls, and commits with that what has been
        its own all the while. It hears of it by a heartbeat, perhaps later than the coordinator does. A partition that
        went and came back may have another's commits, which this one would take back.
        """
        member = self._member
        keeps_place = self._config.group_protocol == "consumer" and min(identity.generation, member.generation) >= 0
        # rule C7/delayed-commit-signed-anew-over-tenures
        if keeps_place and len(tenures) == len(offsets) and self.progress.tenures(tenures) == tenures:
            identity = member.identity
        living = {item: offset for item, offset in offsets.items() if self._end_of(item, offset) is None}
        try:
            if living or not offsets:
                await self._coordinator.commit(identity, living)
        except KafkaError as error:
            if error.code is ErrorCode.STALE_MEMBER_EPOCH and identity == member.identity:
                raise ClientError("the coordinator knows a newer epoch of this member") from error
            raise
        return list(living)

    def _end_of(self, item: TopicPartition, offset: OffsetAndMetadata) -> StrandlineError | None:
        """Why an offset is of no use any more: its topic was made anew, or is gone."""
        now = self._metadata.topic_id(item.topic)
        if now is not None and offset.topic_id is not None and now != offset.topic_id:
            return TopicReplaced(item.topic, str(offset.topic_id), str(now))
        return self._metadata.absence(item)
