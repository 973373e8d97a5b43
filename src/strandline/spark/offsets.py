"""Options that say where a read starts and ends, in the format of Spark's own Kafka source.

    startingOffsets / endingOffsets                            "earliest", "latest", {"topic": {"0": 23, "1": -2}}
    startingTimestamp / endingTimestamp                        milliseconds, for every partition
    startingOffsetsByTimestamp / endingOffsetsByTimestamp      {"topic": {"0": 1000}}

In the JSON, -2 means earliest and -1 latest. If several options are given, a timestamp for all partitions has priority
over timestamps per partition, and these over offsets, as in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.json_text import read_json

EARLIEST = -2
LATEST = -1

INT64_MAX = 2**63 - 1
"""Maximum offset and timestamp: both have 64 bits on the wire."""


@dataclass(frozen=True)
class Earliest:
    """The first offset that still exists (the log start offset)."""


@dataclass(frozen=True)
class Latest:
    """The last stable offset, or the high watermark, when the read is planned. No record after it is read."""


@dataclass(frozen=True)
class SpecificOffsets:
    """An offset for each partition. EARLIEST (-2) is allowed in a start only, LATEST (-1) where the mode allows it."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, order=True)
class GlobalTimestamp:
    """The first offset whose timestamp is at or after this one (milliseconds), in every partition."""

    timestamp_ms: int


@dataclass(frozen=True)
class SpecificTimestamps:
    """For each partition, the first offset whose timestamp is at or after the partition's own one (milliseconds)."""

    timestamps_ms: Mapping[TopicPartition, int]


Bound = Earliest | Latest | SpecificOffsets | GlobalTimestamp | SpecificTimestamps


OFFSETS = 'JSON such as {"topic": {"0": 23, "1": -2}}, each partition once, numbers of 64 bits'
TIMESTAMPS = 'JSON such as {"topic": {"0": 1700000000000}}, each partition once, milliseconds since 1970'
TIMESTAMP = "a number of milliseconds since 1970, 0 or more"
ASSIGNMENT = 'JSON such as {"topic": [0, 1]}, naming at least one partition'


def parse_partition_numbers(key: str, text: str, allowed: str = OFFSETS) -> dict[TopicPartition, int]:
    """Parse a number for each partition, e.g. {"topic": {"0": 23}}.

    Raises:
        ConfigError: the text is not such a JSON document, or has a key twice. The message gives the option, the value
            and the allowed form.
    """
    document = _read_object(key, text, allowed)
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise ConfigError(key, text, allowed)
        for partition, number in partitions.items():
            if not partition.isdecimal() or str(int(partition)) != partition:
                raise ConfigError(key, text, allowed)
            if type(number) is not int or not -INT64_MAX <= number <= INT64_MAX:
                raise ConfigError(key, text, allowed)
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def _read_object(key: str, text: str, allowed: str) -> dict[str, Any]:
    """Parse a JSON object in which no key occurs twice. Raises ConfigError."""
    try:
        document = read_json(text, object_pairs_hook=_each_once)
    except ValueError:
        raise ConfigError(key, text, allowed) from None
    if not isinstance(document, dict):
        raise ConfigError(key, text, allowed)
    return document


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build a JSON object from its pairs. Raises ValueError for a repeated key, which `json` would silently accept."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key stands twice")
    return document


def parse_assignment(key: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse a list of partitions, e.g. {"topic": [0, 1]}.

    Raises:
        ConfigError: the text is not such a JSON document, or names no partition.
    """
    document = _read_object(key, text, ASSIGNMENT)
    assigned: list[TopicPartition] = []
    for topic, partitions in document.items():
        if not isinstance(partitions, list):
            raise ConfigError(key, text, ASSIGNMENT)
        for partition in partitions:
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise ConfigError(key, text, ASSIGNMENT)
            assigned.append(TopicPartition(topic, partition))
    if not assigned:
        raise ConfigError(key, text, ASSIGNMENT)
    return tuple(sorted(set(assigned)))


def parse_timestamp(key: str, text: str) -> GlobalTimestamp:
    """Parse one timestamp in milliseconds since the epoch. Raises ConfigError if it is not a number, or negative."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= INT64_MAX:
        raise ConfigError(key, text, TIMESTAMP)
    return GlobalTimestamp(value)


def parse_timestamps(key: str, text: str) -> SpecificTimestamps:
    """Parse a timestamp for each partition, e.g. {"topic": {"0": 1000}}, in milliseconds. Raises ConfigError."""
    numbers = parse_partition_numbers(key, text, TIMESTAMPS)
    for partition, number in numbers.items():
        if number < 0:
            raise ConfigError(key, number, f"milliseconds since 1970, 0 or more ({partition})")
    return SpecificTimestamps(numbers)


def parse_starting_offsets(key: str, text: str) -> Bound:
    """Parse `startingOffsets`: "earliest", "latest", or an offset for each partition. Raises ConfigError.

    A batch read refuses some of these: see `check_start`.
    """
    if (word := _WORDS.get(text.lower())) is not None:
        return word
    numbers = parse_partition_numbers(key, text)
    for partition, number in numbers.items():
        if number < EARLIEST:
            raise ConfigError(key, number, f"an offset from 0, or -2 for earliest ({partition})")
    return SpecificOffsets(numbers)


def parse_ending_offsets(key: str, text: str) -> Bound:
    """Parse `endingOffsets`: "latest", or an offset for each partition other than -2. Raises ConfigError."""
    if (word := _WORDS.get(text.lower())) is not None:
        if isinstance(word, Earliest):
            raise ConfigError(key, text, "a batch read may end at 'latest' or at offsets, not at 'earliest'")
        return word
    numbers = parse_partition_numbers(key, text)
    for partition, number in numbers.items():
        if number < LATEST:
            raise ConfigError(key, number, f"an offset from 0, or -1 for latest ({partition})")
    return SpecificOffsets(numbers)


_WORDS: Mapping[str, Bound] = {"earliest": Earliest(), "latest": Latest()}


def check_start(start: Bound) -> None:
    """Check the start of a batch read. Raises ConfigError if it is the latest offset of any partition."""
    if isinstance(start, Latest):
        raise ConfigError(
            "startingOffsets", "latest", "a batch read may start at 'earliest' or at offsets, not at 'latest'"
        )
    if isinstance(start, SpecificOffsets):
        for partition, number in start.offsets.items():
            if number == LATEST:
                raise ConfigError("startingOffsets", number, f"a batch read may not start at latest (-1) ({partition})")


def check_order(start: Bound, end: Bound) -> None:
    """Check that no partition's start lies after its end, where both are plain numbers. The planner checks the others
    once it has resolved them.

    Raises:
        ConfigError: names the partition. Treated as an empty range, such a mistake would go unnoticed.
    """
    if isinstance(start, SpecificOffsets) and isinstance(end, SpecificOffsets):
        _check_order("startingOffsets", start.offsets, end.offsets)
    if isinstance(start, SpecificTimestamps) and isinstance(end, SpecificTimestamps):
        _check_order("startingOffsetsByTimestamp", start.timestamps_ms, end.timestamps_ms)
    if isinstance(start, GlobalTimestamp) and isinstance(end, GlobalTimestamp) and start > end:
        raise ConfigError("startingTimestamp", start.timestamp_ms, f"at most endingTimestamp={end.timestamp_ms}")


def _check_order(key: str, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    for partition in starts.keys() & ends.keys():
        if 0 <= ends[partition] < starts[partition]:
            raise ConfigError(key, starts[partition], f"at most where {partition} ends: {ends[partition]}")
