"""Committed offsets: commit, read, delete and expire them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from strandline.cluster.groups.classic.group import CONSUMER_PROTOCOL, Group, GroupState
from strandline.cluster.groups.classic.rebalance import Rebalancing
from strandline.cluster.groups.commands import (
    UNSTABLE,
    CommitOffsets,
    DeleteOffsets,
    FetchedOffsets,
    FetchOffsets,
    ForgetTopics,
)
from strandline.cluster.groups.consumer_protocol.group import ConsumerGroup
from strandline.cluster.groups.consumer_protocol.protocol import ConsumerProtocol
from strandline.cluster.groups.context import ShardContext, client_error
from strandline.cluster.groups.machine import WriteOutcome
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.group_records import NEVER, OffsetKey, OffsetValue, group_record, offset_record
from strandline.proto.kafka.keyed_record import Record
from strandline.proto.marks import mark

RECORDS_PER_WRITE = 1000
"""Maximum tombstones in one batch when offsets are deleted."""


class OffsetStore:
    """Committed offsets of this shard's groups. Memory changes only by replaying records of the log.

    An offset belongs to a topic id, not to a name (schedule 63): an offset of a deleted topic is in no answer. It is
    deleted when the topic's deletion is received, when the log is loaded, and with the periodic expiry.
    """

    def __init__(
        self,
        context: ShardContext,
        rebalancing: Rebalancing,
        consumer_protocol: ConsumerProtocol,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._context = context
        self._rebalancing = rebalancing
        self._consumer_protocol = consumer_protocol
        self._image = image

    def put(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """Replay a record of the log, in the log's order: the last one is valid, whether its offset is smaller or
        larger (schedule 44)."""
        if self._context.pending.open:
            self._context.pending.end(key)  # rule C17/pending-offset-outlives-a-later-one
        self._count(key, value)

    def put_pending(self, key: OffsetKey, value: OffsetValue | None, producer_id: int) -> None:
        """Replay a record of an open transaction."""
        self._context.pending.put(key, value, producer_id)
        self.keep(key.group)

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Replay a transaction marker. It takes effect whatever state the group is in (redpanda#5543)."""
        for key, value in self._context.pending.take(producer_id, commit=commit):
            if commit:
                self._count(key, value)
            elif not self._context.has_offsets(key.group):
                self._forget_keeper(key.group)

    def _count(self, key: OffsetKey, value: OffsetValue | None) -> None:
        offsets = self._context.offsets
        if value is not None:
            offsets.setdefault(key.group, {}).setdefault(key.topic, {})[key.partition] = value
            self.keep(key.group)
            return
        topics = offsets.get(key.group, {})
        partitions = topics.get(key.topic, {})
        partitions.pop(key.partition, None)
        if key.topic in topics and not partitions:
            del topics[key.topic]
        if key.group in offsets and not topics:
            del offsets[key.group]
        if not self._context.has_offsets(key.group):
            self._forget_keeper(key.group)

    def keep(self, group_id: str) -> None:
        """Create an empty group for offsets without a group, if there are any: they were committed by a client that is
        no member, or left by a group that has ended. Such a group can be listed and deleted, and its offsets expire."""
        context = self._context
        known = group_id in context.groups or group_id in context.consumer_groups
        if not known and context.has_offsets(group_id):
            context.groups[group_id] = Group(group_id, stored=True)

    def _forget_keeper(self, group_id: str) -> None:
        """Forget a group that only kept offsets and has none any more: it has no records in the log, so a coordinator
        that loads the log does not know it either."""
        group = self._context.groups.get(group_id)
        if group is not None and group.protocol_type is None:
            group.stored = False
            self._context.forget_if_unused(group)

    # Commit

    def commit(self, command: CommitOffsets, to: object, now: Now) -> None:
        """Commit offsets, and answer when they are committed. Offsets whose metadata text is too long are refused, the
        others are written."""
        self._check(command, now)
        errors = []
        records = []
        limit = self._context.config.offset_metadata_max_bytes
        expire_ms = NEVER if command.retention_ms is None else now.wall_ms + command.retention_ms
        for one in command.offsets:
            if len(one.metadata.encode()) > limit:
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            else:  # a negative offset is kept too: kafkajs commits -2 or -1, "none yet", to go to its default
                errors.append(ErrorCode.NONE)
                value = OffsetValue(one.offset, one.leader_epoch, one.metadata, now.wall_ms, expire_ms, one.topic_id)
                records.append(offset_record(OffsetKey(command.group_id, one.topic, one.partition), value))

        def written(outcome: WriteOutcome, _now: Now) -> None:
            if outcome.error is not ErrorCode.NONE:
                code = client_error(outcome.error)
                if outcome.error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
                    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                answers = [code if error is ErrorCode.NONE else error for error in errors]
                self._context.out.reply(to, answers)
            else:
                self._context.out.reply(to, errors)

        if records:
            self._context.counters.offset_commits += len(records)
            self._context.out.write(tuple(records), written, transaction=command.transaction)
        else:
            self._context.out.reply(to, errors)

    def _check(self, command: CommitOffsets, now: Now) -> None:
        """Check that the client may commit to this group. Raises KafkaError (rule C7)."""
        consumer_group = self._context.consumer_groups.get(command.group_id)
        if consumer_group is not None:
            _check_consumer_group(consumer_group, command)
            return
        group = self._context.groups.get(command.group_id)
        if group is None:
            if command.generation >= 0:
                raise KafkaError(command.unknown_group, f"there is no group {command.group_id!r}")
            return  # Java's consumer tells its instance id also where its partitions are assigned by hand
        if command.generation < 0 and group.is_empty:
            return  # an administrator, or a consumer that assigns its partitions by hand
        if command.generation < 0 and not command.member_id and command.instance_id is None:
            if command.transaction is not None:
                return  # a producer that is told no group metadata, as before KIP-447: its epoch alone fences it
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members; only they commit")
        member = group.check_member(command.member_id, command.instance_id)
        if command.generation != group.generation:  # rule C7/older-generation-commits-in-a-transaction
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if command.transaction is not None:
            return  # a producer's work tells nothing of the consumer's life, and it cannot join anew by itself
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalancing.renew_session(group, member, now)

    # Fetch

    def fetch(self, command: FetchOffsets, to: object) -> None:
        """Answer with the committed offsets; an unknown group has none. Raises KafkaError if the client names a member
        of the consumer protocol that does not exist or has another epoch."""
        consumer_group = self._context.consumer_groups.get(command.group_id)
        if consumer_group is not None and command.member_id and not (consumer_group.is_empty and command.epoch < 0):
            consumer_group.check_epoch(command.member_id, command.epoch)
        known = self._context.offsets.get(command.group_id, {})
        found: FetchedOffsets = []
        if command.topics is None:
            for topic, partitions in known.items():
                living = [
                    (number, value) for number, value in partitions.items() if not self._is_of_another(topic, value)
                ]
                if living:
                    found.append((topic, list(living)))
        else:
            for topic, numbers in command.topics:
                values = known.get(topic, {})
                found.append((topic, [(number, self._living(topic, values.get(number))) for number in numbers]))
        unstable = command.stable and self._context.pending.has_group(command.group_id)
        if unstable:  # rule C7/unstable-offset-is-told
            found = self._stable(command, found)
        if command.stable and not unstable:  # rule C34/stable-offsets-without-proof
            self._tell_when_proven(command.group_id, found, to)
        else:
            self._context.out.reply(to, found, after_writes=True)

    def _tell_when_proven(self, group_id: str, found: FetchedOffsets, to: object) -> None:
        """Answer once a record that is written now is committed: this proves that no other coordinator had taken over.
        The record is a tombstone of an offset that no group has; compaction removes it.

        If too few replicas are in sync for any write, the answer is sent without this proof.
        """

        def written(outcome: WriteOutcome, _now: Now) -> None:
            if outcome.error is ErrorCode.NONE:
                self._context.out.reply(to, found)
            elif outcome.error is ErrorCode.NOT_ENOUGH_REPLICAS and not outcome.written:
                self._context.out.reply(to, found, after_writes=True)
            else:
                self._context.out.reply(to, KafkaError(client_error(outcome.error)))

        self._context.out.write((offset_record(OffsetKey(group_id, "", -1), None),), written, replay=False)

    def _stable(self, command: FetchOffsets, found: FetchedOffsets) -> FetchedOffsets:
        """Return `found` with UNSTABLE for partitions that have an offset in an open transaction. If the client asks
        for the whole group, partitions that have only such an offset are added."""
        pending = dict.fromkeys(self._context.pending.of_group(command.group_id))
        told: FetchedOffsets = []
        for topic, values in found:
            told.append((topic, [(one, UNSTABLE if (topic, one) in pending else value) for one, value in values]))
            for one, _ in values:
                pending.pop((topic, one), None)
        if command.topics is None:
            for topic, one in pending:
                told.append((topic, [(one, UNSTABLE)]))
        return told

    def _living(self, topic: str, value: OffsetValue | None) -> OffsetValue | None:
        # schedule 63/offset-of-another-topic-told
        return None if value is None or self._is_of_another(topic, value) else value

    def _is_of_another(self, topic: str, value: OffsetValue) -> bool:
        """True if the topic's name now belongs to another topic."""
        living = self._image().topics.get(topic)
        return living is not None and value.topic_id is not None and value.topic_id != living.topic_id

    # Take back

    def delete(self, command: DeleteOffsets, to: object) -> None:
        """Delete offsets of topics that no member of the group reads at this moment; other topics are refused."""
        read = self._read_now(command.group_id)
        errors = []
        records = []
        for topic, partition in command.partitions:
            if topic in read:
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            errors.append(ErrorCode.NONE)
            if self._has(command.group_id, topic, partition):
                records.append(offset_record(OffsetKey(command.group_id, topic, partition), None))

        def written(outcome: WriteOutcome, _now: Now) -> None:
            if outcome.error is not ErrorCode.NONE:
                self._context.out.reply(to, KafkaError(client_error(outcome.error)))
            else:
                self._context.out.reply(to, errors)

        if records:
            self._context.counters.offset_deletions += len(records)
            self._context.out.write(tuple(records), written)
        else:
            self._context.out.reply(to, errors, after_writes=True)

    def _read_now(self, group_id: str) -> Container[str]:
        """Return the topics that members of the group read; every topic while the subscriptions of consumers are not
        known.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP for members of another protocol type.
        """
        consumer_group = self._context.consumer_groups.get(group_id)
        if consumer_group is not None:
            return self._consumer_protocol.subscribed(consumer_group)
        group = self._context.group(group_id)
        if group.is_empty:
            return ()
        if group.protocol_type != CONSUMER_PROTOCOL:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "it is not known what its members read")
        topics = group.subscribed()
        return _EVERY_TOPIC if topics is None else topics

    def _has(self, group_id: str, topic: str, partition: int) -> bool:
        committed = partition in self._context.offsets.get(group_id, {}).get(topic, {})
        return committed or self._is_pending(group_id, topic, partition)

    def _is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return bool(self._context.pending.producers(group_id, topic, partition))

    def delete_group(self, group_id: str, to: object) -> None:
        """Delete a group and all its committed offsets. Raises KafkaError GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        consumer_group = self._context.consumer_groups.get(group_id)
        group = self._context.group(group_id) if consumer_group is None else consumer_group
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
        if self._context.pending.has_group(group_id):  # rule C17/group-of-an-open-transaction-is-deleted
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"an open transaction has offsets of group {group_id!r}")
        ends = (group_record(group_id, None),) if consumer_group is None else tuple(consumer_group.tombstones())

        def written(outcome: WriteOutcome, _now: Now) -> None:
            failed = outcome.error is not ErrorCode.NONE
            self._context.out.reply(to, KafkaError(client_error(outcome.error)) if failed else None)

        self._context.out.write((*self._tombstones(group_id), *ends), written)

    def _tombstones(self, group_id: str) -> Iterator[Record]:
        for topic, partitions in self._context.offsets.get(group_id, {}).items():
            for partition in partitions:
                yield offset_record(OffsetKey(group_id, topic, partition), None)

    def forget_topics(self, command: ForgetTopics, to: object) -> None:
        """Delete the offsets of topics that were deleted. A topic that is created later under the same name is another
        topic, and its consumers start without offsets. An offset without a topic id was committed before the
        deletion."""
        # schedule 63/deletion-forgets-the-new-topic
        gone = [
            OffsetKey(group_id, topic, partition)
            for group_id, topics in self._context.offsets.items()
            for topic in command.topics
            for partition, value in topics.get(topic, {}).items()
            if value.topic_id is None or self._is_gone(topic, value)
        ]
        gone += [
            key
            for key, value in self._context.pending.all()
            if key.topic in command.topics
            and (value is None or value.topic_id is None or self._is_gone(key.topic, value))
        ]
        self._forget(gone)
        self._context.out.reply(to, None)

    def forget_gone(self) -> None:
        """Delete offsets of topics that were deleted while no broker served these groups, or whose tombstones could not
        be written then.

        The metadata of this partition's leader are never older than those by which any offset in it was accepted: a
        coordinator that learns of a topic has learned of every election before it. So a topic that is not in them was
        deleted.
        """
        gone = [
            OffsetKey(group_id, topic, partition)
            for group_id, topics in self._context.offsets.items()
            for topic, partitions in topics.items()
            for partition, value in partitions.items()
            if self._is_gone(topic, value)
        ]
        pending = self._context.pending.all()
        gone += [key for key, value in pending if value is not None and self._is_gone(key.topic, value)]
        if gone:
            mark("offsets-of-deleted-topic-dropped")
        self._forget(gone)

    def _is_gone(self, topic: str, value: OffsetValue) -> bool:
        return topic not in self._image().topics or self._is_of_another(topic, value)

    def _forget(self, gone: list[OffsetKey]) -> None:
        """Write tombstones for these offsets; they end pending offsets of the same partitions, too."""
        keys = dict.fromkeys(gone)
        self._context.counters.offset_deletions += len(keys)
        self._write_in_pieces([offset_record(key, None) for key in keys])

    # Expiry

    def expire(self, now: Now) -> None:
        """Delete offsets that were not used for the retention time (KIP-211), and groups that have neither offsets nor
        members."""
        self.forget_gone()
        for group in list(self._context.groups.values()):
            records = [offset_record(key, None) for key in self._expired(group, now)]
            self._context.counters.offset_expirations += len(records)
            kept = sum(map(len, self._context.offsets.get(group.group_id, {}).values())) - len(records)
            if not kept and group.is_empty and not group.size and not self._context.pending.has_group(group.group_id):
                if group.stored:
                    records.append(group_record(group.group_id, None))
                else:
                    self._context.forget_if_unused(group)
            self._write_in_pieces(records)
        for consumer_group in list(self._context.consumer_groups.values()):
            self._expire_consumer_group(consumer_group, now)

    def _expire_consumer_group(self, group: ConsumerGroup, now: Now) -> None:
        """Delete offsets whose retention time since their commit has passed, of topics that no member reads any
        more."""
        read = self._consumer_protocol.subscribed(group)
        offsets = self._context.offsets.get(group.group_id, {})
        expired = [
            OffsetKey(group.group_id, topic, partition)
            for topic, partitions in offsets.items()
            if topic not in read
            for partition, value in partitions.items()
            if now.earliest_ms >= self._ends_ms(value, value.commit_ms)
            and not self._is_pending(group.group_id, topic, partition)
        ]
        self._context.counters.offset_expirations += len(expired)
        records = [offset_record(key, None) for key in expired]
        all_expired = len(expired) == sum(map(len, offsets.values()))
        if group.is_empty and all_expired and not self._context.pending.has_group(group.group_id):
            records += group.tombstones()
        self._write_in_pieces(records)

    def _ends_ms(self, value: OffsetValue, since_ms: int) -> int:
        """Return the wall-clock time in milliseconds after which an unused offset may be deleted."""
        return since_ms + self._context.config.offsets_retention_ms if value.expire_ms == NEVER else value.expire_ms

    def _expired(self, group: Group, now: Now) -> Iterator[OffsetKey]:
        """Yield the expired offsets of a classic group. For a group without members the retention time counts from when
        it became empty; for topics that the members no longer read, and for a group that only keeps offsets, from the
        commit. During a rebalance nothing expires."""
        used: tuple[str, ...] | None = ()
        since_empty = NEVER
        if group.protocol_type is not None and group.is_empty:
            since_empty = group.state_ms
        elif group.protocol_type is not None:
            used = group.subscribed() if group.state is GroupState.STABLE else None
        if used is None:
            return
        for topic, partitions in self._context.offsets.get(group.group_id, {}).items():
            if topic in used:
                continue
            for partition, value in partitions.items():
                # rule C17/offset-of-an-open-transaction-expires
                if self._is_pending(group.group_id, topic, partition):
                    continue  # a tombstone behind it would take what the transaction commits (redpanda#31483)
                # rule B32/offsets-expire-by-a-clock-set-ahead
                if now.earliest_ms >= self._ends_ms(value, value.commit_ms if since_empty == NEVER else since_empty):
                    yield OffsetKey(group.group_id, topic, partition)

    def _write_in_pieces(self, records: list[Record]) -> None:
        """Write records in batches. Nothing waits for the result: a failed write is repeated with the next expiry."""
        for start in range(0, len(records), RECORDS_PER_WRITE):
            piece = tuple(records[start : start + RECORDS_PER_WRITE])
            self._context.out.write(piece, lambda _outcome, _now: None)


class _EveryTopic(Container[str]):
    def __contains__(self, topic: object) -> bool:
        return True


_EVERY_TOPIC = _EveryTopic()


def _check_consumer_group(group: ConsumerGroup, command: CommitOffsets) -> None:
    """Check that the client may commit to a group of the consumer protocol: a member with its current epoch may, and
    any client while the group has no members. Raises KafkaError."""
    if command.generation < 0 and group.is_empty:
        return
    in_transaction = command.transaction is not None
    if in_transaction and command.generation < 0 and not command.member_id and command.instance_id is None:
        return
    member = group.check_member(command.member_id)
    if not in_transaction and member.classic is None and not command.knows_epochs:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this version of OffsetCommit knows no member epochs")
    try:
        group.check_epoch(command.member_id, command.generation)
    except KafkaError as error:
        if in_transaction and not command.knows_epochs and error.code is ErrorCode.STALE_MEMBER_EPOCH:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.message) from error
        raise
