"""What a client may make the node keep, write and say: names, versions and sentences without bounds on the wire."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kafka_case import run
from kafka_node import KafkaNode
from kafka_wire import KafkaClient, connect, frame

from strandline.cluster.broker.api import MESSAGE_CHARS_MAX
from strandline.cluster.broker.handlers import describe_configs
from strandline.cluster.broker.handlers.api_versions import SOFTWARE_CHARS_MAX
from strandline.cluster.broker.stats import OTHER_VERSION, SOFTWARE_KINDS_MAX
from strandline.proto.error_codes import ErrorCode

NAME = "n" * 32_000


def test_versions_that_are_not_served_share_a_label(tmp_path: Path) -> None:
    """Each of them was a histogram in /metrics: 20,000 questions made 41 MB of it, for good."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        for version in range(1000, 1200):
            client.writer.write(frame(18, version, 1, b"", flexible=False))
        for _ in range(1000, 1200):
            await client.receive_frame()
        await client.ask("api_versions", 2)
        assert sorted(node.listener.stats.apis) == [("ApiVersions", OTHER_VERSION), ("ApiVersions", 2)]
        assert node.listener.stats.apis["ApiVersions", OTHER_VERSION].answers == 200

    run(tmp_path, main)


def test_of_a_long_software_name_little_is_kept(tmp_path: Path) -> None:
    """And of few kinds: a name of a megabyte cost one, for good, with each connection."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        long = "a" * 1_000_000
        answer = await client.ask("api_versions", 3, client_software_name=long, client_software_version=long)
        assert answer.error_code == ErrorCode.NONE
        [connection] = node.listener.connections
        assert connection.peer.software_name == connection.peer.software_version == "a" * SOFTWARE_CHARS_MAX
        for number in range(SOFTWARE_KINDS_MAX + 10):
            node.listener.stats.count_software("b", str(number))
        assert len(node.listener.stats.software) == SOFTWARE_KINDS_MAX

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("api", "version", "request_", "results"),
    [
        ("create_partitions", 0, {"topics": [{"name": NAME, "count": 2}], "timeout": 1000}, "results"),
        ("create_partitions", 2, {"topics": [{"name": NAME, "count": 2}], "timeout": 1000}, "results"),
        (
            "incremental_alter_configs",
            0,
            {"resources": [{"resource_type": 2, "resource_name": "t", "configs": [{"name": NAME, "value": NAME}]}]},
            "responses",
        ),
        ("alter_configs", 0, {"resources": [{"resource_type": 2, "resource_name": NAME, "configs": []}]}, "responses"),
        ("describe_configs", 1, {"resources": [{"resource_type": 4, "resource_name": NAME + "n" * 700}]}, "results"),
        ("describe_configs", 4, {"resources": [{"resource_type": 4, "resource_name": NAME}]}, "results"),
    ],
)
def test_a_sentence_does_not_quote_without_end(
    tmp_path: Path, api: str, version: int, request_: dict[str, Any], results: str
) -> None:
    """The older formats have no room for it: the answer failed, and the connection with it."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        answer = await client.ask(api, version, **request_)
        [result] = getattr(answer, results)
        assert result.error_code != ErrorCode.NONE
        assert 10 < len(result.error_message) <= MESSAGE_CHARS_MAX + 3

    run(tmp_path, main)


def test_configs_of_many_topics_hold_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What topics have in common is written once, and others have their turn before the last topic is described."""
    monkeypatch.setattr(describe_configs, "SLICE_MS", 0.0)
    written = 0
    config = describe_configs._config

    def counted(*values: Any) -> Any:
        nonlocal written
        written += 1
        return config(*values)

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        for number in range(50):
            node.create_topic(f"t{number}", retention_ms=str(number % 2 + 1000))
        resources = [{"resource_type": 2, "resource_name": f"t{number}"} for number in range(50)]
        async with connect(node.listener.endpoint) as other:
            await other.ask("api_versions", 0)
            monkeypatch.setattr(describe_configs, "_config", counted)
            order: list[str] = []

            async def asked(who: str, client: KafkaClient, sent: tuple[int, Any]) -> Any:
                answer = await client.receive(sent)
                order.append(who)
                return answer

            many = client.send("describe_configs", 4, resources=resources, include_synonyms=True)
            one = other.send("api_versions", 0)
            answer, _ = await asyncio.gather(asked("many", client, many), asked("one", other, one))
        kinds = {config.name for config in answer.results[0].configs}
        assert written == len(kinds) + 1
        told = [{config.name: config.value for config in result.configs} for result in answer.results]
        assert [one["retention.ms"] for one in told] == [str(number % 2 + 1000) for number in range(50)]
        assert order == ["one", "many"]

    run(tmp_path, main)
