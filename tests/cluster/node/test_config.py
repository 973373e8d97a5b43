"""Settings of a node: where they come from, and what is refused with which words."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_values import (
    parse_overrides,
    parse_properties,
    parse_toml,
    parse_voters,
    write_voters,
)
from strandline.cluster.node.format import format_directory
from strandline.log.checkpoints import encode_id
from strandline.log.real_disk import RealDisk
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint


def test_defaults_need_only_a_node_id() -> None:
    """Safe defaults; loopback unless told otherwise."""
    config = NodeConfig({"node.id": "1"})
    assert config.is_broker
    assert config.is_controller
    assert config.internal == Endpoint("127.0.0.1", 19092)
    assert config.http == Endpoint("127.0.0.1", 8092)
    assert [listener.name for listener in config.client_listeners] == ["PLAINTEXT"]
    times = config.controller.machine.times
    assert (times.session_timeout_ms, times.silence_timeout_ms) == (9000, 2500)
    assert config.quorum.fetch_timeout_ms == 1500


def test_an_option_wins_over_the_environment_over_the_file(tmp_path: Path) -> None:
    """docs/configuration.md: -X, then the environment, then the file."""
    path = tmp_path / "node.properties"
    path.write_text("node.id=1\nfetch.max.bytes=2000\nbroker.rack=file\nlog.dirs=/file\n")
    environment = {"STRANDLINE_BROKER_RACK": "environment", "STRANDLINE_LOG_DIRS": "/environment", "PATH": "/bin"}
    config = NodeConfig.load(str(path), {"log.dirs": "/option"}, environment)
    assert (config.broker.fetch_max_bytes, config.broker_rack, config.log_dirs) == (2000, "environment", ("/option",))


def test_directories_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory above is synced after one is made, so a relative name, a final slash and dots must not hide which
    it is; the default is a relative one."""
    monkeypatch.chdir(tmp_path)
    assert NodeConfig({"node.id": "1"}).log_dirs == (f"{tmp_path}/strandline-data",)
    config = NodeConfig({"node.id": "1", "log.dirs": "data-1,./disk/../data-2/,/"})
    assert config.log_dirs == (f"{tmp_path}/data-1", f"{tmp_path}/data-2", "/")
    voters = {"node.id": "1", "controller.quorum.voters": "1@127.0.0.1:19092"}
    made = format_directory(RealDisk(), NodeConfig(voters), cluster_id="c", rng=random.Random(1))
    assert made.path == f"{tmp_path}/strandline-data"
    assert (tmp_path / "strandline-data" / "meta.properties").is_file()


def test_toml_tables_become_dotted_names() -> None:
    """Both formats say the same."""
    text = '[node]\nid = 3\n[controller.quorum]\nvoters = ["1@a:1", "2@b:2"]\n[auto.leader.rebalance]\nenable = false\n'
    assert parse_toml(text) == {
        "node.id": "3",
        "controller.quorum.voters": "1@a:1,2@b:2",
        "auto.leader.rebalance.enable": "false",
    }


def test_properties_as_java_reads_them() -> None:
    """Comments, both separators, blanks, joined lines."""
    text = "# note\n! note\n\na=1\nb : 2\nc = x=y\nd=1,\\\n  2\n"
    assert parse_properties(text) == {"a": "1", "b": "2", "c": "x=y", "d": "1,2"}


