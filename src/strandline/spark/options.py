"""The options of a read, under the names that Spark's own Kafka source has.

What Spark accepts and this source has no use for (limits of a trigger in a batch read, poll timeouts) is accepted and
has no effect, as in Spark. A word that neither knows is refused with the nearest one that exists: a mistyped
`startingOffset` would otherwise read the whole topic without a word.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from strandline.client.config import ConsumerConfig
from strandline.proto.errors import ConfigError
from strandline.proto.settings import (
    INT32_MAX,
    INT64_MAX,
    ConfigType,
    Scope,
    Settings,
    boolean,
    optional,
    parsed,
    string,
    whole,
)
from strandline.spark.offsets import (
    ASSIGNMENT,
    OFFSETS,
    TIMESTAMP,
    TIMESTAMPS,
    Bound,
    Earliest,
    Latest,
    check_order,
    check_start,
    parse_assignment,
    parse_ending_offsets,
    parse_starting_offsets,
    parse_timestamp,
    parse_timestamps,
)

SOURCE_OWNED = {
    "auto.offset.reset": "nothing here: startingOffsets says where to start, failOnDataLoss what to do about a loss",
    "key.deserializer": "nothing here: keys are columns of bytes; cast or decode them in the query",
    "value.deserializer": "nothing here: values are columns of bytes; cast or decode them in the query",
    "enable.auto.commit": "nothing here: offsets are in the query's checkpoint, and no group is joined",
}
"""Settings of the consumer that would set aside what a plan says; Spark's own source refuses them too."""

ISOLATION, READ_COMMITTED = "isolation.level", "read_committed"
"""Default isolation level of a read: records of open and aborted transactions are not shown, unless
`kafka.isolation.level` says otherwise. Spark's own source shows them, as Kafka's consumers do by default."""

OF_THE_CATALOG = "provider"
"""Option that Spark adds when CREATE TABLE ... USING asks for the columns. Spark (4.3) passes none of a table's options
to a Python source when the table is read, so such a table cannot work and is refused."""

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

_DURATION = 'a time such as "500ms", "10s", "15m" or "1h"'
_STRATEGIES = "error or latest"
_PATTERN = "a regular expression; .* matches every topic"
_TOPICS = "at least one topic"


def _topics(key: str, text: str) -> tuple[str, ...]:
    topics = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
    if not topics:
        raise ConfigError(key, text, _TOPICS)
    return topics


