"""max.connections, max.connections.per.ip and its overrides: one connection too many is closed, and nobody else's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient, connect
from structlog.testing import capture_logs

from strandline.cluster.broker.config import BrokerConfig
from strandline.cluster.broker.connection_limits import OF_ADDRESS, OVERALL, ConnectionLimits
from strandline.proto.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BrokerConfig(connections_max=2), OVERALL),
        (BrokerConfig(connections_per_ip_max=2), OF_ADDRESS),
        (BrokerConfig(connections_per_ip_max=0, connections_per_ip={"127.0.0.1": 2}), OF_ADDRESS),
    ],
)
def test_one_connection_too_many_is_closed_and_the_others_stay(
    tmp_path: Path, config: BrokerConfig, reason: str
) -> None:
    async def served(client: KafkaClient) -> bool:
        return bool((await client.ask("api_versions", 0)).api_keys)

    async def main() -> None:
        async with kafka_node(tmp_path, service=config) as node:
            await crowd(node)

    async def crowd(node: KafkaNode) -> None:
        where = node.listener.endpoint
        async with connect(where) as one, connect(where) as two:
            assert await served(one)
            assert await served(two)
            with capture_logs() as lines:
                for _ in range(5):
                    async with connect(where) as third:
                        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                            await served(third)
            said = [line for line in lines if line["event"] == "closed a new connection"]
            assert [line["reason"] for line in said] == [reason], "once, not at each of them"
            assert await served(one)
            assert await served(two)
        await until(lambda: not node.listener.connections)
        async with connect(where) as again:
            assert await served(again)

    asyncio.run(main())


def test_addresses_count_for_themselves_however_they_are_written() -> None:
    limits = ConnectionLimits(BrokerConfig(connections_per_ip_max=1, connections_per_ip={"2001:DB8::7": 2}))
    assert limits.admit("10.0.0.1") == ""
    assert limits.admit("::ffff:10.0.0.1") == OF_ADDRESS
    assert limits.admit("10.0.0.2") == ""
    assert [limits.admit("2001:db8:0::7") for _ in range(3)] == ["", "", OF_ADDRESS]
    limits.left("10.0.0.1")
    assert limits.admit("10.0.0.1") == ""
    for host in ("10.0.0.1", "10.0.0.2", "2001:db8::7", "2001:db8::7"):
        limits.left(host)
    assert not limits._by_address, "who has none is not remembered"
    assert limits._open == 0


def test_overrides_are_read_and_checked() -> None:
    setting = BrokerConfig.connections_per_ip
    assert setting.read(setting.name, "10.0.0.7:200, ::1:5") == {"10.0.0.7": 200, "::1": 5}
    assert setting.read(setting.name, "") == {}
    for text in ("localhost:5", "10.0.0.7", "10.0.0.7:many", "10.0.0.7:-1"):
        with pytest.raises(ConfigError):
            setting.read(setting.name, text)