@pytest.mark.parametrize("text", ["just words", "=1", "a=1\na=2"])
def test_a_line_that_is_no_setting_is_refused(text: str) -> None:
    """Bad input: a wrong configuration gets a sentence."""
    with pytest.raises(ConfigError):
        parse_properties(text)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("broker.sesion.timeout.ms", "1", "did you mean broker.session.timeout.ms"),
        ("min.insync.replica", "1", "did you mean min.insync.replicas"),
        ("num.partition", "3", "did you mean num.partitions"),
        ("zookeeper.connect", "localhost:2181", "no ZooKeeper"),
        ("ssl.provider", "x", "OpenSSL"),
        ("log.retention.hours", "168", "Kafka has this setting.*log.retention.ms: 168 hours are 604800000"),
        ("log.roll.hours", "168", "Kafka has this setting.*log.roll.ms"),
        ("log.dir", "/data", "Kafka has this setting.*log.dirs"),
        ("controller.listener.names", "CONTROLLER", "INTERNAL"),
        ("inter.broker.listener.name", "PLAINTEXT", "INTERNAL"),
        ("log.cleaner.enable", "false", "compaction is always on"),
        ("log.cleaner.io.buffer.size", "1", "compaction is always on"),
        ("log.cleaner.backof.ms", "1", "did you mean log.cleaner.backoff.ms"),
        ("log.dirr", "/data", "did you mean log.dirs"),
        ("gibberish", "x", "no setting has this name"),
        ("broker.session.timeout.ms", "soon", "a whole number from 1"),
        ("broker.session.timeout.ms", "0", "a whole number from 1"),
        ("broker.heartbeat.interval.ms", "9000", "less than broker.session.timeout.ms"),
        ("process.roles", "leader", "broker, controller, or both"),
        ("auto.leader.rebalance.enable", "yes", "true or false"),
        ("flush.policy", "sometimes", "ack, replicate"),
        ("num.partitions", "0", "a whole number from 1"),
        ("listeners", "PLAINTEXT://localhost:9092", "one named INTERNAL"),
        ("listeners", "INTERNAL://localhost:1,HTTP://localhost:2", "a broker needs one for clients"),
        ("listeners", "INTERNAL://localhost:1,A://localhost:99999", "host:port"),
        ("listeners", "A://localhost:1,A://localhost:2", "each name once"),
        ("listeners", "INTERNAL://localhost:1,A://0.0.0.0:2", "A is bound to every address"),
        ("advertised.listeners", "B://localhost:2", "one of PLAINTEXT, INTERNAL, HTTP"),
        ("controller.quorum.voters", "a@b:1", "id@host:port"),
        ("controller.quorum.voters", "1@b:1,1@c:1", "each node once"),
        ("log.dirs", "a,b,a/", "each named once"),
        ("node.id", "-1", "a whole number from 0"),
    ],
)
def test_what_cannot_stand_is_refused_with_what_could(key: str, value: str, says: str) -> None:
    """Bad input: each wrong key or value gets key, value and what is allowed."""
    with pytest.raises(ConfigError, match=says):
        NodeConfig({"node.id": "1", key: value})


def test_the_node_id_must_be_given() -> None:
    """Nothing sensible can be made up for it."""
    with pytest.raises(ConfigError, match=r"node\.id"):
        NodeConfig({})


def test_an_almost_right_variable_is_refused_and_a_strangers_is_left_alone() -> None:
    """A typing error in the environment must not be lost; other programs' variables are not ours to judge."""
    with pytest.raises(ConfigError, match="STRANDLINE_NODE_ID"):
        NodeConfig.load(None, {}, {"STRANDLINE_NODEID": "1"})
    assert NodeConfig.load(None, {"node.id": "1"}, {"STRANDLINE_WEBSITE": "x"}).node_id == 1


def test_voters_keep_their_text() -> None:
    """KIP-853's form: a directory id may follow the address; without one any directory is meant."""
    directory = UUID(int=7)
    voters = parse_voters("x", f"2@[::1]:9,1@host:19092:{encode_id(directory)}")
    assert [voter.node_id for voter in voters] == [1, 2]
    assert voters[0].directory_id == directory
    assert voters[1].endpoint == Endpoint("::1", 9)
    assert parse_voters("x", write_voters(voters)) == voters


def test_advertised_addresses_take_the_bound_port() -> None:
    """Port 0 is known only once bound."""
    listeners = "PLAINTEXT://0.0.0.0:0,INTERNAL://127.0.0.1:0"
    config = NodeConfig({"node.id": "1", "listeners": listeners, "advertised.listeners": "PLAINTEXT://example.org:0"})
    assert config.advertised("PLAINTEXT", Endpoint("0.0.0.0", 4711)) == Endpoint("example.org", 4711)
    assert config.advertised("INTERNAL", Endpoint("127.0.0.1", 4712)) == Endpoint("127.0.0.1", 4712)


def test_a_controller_alone_has_no_client_listener() -> None:
    """Roles: a controller serves no clients."""
    config = NodeConfig({"node.id": "1", "process.roles": "controller"})
    assert config.client_listeners == ()


def test_overrides_are_pairs() -> None:
    """-X key=value."""
    assert parse_overrides(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(ConfigError, match="key=value"):
        parse_overrides(["a"])
