"""How far a streaming query has come: the JSON that Spark keeps in the query's checkpoint.

    {"version": 1, "topics": {"orders": {"id": "6f1c...", "offsets": {"0": 23, "1": 17}, "epochs": {"0": 4, "1": 4}}}}

`id` is the topic's id: a topic that was deleted and created anew has another one, however many records it holds.
`epochs` are the leader epochs in which the log reached these offsets: a log that was cut since, and has grown beyond
them again, is known by them (rule B36, KIP-320). Older releases leave them out, and read over them.
`since` is where the range that ends here begins, if not at the offset before: in the first offsets of a query, so that
a first batch that is repeated after a restart begins where it did before, and not at a new "latest"; and behind a log
that was cut, where failOnDataLoss=false accepts it.
`tasks` stands in the offset that ends a batch: how its offsets were cut into tasks, and into how many. A batch that is
repeated is cut the same way, whatever the options say by then: the sink knows rows by the range that they came from.

A release reads every version up to its own, and the plain form of Spark's own Kafka source, {"orders": {"0": 23}}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition

VERSION = 1
"""The version of the JSON that this release writes."""

_ADVICE = "an offset of this source; the checkpoint is of another source, or damaged: restore it, or start a new one"


@dataclass(frozen=True)
class Tasks:
    """Division into tasks of the batch that ends at an offset."""

    count: int
    min_partitions: int | None = None
    max_records_per_partition: int | None = None

    def to_json(self) -> dict[str, int]:
        """The form of the checkpoint: under the names of the options, those that were set."""
        told = {
            "count": self.count,
            "minPartitions": self.min_partitions,
            "maxRecordsPerPartition": self.max_records_per_partition,
        }
        return {name: number for name, number in told.items() if number is not None}


@dataclass(frozen=True)
class StreamOffset:
    """The next offset to read of every partition, and the ids of their topics where the cluster has such."""

    offsets: dict[TopicPartition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    since: StreamOffset | None = None
    """Start of the range that ends here; None if the range begins at the offset before."""
    tasks: Tasks | None = None
    """Division into tasks of the batch that ends here; None in an older checkpoint, where the options define it."""
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """The leader epochs in which the logs reached these offsets, where they are known."""

    def same_place(self, other: StreamOffset) -> bool:
        """Whether both are at the same offsets of the same topics."""
        return self.offsets == other.offsets and self.ids == other.ids

    def to_json(self) -> dict[str, Any]:
        """The form of the checkpoint."""
        document: dict[str, Any] = {"version": VERSION, "topics": _topics_to_json(self)}
        if self.since is not None:
            document["since"] = _topics_to_json(self.since)
        if self.tasks is not None:
            document["tasks"] = self.tasks.to_json()
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StreamOffset:
        """Read any version up to this release's, or the plain form of Spark's own Kafka source.

        Raises:
            ConfigError: a newer version, or none of these forms.
        """
        if not isinstance(document, dict):
            raise ConfigError("checkpoint", json.dumps(document), _ADVICE)
        version = document.get("version")
        if not isinstance(version, int):
            plain = {topic: {"offsets": offsets} for topic, offsets in document.items()}
            return _topics_from_json(plain, None, document)
        if version > VERSION:
            raise ConfigError(
                "checkpoint",
                f"version {version}",
                f"version {VERSION} or older: a newer release of strandline wrote it",
            )
        since = document.get("since")
        first = None if since is None else _topics_from_json(since, None, document)
        end = _topics_from_json(document.get("topics"), first, document)
        return replace(end, tasks=_tasks_from_json(document))


def _topics_to_json(offset: StreamOffset) -> dict[str, Any]:
    topics: dict[str, Any] = {}
    for partition in sorted(offset.offsets):
        topic = topics.setdefault(partition.topic, {"offsets": {}})
        topic["offsets"][str(partition.partition)] = offset.offsets[partition]
        if partition in offset.epochs:
            topic.setdefault("epochs", {})[str(partition.partition)] = offset.epochs[partition]
    for name, topic in topics.items():
        if name in offset.ids:
            topic["id"] = offset.ids[name]
    return topics


def _topics_from_json(topics: object, since: StreamOffset | None, document: Mapping[str, Any]) -> StreamOffset:
    offsets: dict[TopicPartition, int] = {}
    epochs: dict[TopicPartition, int] = {}
    ids: dict[str, str] = {}
    try:
        if not isinstance(topics, dict):
            raise TypeError("no topics")
        for name, topic in topics.items():
            for partition, offset in topic["offsets"].items():
                if type(offset) is not int or offset < 0:
                    raise ValueError(offset)
                offsets[TopicPartition(name, int(partition))] = offset
            for partition, epoch in topic.get("epochs", {}).items():
                if type(epoch) is not int or epoch < 0:
                    raise ValueError(epoch)
                epochs[TopicPartition(name, int(partition))] = epoch
            if "id" in topic:
                ids[name] = str(topic["id"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError("checkpoint", json.dumps(document), _ADVICE) from None
    return StreamOffset(offsets, ids, since, epochs=epochs)


def _tasks_from_json(document: Mapping[str, Any]) -> Tasks | None:
    told = document.get("tasks")
    if told is None:
        return None
    try:
        tasks = Tasks(told["count"], told.get("minPartitions"), told.get("maxRecordsPerPartition"))
    except (AttributeError, KeyError, TypeError):
        raise ConfigError("checkpoint", json.dumps(document), _ADVICE) from None
    limits = (tasks.min_partitions, tasks.max_records_per_partition)
    if not _is_number(tasks.count, 0) or not all(limit is None or _is_number(limit, 1) for limit in limits):
        raise ConfigError("checkpoint", json.dumps(document), _ADVICE)
    return tasks


def _is_number(value: object, least: int) -> bool:
    return type(value) is int and least <= value < 2**63
