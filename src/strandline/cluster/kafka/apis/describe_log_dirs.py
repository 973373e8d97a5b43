"""DescribeLogDirs (35): what one broker stores. Each broker answers for itself."""

from __future__ import annotations

from typing import Any

from strandline.cluster.kafka.api import Call, message_api
from strandline.cluster.service.inspection import LogDirDescription
from strandline.proto.error_codes import ErrorCode


def _respond(call: Call, error: ErrorCode, found: LogDirDescription | None) -> Any:
    results: tuple[Any, ...] = ()
    if found is not None:
        topics: dict[str, list[Any]] = {}
        for replica in found.replicas:
            partition = call.make(
                "DescribeLogDirsPartition",
                partition_index=replica.partition,
                partition_size=replica.size_bytes,
                offset_lag=replica.lag,
                is_future_key=False,
            )
            topics.setdefault(replica.topic, []).append(partition)
        result = call.make(
            "DescribeLogDirsResult",
            error_code=ErrorCode.NONE,
            log_dir=found.path,
            topics=tuple(
                call.make("DescribeLogDirsTopic", name=name, partitions=tuple(partitions))
                for name, partitions in topics.items()
            ),
            total_bytes=found.total_bytes,
            usable_bytes=found.usable_bytes,
        )
        results = (result,)
    return call.make("DescribeLogDirsResponse", throttle_time=0, error_code=error, results=results)


def _answer(call: Call) -> Any:
    topics = call.request.topics
    wanted = None if topics is None else {topic.topic: topic.partitions for topic in topics}
    return _respond(call, ErrorCode.NONE, call.service.describe_log_dir(call.context, wanted))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, error, None)


API = message_api(
    key=35,
    name="DescribeLogDirs",
    schema="describe_log_dirs",
    first=1,
    last=5,
    flexible_since=2,
    refuse=_refuse,
    answer=_answer,
)
