"""A setting is one row: each column of each row is demanded, and a made-up row in each table is enough for the rest."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kafka_case import run
from kafka_node import KafkaNode
from kafka_wire import KafkaClient

from lab.pages.configuration import configuration_page
from lab.pages.settings import (
    quotas_table,
    settings_table,
    sink_options_table,
    source_options_table,
    typed_settings,
)
from strandline.client.config import AdminConfig, ConsumerConfig, ProducerConfig, effective_settings
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_values import environment_name
from strandline.cluster.node.settings import DERIVED_SETTINGS, PLAIN_USERS
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.settings import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerSettings, TopicSettings
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError
from strandline.proto.quotas import QuotaEntity, QuotaKey, value_fault
from strandline.proto.secrets import HIDDEN
from strandline.proto.settings import (
    INT32_MAX,
    ConfigType,
    Part,
    Scope,
    Setting,
    Settings,
    boolean,
    milliseconds,
    number,
    optional,
    parsed,
    size,
    string,
    whole,
    word,
    words,
)
from strandline.spark.options import SourceOptions, parse_options
from strandline.spark.sink_options import SinkOptions, parse_sink_options

CLIENTS = {row.name: row for kind in (ProducerConfig, ConsumerConfig, AdminConfig) for row in kind.rows.values()}

TABLES: dict[Scope, list[Setting[Any]]] = {
    Scope.NODE: [*NodeConfig.rows.values(), PLAIN_USERS, *(one.row for one in DERIVED_SETTINGS)],
    Scope.BROKER: [*BROKER_SETTINGS.values()],
    Scope.TOPIC: [*TOPIC_SETTINGS.values()],
    Scope.CLIENT: [*CLIENTS.values()],
    Scope.SPARK_SOURCE: [*SourceOptions.rows.values()],
    Scope.SPARK_SINK: [*SinkOptions.rows.values()],
}

EVERY_ROW = [pytest.param(row, id=f"{scope}-{row.name}") for scope, rows in TABLES.items() for row in rows]

SPARK = (Scope.SPARK_SOURCE, Scope.SPARK_SINK)
NAMES_OF_SPARK = r"[a-z]+[A-Za-z]*(\.[a-z]+[A-Za-z]*)*"

UNITS = {"ms": "ms", "bytes": "bytes", "second": "bytes/s", "seconds": "s", "minutes": "min", "hours": "h"}
"""The last word of a name says the unit, where it is one of these."""


@pytest.mark.parametrize("row", EVERY_ROW)
def test_every_column_of_every_row(row: Setting[Any]) -> None:
    """Issue 33.4: name, type, default, bounds, scope, live or not, unit, sentence."""
    assert re.fullmatch(NAMES_OF_SPARK if row.scope in SPARK else r"[a-z0-9]+(\.[a-z0-9]+)*", row.name)
    assert row in TABLES[row.scope]
    assert row.live is (row.scope in (Scope.BROKER, Scope.TOPIC))
    first = row.sentence.split()[0].rstrip(":")  # a value, where it is no sentence's beginning
    assert first[0].isupper() or first in row.allowed + row.name or row.type is ConfigType.BOOLEAN
    assert row.sentence.endswith((".", ")", ";."))
    assert row.secret is (row.type is ConfigType.PASSWORD)
    assert row.unit in {"", *UNITS.values()}
    assert row.takes
    last = row.name.rpartition(".")[2]
    if row.type in (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT) or row.unit:
        assert row.unit == UNITS.get(last, row.unit)
    if row.required:
        with pytest.raises(ConfigError, match=re.escape(f"{row.name} = '' is not allowed: it must be given.")):
            row.default_value()
    elif row.default is not None:
        assert row.default_value() == row.read(row.name, row.default)
    assert row.agreed <= row.live
    assert row.cluster_wide <= row.live
    if row.idle:
        assert row.idle in row.documentation
        assert row.default is not None
        assert not row.without_effect(row.default)
    if row.broker:
        of_brokers = BROKER_SETTINGS[row.broker]
        assert (of_brokers.default, of_brokers.type, of_brokers.read) == (row.default, row.type, row.read)


@pytest.mark.parametrize("row", EVERY_ROW)
def test_every_row_refuses_what_it_does_not_allow(row: Setting[Any]) -> None:
    """With key, value and what is allowed; what is within the bounds of its type alone is not enough."""
    assert row.allowed
    anything = row.allowed in ("any text", "any list") or row.name in ("log.dirs", "subscribe", "topic")
    bad: list[object] = [] if anything else ["?"]
    bad += {ConfigType.INT: [2**31, "x"], ConfigType.SHORT: [2**15], ConfigType.LONG: [2**63, "1.5"]}.get(row.type, [])
    bad += {ConfigType.DOUBLE: ["nan", ""], ConfigType.BOOLEAN: ["yes", "1"]}.get(row.type, [])
    if row.scope is Scope.CLIENT and row.type is ConfigType.LONG:
        bad.remove(2**63)  # a program's own limits are its own
    for value in bad:
        with pytest.raises(ConfigError) as refused:
            row.read(row.name, value if row.scope is Scope.CLIENT else str(value))
        assert (refused.value.key, bool(refused.value.allowed)) == (row.name, True)


def test_attributes_of_clients_are_kafkas_names() -> None:
    """A keyword argument is the setting's name with underscores, in every client the same."""
    for kind in (ProducerConfig, ConsumerConfig, AdminConfig):
        for attribute, row in kind.attributes.items():
            assert attribute == row.name.replace(".", "_")


