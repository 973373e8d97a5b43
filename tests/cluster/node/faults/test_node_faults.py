"""The fault hook of a whole node: only where the setting says so; asked over HTTP, met by clients and by the disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs
from tests.ports import free_port

from strandline.client.aio import Admin, Producer
from strandline.client.types import EARLIEST, NewTopic, OffsetAndMetadata, TopicPartition
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.faults.injection import SlowDisk
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.node import Node
from strandline.cluster.node.world import system_world
from strandline.log.retention import CLOCK_FILE

DAY_MS = 24 * 3_600_000


def run(path: Path, body: Callable[[Node], Awaitable[None]], **more: str) -> None:
    """A node of one, ready; then `body`."""

    async def main() -> None:
        world = system_world()
        internal = free_port()
        config = NodeConfig(
            {
                "node.id": "1",
                "listeners": f"PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:{internal},HTTP://127.0.0.1:0",
                "log.dirs": str(path),
                "controller.quorum.voters": f"1@127.0.0.1:{internal}",
                **{key.replace("_", "."): value for key, value in more.items()},
            }
        )
        format_directory(world.disk, config, cluster_id="a-cluster", rng=world.rng)
        node = Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc)
        await node.start()
        try:
            async with asyncio.timeout(20):
                await node.wait_ready()
                await body(node)
        finally:
            await node.stop()

    asyncio.run(main())


async def ask(node: Node, method: str, body: str = "") -> tuple[int, Any]:
    assert node.http is not None
    endpoint = node.http.endpoint
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    head = f"{method} /faults HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    answer = (await reader.read()).decode()
    writer.close()
    text = answer.partition("\r\n\r\n")[2]
    return int(answer.split()[1]), json.loads(text) if text.startswith("{") else text


def bootstrap(node: Node) -> str:
    return str(node.describe()["PLAINTEXT"])


def test_without_the_setting_there_is_no_hook(tmp_path: Path) -> None:
    """Default false: /faults answers 404, the node has neither the wrapped disk nor wrapped APIs."""
    assert NodeConfig.rows["strandline.fault.injection"].default == "false"

    async def body(node: Node) -> None:
        assert (await ask(node, "GET"))[0] == 404
        assert (await ask(node, "POST", '{"slow_disk_ms": 50}'))[0] == 404
        assert node.faults is None
        assert not isinstance(node.disk, SlowDisk)

    run(tmp_path, body)


def test_a_client_meets_the_error_and_the_node_counts_it(tmp_path: Path) -> None:
    """A producer that is told NOT_LEADER twice looks for the leader and sends again: one record, two faults met."""

    async def body(node: Node) -> None:
        async with Admin(bootstrap(node)) as admin:
            await admin.create_topics([NewTopic("orders", 1, 1)])
        asked = {"fail_next": {"api": "PRODUCE", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}}
        status, told = await ask(node, "POST", json.dumps(asked))
        assert status == 200
        assert told["faults"][0]["id"] == 1
        async with Producer(bootstrap(node), retry_backoff_ms=5) as producer:
            assert (await (await producer.send("orders", b"soup"))).offset == 0
        status, told = await ask(node, "GET")
        assert (status, told["faults"][0]["met"]) == (200, 2)

    run(tmp_path, body, strandline_fault_injection="true")


def test_a_slow_disk_holds_acks_up_until_it_is_quick_again(tmp_path: Path) -> None:
    """Each sync takes so much longer, and an ack waits for its sync; met counts the syncs."""

    async def body(node: Node) -> None:
        async with Admin(bootstrap(node)) as admin, Producer(bootstrap(node), linger_ms=0) as producer:
            await admin.create_topics([NewTopic("orders", 1, 1)])
            await (await producer.send("orders", b"first"))
            loop = asyncio.get_running_loop()
            await ask(node, "POST", '{"slow_disk_ms": 300}')
            began = loop.time()
            await (await producer.send("orders", b"slow"))
            assert loop.time() - began >= 0.29
            await ask(node, "POST", '{"slow_disk_ms": 0}')
            met = (await ask(node, "GET"))[1]["faults"][0]["met"]
            assert met >= 1
            await (await producer.send("orders", b"quick"))
            assert (await ask(node, "GET"))[1]["faults"][0]["met"] == met

    run(tmp_path, body, strandline_fault_injection="true")


def test_100_a_clock_set_ahead_by_the_hook_takes_nothing(tmp_path: Path) -> None:
    """Schedule 100: by it every record is older than retention.ms, each committed offset older than a week. The log
    says that it is not believed, whoever in the node saw it first."""
    where = TopicPartition("orders", 0)

    async def look(passes: int = 2) -> None:
        """Retention looks through everything so often."""
        for _ in range(passes):
            before_ns = (tmp_path / CLOCK_FILE).stat().st_mtime_ns
            while (tmp_path / CLOCK_FILE).stat().st_mtime_ns == before_ns:
                await asyncio.sleep(0.05)

    async def body(node: Node) -> None:
        real = system_world().clock
        async with Admin(bootstrap(node)) as admin, Producer(bootstrap(node)) as producer:
            await admin.create_topics([NewTopic("orders", 1, 1, {"retention.ms": str(7 * DAY_MS)})])
            await (await producer.send("orders", b"kept"))
            await admin.alter_group_offsets("readers", {where: OffsetAndMetadata(1)})
            status, told = await ask(node, "POST", json.dumps({"clock_ahead_ms": 8 * DAY_MS}))
            assert (status, told["faults"][0]["kind"]) == (200, "clock_ahead")
            assert node.clock.wall_ms() - real.wall_ms() > 7 * DAY_MS
            await look()
            await (await producer.send("orders", b"meanwhile"))
            assert (await ask(node, "POST", json.dumps({"clock_ahead_ms": 0})))[0] == 200
            assert node.clock.wall_ms() - real.wall_ms() < DAY_MS
            await look()
            assert (await admin.list_group_offsets("readers"))[where].offset == 1
            assert (await admin.list_offsets({where: EARLIEST}))[where].offset == 0
        assert (await ask(node, "POST", json.dumps({"clock_ahead_ms": "tomorrow"})))[0] == 400

    with capture_logs() as logs:
        settings = {"log.retention.check.interval.ms": "50", "offsets.retention.check.interval.ms": "50"}
        run(tmp_path, body, strandline_fault_injection="true", **settings)
    assert any("the wall clock was set ahead" in line["event"] for line in logs)
