"""The options and columns of a write, under the names of Spark's own Kafka sink."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strandline.client.config import CommonConfig, ConsumerConfig, ProducerConfig
from strandline.proto.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LEDGER_TOPIC = "strandline-spark-ledger"
"""One partition; an entry for each task and topic, of 300 bytes and about 10 more for each partition of the topic,
deleted after `strandline.spark.ledger.LEDGER_RETENTION_MS`. Other ledgers' names begin like it: see `is_ledger`."""

SINK_OPTIONS: dict[str, str] = {
    "topic": "The topic of every row, whatever the column `topic` says.",
    "ledgerTopic": f"Where tasks note what they write (default {LEDGER_TOPIC}); created when it is missing. Any other "
    f"begins with {LEDGER_TOPIC}- and is, like it, matched by no subscribePattern.",
    "failOnRepeats": "Whether a batch that is run again fails (default true) where its tasks do not have the rows that "
    "they had before; with false it goes on with a warning, and such rows may stand twice.",
    "checkpointLocation": "Spark's own: where the streaming query keeps its progress.",
    "includeHeaders": "Spark's own; no effect: a column `headers` is written wherever there is one.",
    "path": "Spark's own; no effect.",
}
"""Every option with its sentence, but `kafka.*`: any setting of the producer, above all `kafka.bootstrap.servers`."""

BULK = {"batch.size": "131072", "linger.ms": "50"}
"""Settings of the producer where the options say nothing else: a task has all of its rows at once, and nobody waits for
one of them. Measured with rows of 1 KB and the producer in Python: 14 us of CPU each with its own settings (16 KiB,
5 ms), 8 to 10 with these."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that are written, with their types; others are left aside, as Spark's own sink does."""

_BY_LOWER_NAME = {name.lower(): name for name in SINK_OPTIONS}


@dataclass(frozen=True)
class SinkOptions:
    """A write, as the user asked for it."""

    bootstrap: str
    topic: str | None
    ledger_topic: str
    fail_on_repeats: bool = True
    producer_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The `kafka.*` options without their prefix."""

    @property
    def reader_settings(self) -> Mapping[str, Any]:
        """Those of them that a consumer has too."""
        return self._shared(ConsumerConfig)

    @property
    def admin_settings(self) -> Mapping[str, Any]:
        """Those of them that every client has."""
        return self._shared(CommonConfig)

    def _shared(self, kind: type[CommonConfig]) -> Mapping[str, Any]:
        known = kind.attributes
        return {key: value for key, value in self.producer_settings.items() if key.replace(".", "_") in known}


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write.

    Raises:
        ConfigError: an unknown option or setting, no `kafka.bootstrap.servers`, a producer that is not idempotent, or a
            ledger that could be read as an input.
    """
    lower = {key.lower(): str(value) for key, value in options.items()}
    settings = {key[len("kafka.") :]: value for key, value in lower.items() if key.startswith("kafka.")}
    for key, value in lower.items():
        if not key.startswith("kafka.") and key not in _BY_LOWER_NAME:
            near = difflib.get_close_matches(key, list(_BY_LOWER_NAME), n=1)
            names = ", ".join(SINK_OPTIONS)
            hint = f"did you mean {_BY_LOWER_NAME[near[0]]}?" if near else f"one of {names} or kafka.*"
            raise ConfigError(key, value, f"there is no such option of a write; {hint}")
    bootstrap = settings.pop("bootstrap.servers", "").strip()
    if not bootstrap:
        raise ConfigError("kafka.bootstrap.servers", bootstrap, "the address of a node, such as 127.0.0.1:9092")
    if not ProducerConfig(settings).idempotent:
        raise ConfigError("kafka.acks", settings.get("acks", ""), "acks=all with idempotence: rows are written once")
    topic = lower["topic"].strip() if "topic" in lower else None
    if topic == "":
        raise ConfigError("topic", lower["topic"], "the name of a topic")
    ledger = lower.get("ledgertopic", LEDGER_TOPIC).strip()
    if not is_ledger(ledger):
        allowed = f"{LEDGER_TOPIC}, or a name that begins with {LEDGER_TOPIC}-: a query that reads topics by a pattern "
        raise ConfigError("ledgerTopic", ledger, f"{allowed}knows by the name that it is none of its input")
    fail_on_repeats = lower.get("failonrepeats", "true").strip().lower()
    if fail_on_repeats not in ("true", "false"):
        raise ConfigError("failOnRepeats", fail_on_repeats, "true or false")
    return SinkOptions(bootstrap, topic, ledger, fail_on_repeats == "true", {**BULK, **settings})


def is_ledger(topic: str) -> bool:
    """Whether a topic is a sink's ledger, by its name: none is an input that a pattern matches."""
    return topic == LEDGER_TOPIC or topic.startswith(f"{LEDGER_TOPIC}-")  # schedule 66/pattern-matches-a-ledger


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse a frame that cannot be written.

    Raises:
        ConfigError: no column `value`, no topic, or a column of another type than it must have.
    """
    types = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise ConfigError("columns", ", ".join(types), "a column `value`, binary or string")
    if options.topic is None and "topic" not in types:
        raise ConfigError("topic", "", "the option `topic`, or a column of that name")
    for name, allowed in COLUMNS.items():
        if name in types and types[name] not in allowed:
            raise ConfigError(f"column {name}", types[name], " or ".join(allowed))