@pytest.mark.parametrize("key", QuotaKey)
def test_every_column_of_every_quota(key: QuotaKey) -> None:
    """A whole number where Kafka's type is one, of addresses or of clients, with words for docs/security.md."""
    entity, other = QuotaEntity(ip="10.0.0.7"), QuotaEntity(user="alice")
    whose, nobody = (entity, other) if key.of_ip else (other, entity)
    assert not value_fault(whose, key, 7.0)
    assert value_fault(nobody, key, 7.0).startswith(f"Invalid configuration key {key}; possible for ")
    assert value_fault(whose, key, 0.0) == f"Quota {key} must be greater than 0, and a number, not 0"
    assert bool(value_fault(whose, key, 1.5)) is (key.type is not ConfigType.DOUBLE)
    assert bool(value_fault(whose, key, 2.0**64)) is (key.type is not ConfigType.DOUBLE)
    assert f"| `{key}` | {key.bounds} | {key.counted} |" in quotas_table()


def add(monkeypatch: pytest.MonkeyPatch, table: type[Settings], attribute: str, row: Setting[Any]) -> None:
    """What a line in the class of a table does."""
    monkeypatch.setattr(table, attribute, row, raising=False)
    monkeypatch.setattr(table, "attributes", {**table.attributes, attribute: row})
    monkeypatch.setattr(table, "rows", {**table.rows, row.name: row})


def of(scope: Scope, row: Setting[Any]) -> Setting[Any]:
    """The row as a table of that scope has it."""
    table = type("Made", (Settings,), {"made": row}, scope=scope)
    return next(iter(table.rows.values()))


async def described(client: KafkaClient, kind: int, name: str, key: str) -> Any:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": (key,)}]
    answer = await client.ask(
        "describe_configs", 4, resources=resources, include_synonyms=True, include_documentation=True
    )
    (one,) = answer.results[0].configs
    return one


async def alter(client: KafkaClient, kind: int, name: str, key: str, value: str) -> Any:
    change = {"config_operation": 0, "name": key, "value": value}
    resources = [{"resource_type": kind, "resource_name": name, "configs": [change]}]
    answer = await client.ask("incremental_alter_configs", 1, resources=resources, validate_only=False)
    return answer.responses[0]


