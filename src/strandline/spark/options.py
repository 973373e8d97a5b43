"""The options of a read, under the names that Spark's own Kafka source has.

What Spark accepts and this source has no use for (limits of a trigger in a batch read, poll timeouts) is accepted and
has no effect, as in Spark. A word that neither knows is refused with the nearest one that exists: a mistyped
`startingOffset` would otherwise read the whole topic without a word.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.client.config import ConsumerConfig
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.spark.offsets import INT64_MAX, Bound, check_order, parse_assignment, parse_end, parse_start

OPTIONS: dict[str, str] = {
    "assign": 'The partitions to read, as JSON: {"orders": [0, 1]}.',
    "subscribe": "Topics to read, separated by commas.",
    "subscribePattern": "A regular expression of Python; every topic in whose name it is found is read (^orders$: that "
    "name alone), but internal ones and the sink's ledger.",
    "startingOffsets": 'Where to start: "earliest" (default of a batch), "latest" (default of a stream), '
    "or JSON with an offset a partition (-2: earliest, -1: latest). A stream with a checkpoint goes on from there.",
    "startingTimestamp": "Start every partition at the first record of this time or later (ms since 1970).",
    "startingOffsetsByTimestamp": 'The same for each partition: {"orders": {"0": 1700000000000}}.',
    "startingOffsetsByTimestampStrategy": 'A starting time past the last record: "error" (default) or "latest".',
    "endingOffsets": 'Where a batch ends, exclusive: "latest" (default), or JSON with an offset a partition '
    "(-1: latest).",
    "endingTimestamp": "End every partition before the first record of this time or later (ms since 1970).",
    "endingOffsetsByTimestamp": 'The same for each partition: {"orders": {"0": 1700000000000}}.',
    "minPartitions": "At least this many Spark tasks: large ranges are split.",
    "maxRecordsPerPartition": "At most this many records a Spark task: larger ranges are split.",
    "includeHeaders": "Whether rows have the column `headers` (default false).",
    "pushFilters": "Batches: whether filters on topic, partition, offset and (from a time on) timestamp shorten the "
    "plan (default false). Spark wants spark.sql.python.filterPushdown.enabled=true for it.",
    "failOnDataLoss": "Whether records that no longer exist fail the read (default true) or are left out.",
    "maxOffsetsPerTrigger": "Streams: about as many offsets a micro-batch at most, shared out by the partitions' lag.",
    "minOffsetsPerTrigger": "Streams: wait until as many are there, or maxTriggerDelay is over.",
    "maxTriggerDelay": 'Streams: how long minOffsetsPerTrigger may hold a micro-batch back, as "10s" (default "15m").',
    "maxBytesPerTrigger": "Streams: about as many bytes a micro-batch at most, as they lie in the log; from samples.",
    "groupIdPrefix": "This source joins no group; no effect.",
    "kafkaConsumer.pollTimeoutMs": "This source waits by request.timeout.ms; no effect.",
    "fetchOffset.numRetries": "Offsets are asked for until default.api.timeout.ms; no effect.",
    "fetchOffset.retryIntervalMs": "Set kafka.retry.backoff.ms instead; no effect.",
}
"""Every option with its sentence, but `kafka.*`: any setting of the consumer, above all `kafka.bootstrap.servers`."""

SOURCE_OWNED = {
    "auto.offset.reset": "nothing here: startingOffsets says where to start, failOnDataLoss what to do about a loss",
    "key.deserializer": "nothing here: keys are columns of bytes; cast or decode them in the query",
    "value.deserializer": "nothing here: values are columns of bytes; cast or decode them in the query",
    "enable.auto.commit": "nothing here: offsets are in the query's checkpoint, and no group is joined",
}
"""Settings of the consumer that would set aside what a plan says; Spark's own source refuses them too."""

OF_THE_CATALOG = "provider"
"""What Spark adds to the options when CREATE TABLE ... USING asks for the columns. It hands none of a table's options
to a source in Python when the table is read (4.3), so such a table could never be."""

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

_BY_LOWER_NAME = {name.lower(): name for name in OPTIONS}


@dataclass(frozen=True)
class SourceOptions:
    """A read, as the user asked for it."""

    bootstrap: str
    start: Bound
    end: Bound
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignment: tuple[TopicPartition, ...] = ()
    late_start_is_latest: bool = False
    """A starting timestamp after the last record: start at the end instead of failing."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    fail_on_data_loss: bool = True
    push_filters: bool = False
    client_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The `kafka.*` options without their prefix."""
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    max_bytes_per_trigger: int | None = None


