"""One combined node in this process, on a real disk and real sockets."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.log.helpers import FailingDisk
from tests.ports import free_port

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.format import Formatted, format_directory
from strandline.cluster.node.metrics import Metrics
from strandline.cluster.node.node import Node
from strandline.cluster.node.world import World, system_world
from strandline.log.disk import DiskFull
from strandline.log.log_dir import read_meta_properties
from strandline.log.real_disk import RealDisk
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint

CLUSTER = "a-cluster"


def free_port_config(path: Path, **more: str) -> NodeConfig:
    internal = free_port()
    return NodeConfig(
        {
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:{internal},HTTP://127.0.0.1:0",
            "log.dirs": str(path),
            "controller.quorum.voters": f"1@127.0.0.1:{internal}",
            **{key.replace("_", "."): value for key, value in more.items()},
        }
    )


async def make_node(config: NodeConfig) -> tuple[Node, World]:
    world = system_world()
    return Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc), world


def run(path: Path, body: Callable[[Node], Awaitable[None]], **more: str) -> None:
    """Format if need be, start, run, stop."""

    async def main() -> None:
        world = system_world()
        config = free_port_config(path, **more)
        format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng, ignore_formatted=True)
        node = Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc)
        await node.start()
        try:
            async with asyncio.timeout(20):
                await body(node)
        finally:
            await node.stop()

    asyncio.run(main())


async def get(endpoint: Endpoint, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


def test_a_node_of_one_reports_health_readiness_and_metrics(tmp_path: Path) -> None:
    """`/metrics` with Kafka's names, /healthz, /readyz."""

    async def body(node: Node) -> None:
        assert node.http is not None
        http = node.http.endpoint
        assert (await get(http, "/healthz"))[0] == 200
        await node.wait_ready()
        status, told = await get(http, "/readyz")
        assert status == 200
        assert json.loads(told)["cluster_id"] == CLUSTER
        status, page = await get(http, "/metrics")
        assert status == 200
        for line in (
            "kafka_server_replicamanager_underreplicatedpartitions 0.0",
            "kafka_server_replicamanager_isrshrinks_total 0.0",
            "kafka_server_replicamanager_isrexpands_total 0.0",
            "kafka_server_brokertopicmetrics_bytesin_total 0.0",
            "kafka_controller_kafkacontroller_activecontrollercount 1.0",
            "kafka_controller_kafkacontroller_activebrokercount 1.0",
            "event_loop_lag_ms ",
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
        ):
            assert line in page, line

    run(tmp_path / "data", body)


def test_grpc_health_is_told_once_ready(tmp_path: Path) -> None:
    """design.md 2: health on the internal listener; NOT_SERVING until the broker is unfenced."""
    from grpc_health.v1 import health_pb2

    async def ask(node: Node) -> int:
        where = node.describe()["INTERNAL"]
        host, _, port = str(where).rpartition(":")
        raw = await node.rpc.call(Endpoint(host, int(port)), "/grpc.health.v1.Health/Check", b"", timeout_ms=5000)
        return int(health_pb2.HealthCheckResponse.FromString(raw).status)

    async def fenced(node: Node) -> None:
        assert await ask(node) == health_pb2.HealthCheckResponse.NOT_SERVING

    async def ready(node: Node) -> None:
        await node.wait_ready()
        while await ask(node) != health_pb2.HealthCheckResponse.SERVING:
            await asyncio.sleep(0.01)

    # A quorum whose other half is not there: this one never gets ready.
    run(tmp_path / "half", fenced, controller_quorum_voters="1@127.0.0.1:1,2@127.0.0.1:2")
    run(tmp_path / "data", ready)


def test_not_ready_says_why(tmp_path: Path) -> None:
    """/readyz is for people too: it names what is waited for."""

    async def main() -> None:
        world = system_world()
        config = free_port_config(tmp_path / "data", controller_quorum_voters="1@127.0.0.1:1,2@127.0.0.1:2")
        format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng)
        node = Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc)
        await node.start()
        assert node.http is not None
        status, told = await get(node.http.endpoint, "/readyz")
        assert status == 503
        assert "majority" in json.loads(told)["reason"]
        await node.stop()

    asyncio.run(main())


