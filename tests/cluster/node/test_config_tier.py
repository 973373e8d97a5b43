"""The settings of tiered storage: what stands together, what is said instead of Kafka's own, what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.cluster.node.config import NodeConfig
from strandline.proto.errors import ConfigError
from strandline.proto.secrets import HIDDEN, is_secret
from strandline.proto.settings import ConfigType
from strandline.replica.tier_config import TierConfig

URL, OPTIONS, ENABLE = (
    "remote.log.storage.url",
    "remote.log.storage.options",
    "remote.log.storage.system.enable",
)


def config() -> NodeConfig:
    return NodeConfig({"node.id": "1"})


def test_without_a_url_there_is_no_tier() -> None:
    assert not config().tier.enabled
    assert not TierConfig({}).enabled


@pytest.mark.parametrize(("switch", "enabled"), [("", True), ("true", True), ("True", True), ("false", False)], ids=str)
def test_the_switch_follows_from_the_url(switch: str, enabled: bool) -> None:
    """Kafka's name turns off what the url turns on."""
    assert NodeConfig({"node.id": "1", URL: "s3://bucket/a", ENABLE: switch}).tier.enabled is enabled


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/b", "gs://b/c", "az://box/c", "file:///mnt/objects"])
def test_urls(url: str) -> None:
    """A slash at the end means nothing."""
    assert NodeConfig({"node.id": "1", URL: url}).tier.url == url
    assert NodeConfig({"node.id": "1", URL: url.rstrip("/") + "/"}).tier.url == url


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (URL, "bucket", "s3://bucket/prefix"),
        (URL, "ftp://bucket", "s3://bucket/prefix"),
        (URL, "s3:///prefix", "s3://bucket/prefix"),
        (URL, "file://host", "file:///directory"),
        (URL, "file:///", "file:///directory"),
        (URL, "s3://bucket/a?region=x", OPTIONS),
        (ENABLE, "yes", "true, false, or empty"),
        (ENABLE, "true", URL),
        (OPTIONS, "region", "part 1 is not so"),
        (OPTIONS, "a=1,b", "part 2 is not so"),
        (OPTIONS, "a=1,a=2", "each key once; a stands there twice"),
        (OPTIONS, "a=${env:NO_SUCH_VARIABLE_HERE}", "a is the environment variable NO_SUCH_VARIABLE_HERE"),
        ("remote.log.manager.copier.thread.pool.size", "0", "a whole number from 1"),
        ("remote.log.reaper.grace.ms", "1", "a whole number from 60000"),
        ("remote.log.manager.fetch.max.bytes.per.second", "1", "remote.log.reader.threads"),
        ("remote.log.storage.manager.class.name", "x.Y", URL),
        ("rsm.config.bucket", "b", URL),
        ("remote.log.metadata.manager.class.name", "x.Y", "the cluster's own metadata log"),
        ("rlmm.config.remote.log.metadata.topic.replication.factor", "1", "the cluster's own metadata log"),
        ("remote.log.manager.thread.pool.size", "4", "copier.thread.pool.size"),
        ("remote.log.manager.task.retry.backoff.ms", "4", "tried again"),
        ("remote.log.manager.copy.quota.window.num", "4", "copy.max.bytes.per.second"),
    ],
)
def test_what_cannot_stand_is_refused_with_what_could(key: str, value: str, says: str) -> None:
    """Kafka's settings that have no place here are named, with what does instead."""
    with pytest.raises(ConfigError, match=says.replace(".", r"\.").replace("?", r"\?")):
        NodeConfig({"node.id": "1", key: value})


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    """Neither by what is parsed nor by an error; a value may stand elsewhere."""
    (tmp_path / "key").write_text("hidden-key\n")
    text = f"region=eu-1, access_key_id=me,secret_access_key=${{dir:{tmp_path}:key}}"
    found = NodeConfig({"node.id": "1", URL: "s3://b", OPTIONS: text})
    assert dict(found.tier.options) == {"region": "eu-1", "access_key_id": "me", "secret_access_key": "hidden-key"}
    assert "hidden-key" not in repr(found.tier)
    assert NodeConfig.rows[OPTIONS].type is ConfigType.PASSWORD
    assert is_secret(OPTIONS)
    with pytest.raises(ConfigError) as caught:
        NodeConfig({"node.id": "1", OPTIONS: "secret_access_key=hidden-key,word"})
    assert "hidden-key" not in str(caught.value)
    assert caught.value.value == HIDDEN
    with pytest.raises(ConfigError) as caught:
        NodeConfig({"node.id": "1", URL: "s3://me:hidden-key@bucket"})
    assert "hidden-key" not in str(caught.value)