def test_a_made_up_setting_of_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = of(Scope.NODE, milliseconds("made.up.ms", 5, "How long a made-up thing lasts.", low=2, high=9))
    add(monkeypatch, NodeConfig, "made_up_ms", row)
    config: Any = NodeConfig({"node.id": "1", "made.up.ms": "7"})
    assert (config.made_up_ms, vars(NodeConfig({"node.id": "1"}))["made_up_ms"]) == (7, 5)
    assert vars(NodeConfig.load(None, {"node.id": "1"}, {environment_name("made.up.ms"): "8"}))["made_up_ms"] == 8
    with pytest.raises(ConfigError, match=r"made\.up\.ms = '10' is not allowed: a whole number from 2 to 9"):
        NodeConfig({"node.id": "1", "made.up.ms": "10"})
    with pytest.raises(ConfigError, match=r"did you mean made\.up\.ms\?"):
        NodeConfig({"node.id": "1", "made.upp.ms": "7"})
    line = "| `made.up.ms` | `5` | a whole number from 2 to 9 | ms | How long a made-up thing lasts. |\n"
    assert line in configuration_page()

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        one = await described(client, 4, "1", "made.up.ms")
        assert (one.value, one.config_source, one.read_only, one.config_type) == ("7", 4, True, ConfigType.INT)
        assert one.documentation == "How long a made-up thing lasts."
        refused = await alter(client, 4, "1", "made.up.ms", "8")
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert "may change while the broker runs" in refused.error_message

    run(tmp_path, main, settings={"made.up.ms": "7"})


def test_a_made_up_setting_of_brokers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = of(Scope.BROKER, word("made.up.colour", "red", "The colour of a made-up thing.", "red", "blue"))
    add(monkeypatch, BrokerSettings, "made_up_colour", row)
    monkeypatch.setitem(BROKER_SETTINGS, row.name, row)
    assert NodeConfig({"node.id": "1", "made.up.colour": "blue"}).dynamic == {"made.up.colour": "blue"}
    with pytest.raises(ConfigError, match="one of red, blue"):
        NodeConfig({"node.id": "1", "made.up.colour": "green"})
    assert (
        "| `made.up.colour` | `red` | one of red, blue |  | The colour of a made-up thing. |\n" in configuration_page()
    )

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        assert not (await alter(client, 4, "1", "made.up.colour", "blue")).error_code
        one = await described(client, 4, "1", "made.up.colour")
        assert (one.value, one.config_source, one.read_only) == ("blue", 2, False)
        refused = await alter(client, 4, "1", "made.up.colour", "green")
        assert "made.up.colour = 'green' is not allowed: one of red, blue" in refused.error_message
        assert ConfigResolver({}, 1).broker_value(node.controller.image, row) == "blue"  # type: ignore[arg-type]

    run(tmp_path, main)


def test_a_made_up_setting_of_topics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = of(Scope.TOPIC, size("made.up.bytes", 5, "The size of a made-up thing.", low=2, broker="log.made.up.bytes"))
    add(monkeypatch, TopicSettings, "made_up_bytes", row)
    monkeypatch.setitem(TOPIC_SETTINGS, row.name, row)
    monkeypatch.setitem(BROKER_SETTINGS, row.broker, row.of_brokers())
    line = "| bytes | The size of a made-up thing. Topic config: `made.up.bytes`. |\n"
    assert line in configuration_page()

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        assert not (await alter(client, 4, "", "log.made.up.bytes", "6")).error_code
        assert not (await alter(client, 2, "t", "made.up.bytes", "7")).error_code
        one = await described(client, 2, "t", "made.up.bytes")
        assert [(each.name, each.value, each.source) for each in one.synonyms] == [
            ("made.up.bytes", "7", 1), ("log.made.up.bytes", "6", 3), ("log.made.up.bytes", "5", 5),
        ]  # fmt: skip
        assert (one.config_type, one.documentation) == (ConfigType.LONG, "The size of a made-up thing.")
        refused = await alter(client, 2, "t", "made.up.bytes", "1")
        assert "made.up.bytes = '1' is not allowed: a whole number from 2 to" in refused.error_message
        assert ConfigResolver({}).topic_value(node.controller.image, "t", row) == 7

    run(tmp_path, main)