def test_a_stopped_node_has_left_the_clean_marker_and_starts_again(tmp_path: Path) -> None:
    """Rule B12: the marker carries the broker epoch, and is gone while the node runs."""
    path = tmp_path / "data"
    epochs: list[int] = []

    async def body(node: Node) -> None:
        await node.wait_ready()
        assert node.broker is not None
        epochs.append(node.broker.session.broker_epoch)
        assert not (path / ".kafka_cleanshutdown").exists()

    run(path, body)
    assert str(epochs[0]) in (path / ".kafka_cleanshutdown").read_text()
    run(path, body)
    assert epochs[1] > epochs[0]


def test_an_unformatted_directory_is_refused_with_the_command(tmp_path: Path) -> None:
    """Schedule 26: a node never formats itself; the sentence has the exact command."""

    async def main() -> None:
        path = tmp_path / "data"
        with pytest.raises(ConfigError, match=f"strandline format --cluster-id ID -X node.id=1 -X log.dirs={path}"):
            await make_node(free_port_config(path))

    asyncio.run(main())


def test_a_fatal_error_stops_the_node_without_the_clean_marker(tmp_path: Path) -> None:
    """KAFKA-15375: never written when it did not end well."""
    path = tmp_path / "data"

    async def main() -> None:
        world = system_world()
        config = free_port_config(path)
        format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng)
        node = Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc)
        await node.start()
        await node.wait_ready()
        node.fatal(OSError("the disk is on fire"))
        with pytest.raises(OSError, match="on fire"):
            await node.failed
        assert node.http is not None
        assert (await get(node.http.endpoint, "/healthz"))[0] == 503
        await node.stop()
        assert not (path / ".kafka_cleanshutdown").exists()

    asyncio.run(main())


def test_a_full_disk_at_the_end_lets_the_node_stop_without_the_clean_marker(tmp_path: Path) -> None:
    """What cannot be written then is recovered by the next start; ports are given back all the same."""
    path = tmp_path / "data"

    async def main() -> None:
        world = system_world()
        disk = FailingDisk()
        config = free_port_config(path)
        format_directory(disk, config, cluster_id=CLUSTER, rng=world.rng)
        node = Node(config, disk=disk, clock=world.clock, rng=world.rng, rpc=world.rpc)
        await node.start()
        await node.wait_ready()
        assert node.http is not None
        disk.write_error = DiskFull(errno.ENOSPC, "No space left on device")
        await node.stop()
        assert not (path / ".kafka_cleanshutdown").exists()
        with pytest.raises(ConnectionError):
            await get(node.http.endpoint, "/healthz")

    asyncio.run(main())
    run(path, Node.wait_ready)


def test_another_nodes_or_clusters_directory_is_refused(tmp_path: Path) -> None:
    """A directory belongs to one node of one cluster, for life."""
    world = system_world()
    path = tmp_path / "data"
    config = free_port_config(path)
    made = format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng)
    assert read_meta_properties(world.disk, str(path)) == made.meta
    with pytest.raises(ConfigError, match="formatted already"):
        format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng)
    again = format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng, ignore_formatted=True)
    assert again.already
    assert again.meta == made.meta
    with pytest.raises(ConfigError, match="another directory"):
        format_directory(world.disk, config, cluster_id="another", rng=world.rng, ignore_formatted=True)

    async def main() -> None:
        with pytest.raises(ConfigError, match="this one is node 1's"):
            await make_node(free_port_config(path, node_id="2", controller_quorum_voters="2@127.0.0.1:1"))
        with pytest.raises(ConfigError, match="was formatted with"):
            await make_node(free_port_config(path, controller_quorum_voters="1@127.0.0.1:1,2@127.0.0.1:2"))

    asyncio.run(main())