def _pattern(key: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(key, text, f"a regular expression ({error})") from None
    if not text:  # it would be found in every name
        raise ConfigError(key, text, _PATTERN)
    return text


def _is_latest(key: str, text: str) -> bool:
    if text.lower() not in ("error", "latest"):
        raise ConfigError(key, text, _STRATEGIES)
    return text.lower() == "latest"


def _duration_ms(key: str, text: str) -> int:
    found = re.fullmatch(r"(\d+) *(ms|s|m|min|h|d)?", text.lower())
    if found is None:
        raise ConfigError(key, text, _DURATION)
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


class SourceOptions(Settings, scope=Scope.SPARK_SOURCE):
    """A read, as the user asked for it: every option, but `kafka.*`.

    Attributes:
        bootstrap: `kafka.bootstrap.servers`.
        start, end: where the options say so; by default a stream starts at the latest offset.
        client_settings: the other `kafka.*` options without their prefix: any setting of the consumer.
    """

    bootstrap = ""
    start: Bound = Earliest()
    end: Bound = Latest()
    client_settings: Mapping[str, Any] = MappingProxyType({})

    assignment = optional(
        parsed("assign", parse_assignment, None, 'The partitions to read, as JSON: {"orders": [0, 1]}.', ASSIGNMENT)
    )
    topics = optional(
        parsed("subscribe", _topics, None, "Topics to read, separated by commas.", _TOPICS, type=ConfigType.LIST)
    )
    pattern = optional(
        parsed(
            "subscribePattern",
            _pattern,
            None,
            "A regular expression of Python; every topic in whose name it is found is read (^orders$: that name "
            "alone), but internal ones and the sink's ledger.",
            _PATTERN,
        )
    )
    starting_offsets = optional(
        parsed(
            "startingOffsets",
            parse_starting_offsets,
            None,
            'Where to start: "earliest" (default of a batch), "latest" (default of a stream), or JSON with an offset a '
            "partition (-2: earliest, -1: latest). A stream with a checkpoint goes on from there.",
            f"earliest, latest, or {OFFSETS}",
        )
    )
    starting_timestamp = optional(
        parsed(
            "startingTimestamp",
            parse_timestamp,
            None,
            "Start every partition at the first record of this time or later (ms since 1970).",
            TIMESTAMP,
            type=ConfigType.LONG,
            unit="ms",
        )
    )
    starting_timestamps = optional(
        parsed(
            "startingOffsetsByTimestamp",
            parse_timestamps,
            None,
            'The same for each partition: {"orders": {"0": 1700000000000}}.',
            TIMESTAMPS,
        )
    )
    late_start_is_latest = parsed(
        "startingOffsetsByTimestampStrategy",
        _is_latest,
        "error",
        "What a starting time past the last record is: an error, or the end of the log.",
        _STRATEGIES,
    )
    ending_offsets = optional(
        parsed(
            "endingOffsets",
            parse_ending_offsets,
            None,
            'Where a batch ends, exclusive: "latest" (default), or JSON with an offset a partition (-1: latest).',
            f"latest, or {OFFSETS}",
        )
    )
    ending_timestamp = optional(
        parsed(
            "endingTimestamp",
            parse_timestamp,
            None,
            "End every partition before the first record of this time or later (ms since 1970).",
            TIMESTAMP,
            type=ConfigType.LONG,
            unit="ms",
        )
    )
    ending_timestamps = optional(
        parsed(
            "endingOffsetsByTimestamp",
            parse_timestamps,
            None,
            'The same for each partition: {"orders": {"0": 1700000000000}}.',
            TIMESTAMPS,
        )
    )
    min_partitions = optional(
        whole("minPartitions", None, "At least this many Spark tasks: large ranges are split.", low=1, high=INT32_MAX)
    )
    max_records_per_partition = optional(
        whole(
            "maxRecordsPerPartition",
            None,
            "At most this many records a Spark task: larger ranges are split.",
            low=1,
            high=INT64_MAX,
        )
    )
    include_headers = boolean("includeHeaders", False, "Whether rows have the column `headers`.")
    push_filters = boolean(
        "pushFilters",
        False,
        "Batches: whether filters on topic, partition, offset and (from a time on) timestamp shorten the plan. Spark "
        "wants spark.sql.python.filterPushdown.enabled=true for it.",
    )
    fail_on_data_loss = boolean(
        "failOnDataLoss", True, "Whether records that no longer exist fail the read or are left out."
    )
    max_offsets_per_trigger = optional(
        whole(
            "maxOffsetsPerTrigger",
            None,
            "Streams: about as many offsets a micro-batch at most, shared out by the partitions' lag.",
            low=1,
            high=INT64_MAX,
        )
    )
    min_offsets_per_trigger = optional(
        whole(
            "minOffsetsPerTrigger",
            None,
            "Streams: wait until as many are there, or maxTriggerDelay is over.",
            low=1,
            high=INT64_MAX,
        )
    )
    max_trigger_delay_ms = parsed(
        "maxTriggerDelay",
        _duration_ms,
        "15m",
        'Streams: how long minOffsetsPerTrigger may hold a micro-batch back, as "10s".',
        _DURATION,
    )
    max_bytes_per_trigger = optional(
        whole(
            "maxBytesPerTrigger",
            None,
            "Streams: about as many bytes a micro-batch at most, as they lie in the log; from samples.",
            low=1,
            high=INT64_MAX,
        )
    )
    group_id_prefix = string("groupIdPrefix", None, "This source joins no group; no effect.")
    poll_timeout = string("kafkaConsumer.pollTimeoutMs", None, "This source waits by request.timeout.ms; no effect.")
    num_retries = string(
        "fetchOffset.numRetries", None, "Offsets are asked for until default.api.timeout.ms; no effect."
    )
    retry_interval = string("fetchOffset.retryIntervalMs", None, "Set kafka.retry.backoff.ms instead; no effect.")


class Given(NamedTuple):
    """Options by their names, and the settings of the client that stand among them.

    Attributes:
        bootstrap: `kafka.bootstrap.servers`.
        client_settings: the other `kafka.*` options without their prefix.
    """

    options: Mapping[str, str]
    bootstrap: str
    client_settings: dict[str, str]

    @property
    def dotted_settings(self) -> dict[str, str]:
        """`client_settings` by Kafka's names: the clients take `batch_size` for `batch.size`, too."""
        return {key.replace("_", "."): value for key, value in self.client_settings.items()}


def given_of(table: type[Settings], options: Mapping[str, str]) -> Given:
    """Options in whatever case, as Spark takes them, with blanks trimmed.

    Raises:
        ConfigError: an unknown option, or no `kafka.bootstrap.servers`.
    """
    names = {name.lower(): name for name in table.rows}
    named: dict[str, str] = {}
    client_settings: dict[str, str] = {}
    for key, value in ((key.lower(), str(value)) for key, value in options.items()):
        if key.startswith("kafka."):
            client_settings[key.removeprefix("kafka.")] = value
        elif key in names:
            named[names[key]] = value.strip()
        else:
            near = difflib.get_close_matches(key, list(names), n=1)
            hint = f"did you mean {names[near[0]]}?" if near else f"one of {', '.join(table.rows)} or kafka.*"
            raise ConfigError(key, value, f"there is no such option of a {_USES[table.scope]}; {hint}")
    bootstrap = client_settings.pop("bootstrap.servers", "").strip()
    if not bootstrap:
        raise ConfigError("kafka.bootstrap.servers", bootstrap, "the address of a node, such as 127.0.0.1:9092")
    return Given(named, bootstrap, client_settings)


_USES = {Scope.SPARK_SOURCE: "read", Scope.SPARK_SINK: "write"}


def parse_options(options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """Check the options of a read.

    Raises:
        ConfigError: an unknown option or setting, a value that is not allowed, no or several of subscribe,
            subscribePattern, assign, or no `kafka.bootstrap.servers`.
    """
    table = {key.lower(): value for key, value in options.items()}.get(OF_THE_CATALOG)
    if table is not None:
        allowed = "CREATE TEMPORARY VIEW: Spark keeps no options of a table for a source in Python"
        raise ConfigError("CREATE TABLE", str(table), allowed)
    given = given_of(SourceOptions, options)
    for key, value in given.client_settings.items():
        if (instead := SOURCE_OWNED.get(key.replace("_", "."))) is not None:
            raise ConfigError(f"kafka.{key}", value, instead)
    settings = {ISOLATION: READ_COMMITTED, **given.dotted_settings}  # rule C24/aborted-rows-are-read
    ConsumerConfig(settings)  # here, and not in a task of every executor
    strategies = [name for name in ("subscribe", "subscribePattern", "assign") if name in given.options]
    if len(strategies) != 1:
        said = " and ".join(strategies) or "none"
        raise ConfigError("subscribe", said, "give exactly one of subscribe, subscribePattern and assign")
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in given.options:
                raise ConfigError(name, given.options[name], "no end: a stream has none; read a batch instead")
    read = SourceOptions(given.options, bootstrap=given.bootstrap, client_settings=settings)
    # A time for all partitions wins over times for each, and those over offsets, as in Spark.
    start = read.starting_timestamp or read.starting_timestamps or read.starting_offsets
    end = read.ending_timestamp or read.ending_timestamps or read.ending_offsets or Latest()
    if start is None:
        start = Latest() if streaming else Earliest()
    elif not streaming:
        check_start(start)
    check_order(start, end)
    least, most = read.min_offsets_per_trigger, read.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError("minOffsetsPerTrigger", least, f"at most maxOffsetsPerTrigger={most}")
    return read.replaced(start=start, end=end)
