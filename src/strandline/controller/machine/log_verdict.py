"""Whether the replicas of a broker that registers anew still count, by what it says of its logs (docs/correctness.md,
"After a crash: who may lead").

| the broker                                                      | verdict      |
|-----------------------------------------------------------------|--------------|
| has another directory, or an older copy of it                   | LOST         |
| lacks what the directory's own checkpoints prove that it had    | LOST         |
| had its log in one of several directories, which was replaced   | LOST         |
| has records of a leader epoch that there has not been           | LOST         |
| cut a tail that was no zeros, or has no such partition          | IN_DOUBT     |
| found its log intact                                            | KEPT         |
| has its directory offline, one of several; acks are synced      | KEPT         |
| found it intact after an unclean stop, and acks are not synced  | IN_DOUBT     |
| has its directory offline, and acks are not synced              | IN_DOUBT     |
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from strandline.controller.broker_api import RegisterBrokerRequest
from strandline.controller.metadata.image import TopicInfo
from strandline.controller.metadata.records import PartitionRecord, RegisterBrokerRecord
from strandline.log.findings import LogCondition
from strandline.log.incarnations import incarnation_of_epoch
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ZERO_UUID, LeaderEpoch, TopicIdPartition, TopicPartition
from strandline.proto.marks import mark


class LogVerdict(Enum):
    """Verdict on a replica of a broker that registers anew."""

    KEPT = "it has everything that it had synced: it leaves the ISR, and may be eligible"
    IN_DOUBT = "it may lack the end: it leaves ISR and ELR, and waits for the others of the last ISR"
    LOST = "it lacks what it had: it counts for nothing before it has caught up"


class _Found(NamedTuple):
    condition: LogCondition
    last_epoch: LeaderEpoch


class RegisteredLogs:
    """Report of a registration on the broker's logs, and the verdict on each of them."""

    def __init__(self, request: RegisterBrokerRequest, existing: RegisterBrokerRecord | None) -> None:
        """Raises KafkaError INVALID_REQUEST where the columns of the findings do not fit together."""
        self.everything_lost = existing is None or _is_another_directory(request, existing)
        # rule B11/any-clean-marker-will-do
        self.clean = existing is not None and existing.broker_epoch == request.previous_broker_epoch
        """The stop before was clean: where a log ends is where it ended then."""
        self._by_id: dict[TopicIdPartition, _Found] = {}
        self._by_name: dict[TopicPartition, _Found] = {}
        for topic in request.findings:
            columns = (topic.partitions, topic.log_end_offsets, topic.last_epochs, topic.conditions)
            if len({*map(len, columns)}) != 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"The findings of topic {topic.topic!r} are columns of unequal length."
                )
            for number, epoch, condition in zip(topic.partitions, topic.last_epochs, topic.conditions, strict=True):
                found = _Found(condition, epoch)
                if topic.topic_id == ZERO_UUID:  # schedule 46/older-topics-log-counts
                    self._by_name[TopicPartition(topic.topic, number)] = found
                else:
                    self._by_id[TopicIdPartition(topic.topic_id, number)] = found

    def verdict(self, topic: TopicInfo, partition: PartitionRecord, *, acks_are_synced: bool) -> LogVerdict:
        """The verdict on its replica of a partition that counts on it."""
        if self.everything_lost:
            return LogVerdict.LOST
        found = self._by_id.get(TopicIdPartition(topic.topic_id, partition.partition))
        if found is None:  # a directory of an older topic of that name is none of this one
            found = self._by_name.get(TopicPartition(topic.name, partition.partition))
        if found is None:
            return LogVerdict.IN_DOUBT  # schedule 46/no-finding-is-intact
        if found.condition is LogCondition.LACKING:  # schedule 46/lacking-log-is-in-doubt
            return LogVerdict.LOST  # schedule 46/lacking-log-counts
        if found.last_epoch > partition.leader_epoch:  # schedule 45/records-of-no-leader-count
            mark("records-of-no-leader")
            return LogVerdict.LOST
        if found.condition is LogCondition.AWAY:  # not served, so not elected; a later start says what is there
            mark("directory-away")
            # rule B12/away-is-lost, rule B12/away-is-kept-unsynced
            return LogVerdict.KEPT if acks_are_synced else LogVerdict.IN_DOUBT
        # schedule 45/cut-log-is-taken-for-whole, rule B11/unsynced-acks-count-as-synced
        # rule B11/clean-stop-is-not-believed
        kept = found.condition is LogCondition.INTACT and (acks_are_synced or self.clean)
        return LogVerdict.KEPT if kept else LogVerdict.IN_DOUBT  # schedule 53/whole-log-is-taken-for-cut


def _is_another_directory(request: RegisterBrokerRequest, existing: RegisterBrokerRecord) -> bool:
    if request.directory_id is None or request.directory_id != existing.directory_id:  # schedule 26/another-disk-counts
        mark("disk-lost")
        return True
    if existing.incarnation_id in request.lives:  # schedule 48/older-copy-counts
        return False
    # rule B13/a-build-without-lives-left-a-copy, rule B13/any-clean-mark-proves-the-directory
    if incarnation_of_epoch(existing.broker_epoch) in request.lives:
        mark("known-by-its-clean-stop")
        return False
    mark("older-copy")
    return True