def parse_options(options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """Check the options of a read.

    Raises:
        ConfigError: an unknown option or setting, a value that is not allowed, no or several of subscribe,
            subscribePattern, assign, or no `kafka.bootstrap.servers`.
    """
    lower = {key.lower(): str(value) for key, value in options.items()}
    if OF_THE_CATALOG in lower:
        allowed = "CREATE TEMPORARY VIEW: Spark keeps no options of a table for a source in Python"
        raise ConfigError("CREATE TABLE", lower[OF_THE_CATALOG], allowed)
    for key, value in lower.items():
        if not key.startswith("kafka.") and key not in _BY_LOWER_NAME:
            near = difflib.get_close_matches(key, list(_BY_LOWER_NAME), n=1)
            hint = (
                f"did you mean {_BY_LOWER_NAME[near[0]]}?" if near else "one of " + ", ".join(OPTIONS) + " or kafka.*"
            )
            raise ConfigError(key, value, f"there is no such option; {hint}")
    client_settings = _client_settings(lower)
    bootstrap = client_settings.pop("bootstrap.servers", "").strip()
    if not bootstrap:
        raise ConfigError("kafka.bootstrap.servers", bootstrap, "the address of a node, such as 127.0.0.1:9092")
    ConsumerConfig(client_settings)  # here, and not in a task of every executor
    topics, pattern, assignment = _parse_strategy(lower)
    start, end = parse_start(lower, streaming=streaming), parse_end(lower)
    check_order(start, end)
    least, most = _positive(lower, "minOffsetsPerTrigger"), _positive(lower, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError("minOffsetsPerTrigger", least, f"at most maxOffsetsPerTrigger={most}")
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name.lower() in lower:
                raise ConfigError(name, lower[name.lower()], "no end: a stream has none; read a batch instead")
    return SourceOptions(
        bootstrap=bootstrap,
        start=start,
        end=end,
        topics=topics,
        pattern=pattern,
        assignment=assignment,
        late_start_is_latest=_choice(lower, "startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
        == "latest",
        min_partitions=_positive(lower, "minPartitions", 2**31 - 1),
        max_records_per_partition=_positive(lower, "maxRecordsPerPartition"),
        include_headers=_choice(lower, "includeHeaders", "false", ("true", "false")) == "true",
        fail_on_data_loss=_choice(lower, "failOnDataLoss", "true", ("true", "false")) == "true",
        push_filters=_choice(lower, "pushFilters", "false", ("true", "false")) == "true",
        client_settings=client_settings,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(lower, "maxTriggerDelay", "15m"),
        max_bytes_per_trigger=_positive(lower, "maxBytesPerTrigger"),
    )


def _parse_strategy(lower: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in lower]
    if len(given) != 1:
        said = " and ".join(given) or "none"
        raise ConfigError("subscribe", said, "give exactly one of subscribe, subscribePattern and assign")
    text = lower[given[0].lower()]
    if given[0] == "assign":
        return (), None, tuple(parse_assignment("assign", text))
    if given[0] == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
        if not topics:
            raise ConfigError("subscribe", text, "at least one topic")
        return topics, None, ()
    pattern = text.strip()
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError("subscribePattern", text, f"a regular expression ({error})") from None
    if not pattern:  # it would be found in every name
        raise ConfigError("subscribePattern", text, "a regular expression; .* matches every topic")
    return (), pattern, ()


def _client_settings(lower: Mapping[str, str]) -> dict[str, str]:
    settings = {key[len("kafka.") :]: value for key, value in lower.items() if key.startswith("kafka.")}
    for key, value in settings.items():
        if (allowed := SOURCE_OWNED.get(key.replace("_", "."))) is not None:
            raise ConfigError(f"kafka.{key}", value, allowed)
    return settings


def _positive(lower: Mapping[str, str], name: str, most: int = INT64_MAX) -> int | None:
    """A number of at most so much: the widths of Spark's own options, which it hands on as such."""
    text = lower.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ConfigError(name, text, f"a whole number from 1 to {most}")
    return int(text)


def _duration_ms(lower: Mapping[str, str], name: str, default: str) -> int:
    text = lower.get(name.lower(), default).strip().lower()
    found = re.fullmatch(r"(\d+) *(ms|s|m|min|h|d)?", text)
    if found is None:
        raise ConfigError(name, text, 'a time such as "500ms", "10s", "15m" or "1h"')
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def _choice(lower: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    text = lower.get(name.lower(), default).strip().lower()
    if text not in allowed:
        raise ConfigError(name, text, " or ".join(allowed))
    return text