def test_a_made_up_setting_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    row = of(Scope.CLIENT, optional(number("made.up", "", "A made-up part of the whole.", low=0, high=1)))
    add(monkeypatch, ProducerConfig, "made_up", row)
    assert [vars(ProducerConfig(given))["made_up"] for given in ({}, {"made.up": "0.5"}, {"made_up": 1})] == [
        None,
        0.5,
        1,
    ]
    with pytest.raises(ConfigError, match=r"made\.up = 2 is not allowed: a number from 0 to 1"):
        ProducerConfig({"made_up": 2})
    with pytest.raises(ConfigError, match=r"did you mean made\.up\?"):
        ProducerConfig({"made_upp": 1})
    assert effective_settings(ProducerConfig({"made_up": 1}))["made.up"] == ("1", False, "A made-up part of the whole.")
    assert "| `made.up` | - | A made-up part of the whole. |\n" in settings_table()
    assert "    made_up: float | None\n" in typed_settings()


@pytest.mark.parametrize(
    ("row", "good", "bad", "allowed"),
    [
        (whole("x", 1, ".", low=-1, high=3, others=(7,)), [("-1", -1), (3, 3), (2.0, 2), ("7", 7)],
         ["4", -2, True, 1.5, "1_0", " 1", "", None, "٣"], "a whole number from -1 to 3 or 7"),
        (number("x", "1", ".", above=0), [("1e3", 1000.0), (2, 2.0), ("inf", float("inf"))],
         ["0", -1, "nan", True, "1" * 99, None], "a number above 0"),
        (boolean("x", True, "."), [("TRUE", True), (False, False)], ["yes", 1, None, ""], "true or false"),
        (boolean("x", True, ".", exact=True), [("true", True)], ["TRUE", "yes"], "true or false"),
        (word("x", "1", ".", "1", ""), [("1", "1"), (1, "1"), ("", "")], ["2", None, True], "one of 1, nothing"),
        (words("x", "a", ".", "a", "b"), [("b, a", ("b", "a"))], ["", "a,a", "c"], "a list of a, b, each once at most"),
        (string("x", None, "."), [("a", "a"), (None, ""), (3, "3")], [True, 1.5], "text"),
        (string("x", "", "."), [("a", "a")], [None], "text"),
        (optional(whole("x", None, ".")), [(None, None), ("2", 2)], ["", "x"], "a whole number from 0"),
    ],
)  # fmt: skip
def test_kinds_of_rows(row: Setting[Any], good: list[tuple[object, object]], bad: list[object], allowed: str) -> None:
    for value, meaning in good:
        found = row.read("x", value)
        assert (found, type(found)) == (meaning, type(meaning))
    for value in bad:
        with pytest.raises(ConfigError) as refused:
            row.read("x", value)
        assert refused.value.allowed == allowed


def test_what_was_stored_out_of_bounds_counts_as_the_bound() -> None:
    row = of(Scope.TOPIC, whole("x", 1, ".", low=2, high=INT32_MAX))
    assert [row.stored(text) for text in ("1", "5", str(2**40))] == [2, 5, INT32_MAX]
    with pytest.raises(ConfigError):
        of(Scope.TOPIC, word("x", "a", ".", "a")).stored("b")


