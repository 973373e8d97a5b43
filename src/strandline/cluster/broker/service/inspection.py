"""What lies on this broker's disk, and who has written to it: DescribeLogDirs and DescribeProducers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strandline.cluster.broker.service.authorizer import CLUSTER, Operation, allowed, topic
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.log.producer_state import ProducerEntry
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.replica.states import Role


class ReplicaOnDisk(NamedTuple):
    """One partition in the log directory. `lag` is how many offsets its log end is behind the high watermark."""

    topic: str
    partition: int
    size_bytes: int
    lag: int


class LogDirDescription(NamedTuple):
    """The log directory of this broker; sizes in bytes, of the file system."""

    path: str
    replicas: list[ReplicaOnDisk]
    total_bytes: int
    usable_bytes: int


class ProducersAnswer(NamedTuple):
    """The producers that a partition remembers, or why they cannot be told."""

    topic: str
    partition: int
    error: ErrorCode
    message: str = ""
    producers: Sequence[ProducerEntry] = ()


class Inspection(Base):
    """The operations that look at logs."""

    def describe_log_dir(
        self, context: RequestContext, wanted: Mapping[str, Sequence[int]] | None
    ) -> LogDirDescription:
        """The replicas of this broker: of the partitions named, or all of them for None.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED.
        """
        if not allowed(self.authorizer, context, Operation.DESCRIBE, CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        log_dir = self.replicas.log_dir
        replicas = [
            ReplicaOnDisk(
                status.topic,
                status.partition,
                status.size_bytes,
                max(0, status.high_watermark - status.log_end_offset),
            )
            for status in self.replicas.hosted()
            if wanted is None or status.partition in wanted.get(status.topic, ())
        ]
        disk, path = log_dir.disk, log_dir.path
        return LogDirDescription(path, replicas, disk.total_bytes(path), disk.free_bytes(path))

    def describe_producers(self, context: RequestContext, wanted: Sequence[tuple[str, int]]) -> list[ProducersAnswer]:
        """One answer a partition, in order, from any of its replicas (`kafka-transactions.sh --broker-id` asks each).

        Errors: TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER where no replica
        is, KAFKA_STORAGE_ERROR where it is offline.
        """
        return [self._producers(context, name, partition) for name, partition in wanted]

    def _producers(self, context: RequestContext, name: str, number: int) -> ProducersAnswer:
        if not allowed(self.authorizer, context, Operation.READ, topic(name)):
            return ProducersAnswer(name, number, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if self.image().partition(name, number) is None:
            return ProducersAnswer(name, number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = self.replicas.partition(TopicPartition(name, number))
        if partition is None:
            return ProducersAnswer(name, number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.role is Role.OFFLINE or partition.log is None:
            return ProducersAnswer(name, number, ErrorCode.KAFKA_STORAGE_ERROR)
        return ProducersAnswer(name, number, ErrorCode.NONE, "", partition.log.producers.entries())
