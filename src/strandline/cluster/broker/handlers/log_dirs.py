"""DescribeLogDirs (35) and AlterReplicaLogDirs (34): the replicas in a broker's log directories, and moves between
these. Each broker answers for itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import Authorizer, RequestContext, require
from strandline.cluster.broker.slow_requests import some_of
from strandline.log.disk import DiskError
from strandline.log.log_dir import LogDir
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.steps import FEW, Mapped, Steps, at_once, each, grouped
from strandline.replica.manager import ReplicaManager

log = structlog.get_logger("strandline.broker")


class ReplicaOnDisk(NamedTuple):
    """A replica in a log directory. `lag`: offsets by which its log end is behind the high watermark, or, for a copy
    that is still being made (`is_future`, KIP-113), behind the copied log."""

    topic: str
    partition: int
    size_bytes: int
    lag: int
    is_future: bool = False


class LogDirDescription(NamedTuple):
    """A log directory of this broker; sizes in bytes, of its file system (-1: unknown). `error`: set if offline."""

    path: str
    replicas: list[ReplicaOnDisk]
    total_bytes: int
    usable_bytes: int
    error: ErrorCode = ErrorCode.NONE


class LogDirsHandler:
    """Describes the log directories, and moves replicas between them."""

    def __init__(self, *, replicas: ReplicaManager, authorizer: Authorizer) -> None:
        self._replicas = replicas
        self._authorizer = authorizer

    def describe(self, call: Call) -> Steps[Any]:
        """Answer DescribeLogDirs: this broker's replicas of the named partitions, or all replicas."""
        topics = call.request.topics
        wanted = None if topics is None else {topic.topic: frozenset(topic.partitions) for topic in topics}
        return (yield from _described_all((yield from self._describe(call.context, wanted))))

    def _describe(
        self, context: RequestContext, wanted: Mapping[str, frozenset[int]] | None
    ) -> Steps[list[LogDirDescription]]:
        """Return the log directories with this broker's replicas of the `wanted` partitions by topic; None: all.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED.
        """
        require(self._authorizer, context, Operation.DESCRIBE, CLUSTER)
        log_dirs = self._replicas.log_dirs
        replicas: dict[str, list[ReplicaOnDisk]] = {log_dir.path: [] for log_dir in log_dirs.dirs}
        for number, status in enumerate(self._replicas.hosted(), 1):
            if number % FEW == 0:
                yield
            if status.directory and (wanted is None or status.partition in wanted.get(status.topic, ())):
                lag = max(0, status.high_watermark - status.log_end_offset)
                found = ReplicaOnDisk(status.topic, status.partition, status.size_bytes, lag)
                replicas[status.directory].append(found)
        for tp, move in self._replicas.mover.moves.items():
            if not move.target.failed and (wanted is None or tp.partition in wanted.get(tp.topic, ())):
                future = ReplicaOnDisk(tp.topic, tp.partition, move.size_bytes, move.lag, is_future=True)
                replicas[move.target.path].append(future)
        offline = [LogDirDescription(path, [], -1, -1, ErrorCode.KAFKA_STORAGE_ERROR) for path in log_dirs.offline]
        return [_described(log_dir, replicas[log_dir.path]) for log_dir in log_dirs.usable] + offline

    # Moving replicas

    def alter(self, call: Call) -> Steps[Any]:
        """Answer AlterReplicaLogDirs: begin to move each named replica (KIP-113). The response has no message field, so
        the reasons of failures are logged.

        Errors of a replica: those of `Mover.ask`. Raises KafkaError CLUSTER_AUTHORIZATION_FAILED.
        """
        require(self._authorizer, call.context, Operation.ALTER, CLUSTER)
        reasons: list[KafkaError] = []
        outcomes = yield from each(lambda wanted: self._alter(*wanted, reasons), _wanted(call))
        if reasons:
            log.warning("replicas are not moved", reasons=some_of(reasons, len(reasons)))
        return _altered((yield from grouped(outcomes)))

    def _alter(self, tp: TopicPartition, path: str, reasons: list[KafkaError]) -> tuple[str, tuple[int, ErrorCode]]:
        try:
            self._replicas.mover.ask(tp, path)
        except KafkaError as error:
            reasons.append(error)
            return tp.topic, (tp.partition, error.code)
        return tp.topic, (tp.partition, ErrorCode.NONE)

    def refuse_alter(self, call: Call, error: ErrorCode, message: str) -> Any:
        """Return a response with `error` for each named replica."""
        return _altered(at_once(grouped((tp.topic, (tp.partition, error)) for tp, _ in _wanted(call))))


def _wanted(call: Call) -> Iterator[tuple[TopicPartition, str]]:
    for wanted in call.request.dirs:
        for topic in wanted.topics:
            for number in topic.partitions:
                yield TopicPartition(topic.name, number), wanted.path


def _altered(outcomes: Mapping[str, list[tuple[int, ErrorCode]]]) -> Any:
    def result(number_and_error: tuple[int, ErrorCode]) -> Any:
        return part(partition_index=number_and_error[0], error_code=number_and_error[1])

    def topic(name: str, found: list[tuple[int, ErrorCode]]) -> Any:
        return part(topic_name=name, partitions=Mapped(result, found))

    return part(results=Mapped(topic, outcomes, outcomes.values()))


def _described(log_dir: LogDir, replicas: list[ReplicaOnDisk]) -> LogDirDescription:
    disk, path = log_dir.disk, log_dir.path
    try:
        return LogDirDescription(path, replicas, disk.total_bytes(path), disk.free_bytes(path))
    except DiskError:
        return LogDirDescription(path, replicas, -1, -1)


def _described_all(found: Sequence[LogDirDescription]) -> Steps[Any]:
    results = []
    for log_dir in found:
        topics = yield from grouped((replica.topic, replica) for replica in log_dir.replicas)
        result = part(
            error_code=log_dir.error,
            log_dir=log_dir.path,
            topics=Mapped(_topic_on_disk, topics, topics.values()),
            total_bytes=log_dir.total_bytes,
            usable_bytes=log_dir.usable_bytes,
        )
        results.append(result)
    return part(error_code=ErrorCode.NONE, results=results)


def _topic_on_disk(name: str, replicas: list[ReplicaOnDisk]) -> Any:
    return part(name=name, partitions=Mapped(_replica_on_disk, replicas))


def _replica_on_disk(replica: ReplicaOnDisk) -> Any:
    return part(
        partition_index=replica.partition,
        partition_size=replica.size_bytes,
        offset_lag=replica.lag,
        is_future_key=replica.is_future,
    )


def _replicas_moved(request: Any, answer: Any) -> Iterator[Change]:
    paths = {
        (topic.name, number): wanted.path
        for wanted in request.dirs
        for topic in wanted.topics
        for number in topic.partitions
    }
    for topic in answer.results:
        for one in topic.partitions:
            path = paths.get((topic.topic_name, one.partition_index))
            yield f"replica of {topic.topic_name}-{one.partition_index}: to {path}", one.error_code


ROWS = (
    by_schema(
        Api.ALTER_REPLICA_LOG_DIRS,
        (1, 2),
        LogDirsHandler,
        LogDirsHandler.alter,
        refuse=LogDirsHandler.refuse_alter,
        changes=_replicas_moved,
    ),
    by_schema(Api.DESCRIBE_LOG_DIRS, (1, 5), LogDirsHandler, LogDirsHandler.describe),
)