def test_format_again_formats_what_was_added(tmp_path: Path) -> None:
    """Several directories: those that are formatted stay as they are, each has its own id, and all are one node's."""
    world = system_world()
    paths = [tmp_path / name for name in ("first", "second", "third")]

    def made(count: int, cluster_id: str = CLUSTER) -> Formatted:
        config = free_port_config(paths[0], log_dirs=",".join(map(str, paths[:count])))
        return format_directory(world.disk, config, cluster_id=cluster_id, rng=world.rng)

    first = made(2)
    assert (first.already, dict(first.others)) == (False, {str(paths[1]): False})
    again = made(3)
    assert (again.already, dict(again.others)) == (True, {str(paths[1]): True, str(paths[2]): False})
    assert again.meta == first.meta
    metas = [read_meta_properties(world.disk, str(path)) for path in paths]
    assert len({meta.directory_id for meta in metas}) == 3
    assert {(meta.node_id, meta.cluster_id) for meta in metas} == {(1, CLUSTER)}
    with pytest.raises(ConfigError, match="formatted already"):
        made(3)
    (paths[2] / "meta.properties").unlink()
    with pytest.raises(ConfigError, match="another directory"):
        made(3, "another")


def test_a_node_of_two_directories(tmp_path: Path) -> None:
    """A replica that was made in the second one is there after a restart, and offline while its disk is away."""
    world = system_world()
    paths = [tmp_path / "first", tmp_path / "second"]
    config = free_port_config(paths[0], log_dirs=",".join(map(str, paths)))
    format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng)

    async def lives(*, away: bool = False) -> None:
        node = Node(
            config,
            disk=RealDisk(),
            disks={str(paths[1]): RealDisk()},
            clock=world.clock,
            rng=world.rng,
            rpc=system_world().rpc,
        )
        await node.start()
        await node.wait_ready()
        assert node.broker is not None
        assert list(node.log_dirs.offline) == ([str(paths[1])] if away else [])
        told = Metrics(node).render().decode()
        assert f"kafka_log_logmanager_offlinelogdirectorycount {float(away)}" in told
        assert f'kafka_log_logmanager_logdirectoryoffline{{log_directory="{paths[1]}"}} {float(away)}' in told
        await node.stop()

    asyncio.run(lives())
    assert (paths[1] / ".kafka_cleanshutdown").exists()
    paths[1].rename(tmp_path / "elsewhere")
    asyncio.run(lives(away=True))
    assert not paths[1].exists(), "nothing is made where a disk should be"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"controller_quorum_voters": "2@127.0.0.1:1"}, "a controller is one of the voters"),
        ({"controller_quorum_voters": "1@127.0.0.1:1", "process_roles": "broker"}, "only a broker is none"),
        ({"controller_quorum_voters": ""}, "id@host:port"),
    ],
)
def test_formatting_for_a_contradiction_is_refused(tmp_path: Path, more: dict[str, str], says: str) -> None:
    """Role and voters must fit before anything is written."""
    world = system_world()
    config = free_port_config(tmp_path / "data", **more)
    with pytest.raises(ConfigError, match=says):
        format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng)
    assert not (tmp_path / "data").exists()


def test_a_dry_run_of_format_writes_nothing(tmp_path: Path) -> None:
    """Every admin write has --dry-run."""
    world = system_world()
    config = free_port_config(tmp_path / "data")
    made = format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng, dry_run=True)
    assert not made.already
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("policy", ["ack", "replicate"])
def test_the_flush_policy_of_the_file_is_obeyed(tmp_path: Path, policy: str) -> None:
    """A setting without effect would be a lie: whether a record counts before it is synced follows flush.policy."""

    async def body(node: Node) -> None:
        await node.wait_ready()
        assert node.broker is not None
        assert node.broker.replicas.config.flush_policy == policy

    run(tmp_path / "data", body, flush_policy=policy)