def test_a_part_has_rows_of_the_whole_and_a_view_of_its_own() -> None:
    """A room that may not see the node goes by its part of the node's settings."""

    class Inner(Settings, scope=Scope.NODE):
        lasts_ms = milliseconds("made.up.ms", 5, "How long a made-up thing lasts.")

    class Outer(Settings, scope=Scope.NODE):
        other = whole("made.up", 1, "Something else.")
        inner = Part(Inner)

    assert list(Outer.rows) == ["made.up", "made.up.ms"]
    outer = Outer({"made.up.ms": "7"})
    assert (outer.other, outer.inner.lasts_ms) == (1, 7)
    with pytest.raises(ConfigError, match=r"made\.up\.ms = '0' is not allowed: a whole number from 1"):
        Outer({"made.up.ms": "0"})


@pytest.mark.parametrize(
    ("table", "parse", "page"),
    [(SourceOptions, parse_options, source_options_table), (SinkOptions, parse_sink_options, sink_options_table)],
)
def test_a_made_up_option_of_spark(monkeypatch: pytest.MonkeyPatch, table: Any, parse: Any, page: Any) -> None:
    """Read in whatever case, refused with what is allowed, found where it is misspelt, and on the page."""
    add(monkeypatch, table, "made_up", of(table.scope, whole("madeUp", 5, "How many of a made-up thing.", high=9)))
    needed = {"kafka.bootstrap.servers": "127.0.0.1:1"} | ({"subscribe": "a"} if table is SourceOptions else {})
    assert (parse(needed).made_up, parse(needed | {"MADEUP": " 7 "}).made_up) == (5, 7)
    with pytest.raises(ConfigError, match="madeUp = '10' is not allowed: a whole number from 0 to 9"):
        parse(needed | {"madeUp": "10"})
    with pytest.raises(ConfigError, match=r"there is no such option of a (read|write); did you mean madeUp\?"):
        parse(needed | {"madeUpp": "7"})
    assert "| `madeUp` | `5` | a whole number from 0 to 9 | How many of a made-up thing. |\n" in page()


def test_a_view_with_values_that_no_text_says() -> None:
    """Of what changes meanwhile, and of tests: a row's value or a constant beside the rows, and no misspelt one."""

    class View(Settings, scope=Scope.NODE):
        lasts_ms = milliseconds("made.up.ms", 5, "How long a made-up thing lasts.", low=2)
        chunk_bytes = 10

    assert (View().lasts_ms, View().chunk_bytes) == (5, 10)
    view = View({"made.up.ms": "7"}, chunk_bytes=11)
    assert (view.lasts_ms, view.chunk_bytes) == (7, 11)
    other = view.replaced(lasts_ms=1)
    assert (other.lasts_ms, other.chunk_bytes, view.lasts_ms) == (1, 11, 7)
    for wrong in (lambda: View(chunk=1), lambda: view.replaced(chunk=1)):
        with pytest.raises(TypeError, match="View has no chunk"):
            wrong()


def test_no_table_copies_another() -> None:
    """Issue 33.4: each setting of a node is one row, whichever room has it, and its view goes where it is needed."""
    config = NodeConfig({"node.id": "1", "fetch.max.bytes": "2000", "controller.quorum.fetch.timeout.ms": "7"})
    assert (config.broker.fetch_max_bytes, config.quorum.fetch_timeout_ms) == (2000, 7)
    tables: list[type[Settings]] = [NodeConfig]
    for table in tables:
        tables += table.parts.values()
    owners = Counter(row.name for table in tables for row in table.attributes.values())
    assert set(owners.values()) == {1}
    assert owners.keys() == NodeConfig.rows.keys()


def test_a_view_is_read_once_and_shows_no_secret() -> None:
    class View(Settings, scope=Scope.CLIENT):
        secret = string("view.password", "", "Secret.")
        count = parsed("view.count", lambda _name, text: len(text), None, "Counted.", "any text")

    view = View({"view.password": "swordfish"})
    assert (view.secret, view.count) == ("swordfish", 0)
    assert repr(view) == f"View(secret={HIDDEN!r}, count=0)"
    with pytest.raises(AttributeError, match=r"view\.count"):
        view.count = 3  # type: ignore[misc, assignment]
