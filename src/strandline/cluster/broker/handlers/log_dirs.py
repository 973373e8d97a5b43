"""DescribeLogDirs (35): what one broker stores. Each broker answers for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, part
from strandline.cluster.broker.request import Authorizer, RequestContext, allowed
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.replica.manager import ReplicaManager


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


class LogDirsHandler:
    """Describes the log directory."""

    def __init__(self, *, replicas: ReplicaManager, authorizer: Authorizer) -> None:
        self._replicas = replicas
        self._authorizer = authorizer

    def describe(self, call: Call) -> Any:
        """The replicas of this broker: of the partitions named, or all of them."""
        topics = call.request.topics
        wanted = None if topics is None else {topic.topic: topic.partitions for topic in topics}
        return _respond(ErrorCode.NONE, self._describe(call.context, wanted))

    def refuse(self, call: Call, error: ErrorCode, message: str) -> Any:
        """The answer is this error."""
        return _respond(error, None)

    def _describe(self, context: RequestContext, wanted: Mapping[str, Sequence[int]] | None) -> LogDirDescription:
        """The replicas of this broker: of the partitions named, or all of them for None.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED.
        """
        if not allowed(self._authorizer, context, Operation.DESCRIBE, CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        log_dir = self._replicas.log_dir
        replicas = [
            ReplicaOnDisk(
                status.topic,
                status.partition,
                status.size_bytes,
                max(0, status.high_watermark - status.log_end_offset),
            )
            for status in self._replicas.hosted()
            if wanted is None or status.partition in wanted.get(status.topic, ())
        ]
        disk, path = log_dir.disk, log_dir.path
        return LogDirDescription(path, replicas, disk.total_bytes(path), disk.free_bytes(path))


def _respond(error: ErrorCode, found: LogDirDescription | None) -> Any:
    results: tuple[Any, ...] = ()
    if found is not None:
        topics: dict[str, list[Any]] = {}
        for replica in found.replicas:
            partition = part(
                partition_index=replica.partition,
                partition_size=replica.size_bytes,
                offset_lag=replica.lag,
                is_future_key=False,
            )
            topics.setdefault(replica.topic, []).append(partition)
        result = part(
            error_code=ErrorCode.NONE,
            log_dir=found.path,
            topics=tuple(part(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()),
            total_bytes=found.total_bytes,
            usable_bytes=found.usable_bytes,
        )
        results = (result,)
    return part(error_code=error, results=results)
