"""Offsets of a consumer in its group: what was handed out, what of it is done and committed, where partitions begin.

`Progress`: what was handed out and what of it is done; so nothing that was merely fetched is committed.

`Commits`: in order, under the consumer's membership, again where an outcome is unknown, anew before they expire.

`Beginnings`: partitions begin at what the group has committed, once their topic is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from strandline.client import logs
from strandline.client.config import ConsumerConfig
from strandline.client.errors import ClientError, CommitFailed, TopicReplaced
from strandline.client.fetcher import PartitionState
from strandline.client.groups.coordinator import GroupCoordinator, Identity
from strandline.client.groups.membership import EXPELLED, Membership
from strandline.client.limits import Limit
from strandline.client.logs import log
from strandline.client.loop_thread import end_where_forked
from strandline.client.metadata import Metadata
from strandline.client.tasks import Tasks
from strandline.client.types import ConsumerRecord, GroupMetadata, OffsetAndMetadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api


class Progress:
    """Offsets per partition, each that of the next record.

    Invariants:
    - handed >= done: a record is done only after it was handed out.
    - `committed` is what the coordinator has acknowledged since the partition was taken up, or it has said nothing of
      something that was sent since (`doubted`).
    - `_one` is the record that an iteration has handed out last, `_before` the one before it, which is done: written by
      the iterating thread alone, record by record, and so nothing but two names.
    - A tenure lasts from when a partition is taken up until it is given up. Each has a number of its own: between two
      there may have been another reader, with commits of its own.
    """

    def __init__(self) -> None:
        self._handed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._done: dict[TopicPartition, OffsetAndMetadata] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._own: dict[TopicPartition, None] = {}
        """Partitions of `_committed` that were committed here, not found at the coordinator."""
        self._doubted: dict[TopicPartition, None] = {}
        self._tenures: dict[TopicPartition, int] = {}
        self._last_tenure = 0
        self._before: ConsumerRecord | None = None
        self._one: ConsumerRecord | None = None

    def step(self, record: ConsumerRecord) -> None:
        """Note that an iteration hands this record out: the one before is done."""
        one = self._one
        if one is not None and one[:3] == record[:3]:
            return  # the caller was interrupted just when it was to get it
        if one is None:
            self.finish()
        else:
            before = self._before
            if before is not None and (before.partition != one.partition or before.topic != one.topic):
                self._done[TopicPartition(before.topic, before.partition)] = _behind(before)
            self._before = one
        self._one = record

    def keep(self, record: ConsumerRecord) -> None:
        """Note that the iteration still has this record: if it was stepped to, an interrupt kept it from the caller."""
        one = self._one
        if one is not None and one[:3] == record[:3]:
            self._one = None  # rule B37/a-stepped-to-record-counts-as-handed-out

    @property
    def handed_last(self) -> ConsumerRecord | None:
        """Record that an iteration handed out last, if nothing was done with it since."""
        return self._one

    def _settle(self) -> None:
        """Store the position of the iteration."""
        before, one = self._before, self._one
        if before is not None:
            self._done[TopicPartition(before.topic, before.partition)] = _behind(before)
        if one is not None:
            self._handed[TopicPartition(one.topic, one.partition)] = _behind(one)
        self._before = self._one = None

    def hand(self, records: Iterable[ConsumerRecord]) -> None:
        """Note that these records go to the caller now."""
        last = {(record.topic, record.partition): record for record in records}
        self.hand_behind({TopicPartition(*where): _behind(record) for where, record in last.items()})

    def hand_behind(self, behind: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that everything before these offsets goes to the caller now."""
        self._settle()
        self._handed.update(behind)  # schedule 64/handed-out-counts-as-done

    def finish(self) -> None:
        """Note that the caller is done with everything that was handed out."""
        self._settle()
        self._done.update(self._handed)
        self._handed.clear()

    def declare(self, partition: TopicPartition, offset: OffsetAndMetadata) -> None:
        """Note that the caller commits this offset by name: it counts as what is done, until more is."""
        self._settle()
        if partition in self._tenures:
            self._done[partition] = offset

    def reach(self, partition: TopicPartition, offset: int) -> None:
        """Note that everything before `offset` is done, whether there were records or none."""
        known = self._done.get(partition)
        if known is None or known.offset < offset:
            self._done[partition] = OffsetAndMetadata(offset, "", -1 if known is None else known.leader_epoch)

    def move(self, partition: TopicPartition, offset: int | None) -> None:
        """Note that the caller goes on from this offset (None: not known yet): what it held is not done. While it holds
        records, a place beyond what is done counts as one of them: it is done with the next call for records."""
        self._settle()
        held, done = self._handed.pop(partition, None), self._done.pop(partition, None)
        if offset is None:
            return
        if held is None or (done is not None and offset <= done.offset):
            self._done[partition] = OffsetAndMetadata(offset)
            return
        self._handed[partition] = OffsetAndMetadata(offset)  # schedule 64/a-seek-finishes-what-is-held
        if done is not None:
            self._done[partition] = done

    def take_up(self, partition: TopicPartition) -> None:
        """Begin a tenure of the partition, unless one lasts."""
        if partition not in self._tenures:
            self._last_tenure += 1
            self._tenures[partition] = self._last_tenure

    def start(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """Note what the group has committed of a partition (None: nothing), of which nothing was handed out yet."""
        self._clear([partition])
        self.take_up(partition)
        if committed is not None:
            self._committed[partition] = committed.offset

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are given up: what of them is not committed comes again elsewhere."""
        gone = list(partitions)
        self._clear(gone)
        for item in gone:
            self._tenures.pop(item, None)

    def _clear(self, partitions: Iterable[TopicPartition]) -> None:
        self._settle()
        for item in partitions:
            self._handed.pop(item, None)
            self._done.pop(item, None)
            self._committed.pop(item, None)
            self._own.pop(item, None)
            self._doubted.pop(item, None)

    def tenures(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Numbers of the tenures of those of these partitions that are held."""
        return {item: self._tenures[item] for item in partitions if item in self._tenures}

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Offsets that are done and not committed yet."""
        before = self._before
        done = self._done.copy()
        if before is not None:
            done[TopicPartition(before.topic, before.partition)] = _behind(before)
        return {
            item: offset
            for item, offset in done.items()
            if item in self._doubted or self._committed.get(item) != offset.offset
        }

    def doubt(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that a commit is being sent. The coordinator may apply it without answering, so that its committed
        offset is unknown."""
        self._doubted.update(dict.fromkeys(partitions))

    def was_committed(self, partition: TopicPartition, offset: int, *, by_transaction: bool = False) -> None:
        """Note that the coordinator has this offset."""
        self._committed[partition] = offset
        if not by_transaction:
            self._own[partition] = None
        self._doubted.pop(partition, None)

    def leave_to_transactions(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that a transaction commits offsets of these: nothing is committed anew beside it, for the later one in
        the coordinator's log wins, and that would take the transaction's offset back."""
        for item in partitions:
            self._own.pop(item, None)  # rule C19/a-renewal-takes-a-transactions-offset-back

    def known_committed(self, *, found_too: bool) -> dict[TopicPartition, int]:
        """Offsets at the coordinator of the partitions that are held: committed here, or (`found_too`) found there."""
        return {
            item: offset
            for item, offset in self._committed.items()
            if item in self._tenures and (found_too or item in self._own)
        }


def _behind(record: ConsumerRecord) -> OffsetAndMetadata:
    return OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitDone = Callable[[Offsets, StrandlineError | None], object]
"""Callback of an asynchronous commit, given its offsets, and its error if there was one."""

PARTING_COMMIT_MS = 10_000
"""Limit of a commit before partitions are given up: other members wait for them."""
RENEWAL_AT_CLOSE_MS = 3_000
"""Limit of the last commit of unchanged offsets, which a consumer makes when it is closed."""
RENEWAL_MS_MAX = 3_600_000
"""Longest time until unchanged offsets are committed anew; less: a quarter of `offsets.retention.minutes`."""
RENEWAL_MS_MIN = 1_000
_BROKER = 4
"""Type of the resource in DescribeConfigs: a broker."""
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


class HandedOut(NamedTuple):
    """Offsets of the records that a consumer has delivered but not committed, for a transaction to commit, with the
    consumer's group membership."""

    group: GroupMetadata
    offsets: dict[TopicPartition, OffsetAndMetadata]
    tenures: dict[TopicPartition, int]


class Commits:
    """Commits of one consumer, one after the other. Runs on one event loop.

    Args:
        topic_id: the id of the topic that the consumer reads, or would read, as this partition; None: not known.
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
        topic_id: Callable[[TopicPartition], UUID | None],
        subscribed: Callable[[], bool],
        on_callback_error: Callable[[BaseException], None],
    ) -> None:
        self.progress = Progress()
        self._config = config
        self._metadata = metadata
        self._coordinator = coordinator
        self._member = member
        self._topic_id = topic_id
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
        """Commit as `commit` does, beside everything else and in the order of the calls; `done` gets the outcome."""
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
        """Commit what is done, before partitions go; what cannot be committed comes again."""
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

    # -- in transactions of a producer ------------------------------------------------------------------------------

    @property
    def group_metadata(self) -> GroupMetadata:
        """The membership to commit under. Raises CommitFailed: a subscriber that is no member."""
        member_id, generation, instance_id = self._signature()
        return GroupMetadata(self._coordinator.group_id, generation, member_id, instance_id)

    async def handed_out(self) -> HandedOut:
        """Everything that was handed out and is not committed; it is done now.

        Raises:
            ConfigError: what is done is committed outside of transactions too (`enable.auto.commit`).
            CommitFailed: the group has moved on.
            TopicReplaced, UnknownTopic: an offset is one of a topic that is gone.
        """
        if self._config.enable_auto_commit:
            raise ConfigError("enable.auto.commit", True, "false: the offsets are committed with the transaction")
        async with self._in_turn:
            offsets = self._wanted(None)
            for item, offset in offsets.items():
                gone = self._end_of(item, offset)
                if gone is not None:
                    raise gone
            tenures = self.progress.tenures(offsets)
            self.progress.leave_to_transactions(offsets)
            return HandedOut(self.group_metadata, offsets, tenures)

    def committed_with_transaction(self, handed: HandedOut) -> None:
        """The transaction is committed, and these offsets with it."""
        now = self.progress.tenures(handed.offsets)
        for item, offset in handed.offsets.items():
            if now.get(item) == handed.tenures.get(item):
                self.progress.was_committed(item, offset.offset, by_transaction=True)

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
        """The offsets with the ids of the topics that they count records of."""
        return {
            item: offset if offset.topic_id else offset._replace(topic_id=self._topic_id(item))
            for item, offset in offsets.items()
        }

    def _signature(self) -> Identity:
        """Membership to commit under. A subscriber that is not a member cannot commit, because it could not be
        fenced."""
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
        """Error for an offset that is of no use any more: its topic was created anew, or is gone."""
        now = self._metadata.topic_id(item.topic)
        if now is not None and offset.topic_id is not None and now != offset.topic_id:
            return TopicReplaced(item.topic, str(offset.topic_id), str(now))
        return self._metadata.absence(item)


class Beginnings:
    """Finds where the partitions of a group's consumer begin. Runs on one event loop.

    Invariant: nothing is read of a partition that is asked for here, and no position of it is looked up elsewhere
    (`PartitionState.placing`).

    Args:
        states: of the consumer's partitions, as they come and go.
        wake_poll: called when a poll that waits can perhaps read, or place, something.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        commits: Commits,
        metadata: Metadata,
        tasks: Tasks,
        *,
        timeout_ms: float,
        wake_poll: Callable[[], None],
    ) -> None:
        self._states = states
        self._commits = commits
        self._metadata = metadata
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._wake_poll = wake_poll
        self._asked: dict[TopicPartition, int] = {}
        """Number of the last question for each partition: an answer to an earlier question does not count."""
        self._last_number = 0
        self._asking: asyncio.Task[None] | None = None
        self._error: StrandlineError | None = None
        """Error of the last attempt, if no poll has raised it yet."""
        metadata.subscribe(self._topics_came)

    def ask(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the next `place` find where these partitions begin."""
        self._last_number += 1
        for item in partitions:
            self._asked[item] = self._last_number
            self._states[item].placing = True

    def drop(self, item: TopicPartition) -> None:
        """Look no more for where this partition begins: it begins elsewhere, or is not read any more."""
        if item in self._asked:
            del self._asked[item]
            if item in self._states:
                self._states[item].placing = False

    def drop_given_up(self) -> None:
        """Look no more for partitions that are not read any more."""
        self._asked = {item: number for item, number in self._asked.items() if item in self._states}

    def place(self) -> None:
        """Begin the partitions that were asked for: those whose topic is known; the others with another call.

        It goes on when the poll that called this has ended: no poll waits longer for it than it was told to wait.

        Raises:
            KafkaError, ClientTimeout: the last attempt has failed so.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error.with_traceback(None)
        if self._asked and self._asking is None:
            self._asking = self._tasks.spawn("a look-up of what a group has committed", self._place())

    async def _place(self) -> None:
        asked = dict(self._asked)
        try:
            found = await self._commits.stored(list(asked), self._timeout_ms)
        except StrandlineError as error:
            self._error = error
        else:
            for item, offset in found.items():
                if self._asked.get(item) == asked[item]:
                    self.begin(item, offset)
        finally:
            self._asking = None
        news = self._error is not None or self._asked != asked
        for item in self._asked:
            if not self._metadata.is_known(item.topic):
                state = self._states[item]
                if state.error is None:  # else a poll has not said so yet, and is not to look again at once
                    state.error = self._metadata.absence(item)
                    news = news or state.error is not None
                self._metadata.want((item.topic,))
                self._metadata.request_update()
        if news:
            self._wake_poll()

    def begin(self, item: TopicPartition, offset: OffsetAndMetadata | None) -> None:
        """Begin a partition at what its group has committed (None: nothing). A seek meanwhile wins."""
        state = self._states[item]
        if offset is not None and state.is_of_another(offset.topic_id):
            return  # the topic was made anew since the last poll looked: the next look says so first
        self.drop(item)
        self._commits.progress.start(item, offset)
        if offset is not None and state.position is None and state.reset_to is None:
            state.seek(offset.offset, offset.leader_epoch)
            state.topic_id = offset.topic_id
            # A newer leader is asked whether it has what was read (KIP-320).
            state.checked_epoch = offset.leader_epoch  # rule B39/commits-pass-over-a-cut

    def _topics_came(self) -> None:
        if self._asked:
            self._wake_poll()
