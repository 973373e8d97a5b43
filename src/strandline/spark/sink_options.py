"""The options and columns of a write, under the names of Spark's own Kafka sink."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from strandline.client.config import CommonConfig, ConsumerConfig, ProducerConfig
from strandline.proto.errors import ConfigError
from strandline.proto.settings import Scope, Settings, boolean, optional, parsed, string
from strandline.spark.options import given_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LEDGER_TOPIC = "strandline-spark-ledger"
"""One partition; an entry for each task and topic, of 300 bytes and about 10 more for each partition of the topic,
deleted after `strandline.spark.ledger.LEDGER_RETENTION_MS`. Other ledgers' names begin like it: see `is_ledger`."""

BULK = {"batch.size": "131072", "linger.ms": "50"}
"""Settings of the producer where the options say nothing else: a task has all of its rows at once, and nobody waits for
one of them. Measured with rows of 1 KB and the producer in Python: 14 us of CPU each with its own settings (16 KiB,
5 ms), 8 to 10 with these."""

TRANSACTION_TIMEOUT_MS = "900000"
"""transaction.timeout.ms of a task: the brokers' default maximum. A task's transaction stays open from its first row to
the end of its epoch."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that are written, with their types; others are left aside, as Spark's own sink does."""


def is_ledger(topic: str) -> bool:
    """Whether a topic is a sink's ledger, by its name: none is an input that a pattern matches."""
    return topic == LEDGER_TOPIC or topic.startswith(f"{LEDGER_TOPIC}-")  # schedule 66/pattern-matches-a-ledger


def _topic(key: str, text: str) -> str:
    if not text:
        raise ConfigError(key, text, "the name of a topic")
    return text


_LEDGERS = (
    f"{LEDGER_TOPIC}, or a name that begins with {LEDGER_TOPIC}-: a query that reads topics by a pattern knows by the "
    "name that it is none of its input"
)


def _ledger(key: str, text: str) -> str:
    if not is_ledger(text):
        raise ConfigError(key, text, _LEDGERS)
    return text


class SinkOptions(Settings, scope=Scope.SPARK_SINK):
    """A write, as the user asked for it: every option, but `kafka.*`.

    Attributes:
        bootstrap: `kafka.bootstrap.servers`.
        producer_settings: the other `kafka.*` options without their prefix: any setting of the producer.
    """

    bootstrap = ""
    producer_settings: Mapping[str, Any] = MappingProxyType({})

    topic = optional(
        parsed(
            "topic",
            _topic,
            None,
            "The topic of every row, whatever the column `topic` says.",
            "the name of a topic",
        )
    )
    ledger_topic = parsed(
        "ledgerTopic",
        _ledger,
        LEDGER_TOPIC,
        "Where tasks note what they write; created when it is missing. Any other begins with "
        f"{LEDGER_TOPIC}- and is, like it, matched by no subscribePattern.",
        _LEDGERS,
    )
    transactions = boolean(
        "transactions",
        False,
        "Whether rows are written in transactions: readers of committed records never see rows of a task that failed, "
        "was repeated or lost to a faster one; readers of all may. With false the ledger alone keeps rows single, for "
        "all.",
    )
    fail_on_repeats = boolean(
        "failOnRepeats",
        True,
        "Whether a batch that is run again fails where its tasks do not have the rows that they had before; with false "
        "it goes on with a warning, and such rows may stand twice.",
    )
    checkpoint_location = string(
        "checkpointLocation", None, "Spark's own: where the streaming query keeps its progress."
    )
    include_headers = string(
        "includeHeaders", None, "Spark's own; no effect: a column `headers` is written wherever there is one."
    )
    path = string("path", None, "Spark's own; no effect.")

    @property
    def reader_settings(self) -> Mapping[str, Any]:
        """The client settings that a consumer has too."""
        return self._shared(ConsumerConfig)

    @property
    def admin_settings(self) -> Mapping[str, Any]:
        """The client settings that every client has."""
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
    given = given_of(SinkOptions, options)
    settings = given.dotted_settings
    if not ProducerConfig(settings).idempotent:
        raise ConfigError("kafka.acks", settings.get("acks", ""), "acks=all with idempotence: rows are written once")
    if "transactional.id" in settings:
        raise ConfigError(
            "kafka.transactional.id",
            settings["transactional.id"],
            "transactions=true: each task then has an id of its own",
        )
    sink = SinkOptions(given.options, bootstrap=given.bootstrap, producer_settings={**BULK, **settings})
    if not sink.transactions:
        return sink
    return sink.replaced(producer_settings={**BULK, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, **settings})


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
