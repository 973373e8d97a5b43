"""Bad input, on whole nodes: full disks, damaged and half-written files, nonsense between nodes.

Each gets Kafka's error or a sentence; nothing acked is lost, and no node falls that could go on. What single parts do
with it is tested there: the table is in docs/bad-input.md.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import grpc
import pytest

from strandline.client import Producer
from strandline.client.errors import ClientError
from strandline.cluster.node.dev import DevCluster
from strandline.controller import methods
from strandline.controller.operations import OPERATIONS
from strandline.controller.quorum.methods import METHODS as QUORUM_METHODS
from strandline.proto.errors import ConfigError, KafkaError
from strandline.replica.fetcher import STREAM_METHOD
from tests.acceptance.helpers import QUICK, eventually, leader_of, make_topic, read_all, send_all, wait_isr


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[None]:
    """A file system of its own at `path`. Skips the test where this process may not mount one."""
    libc = ctypes.CDLL(None, use_errno=True)
    path.mkdir(parents=True)
    if libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, b"size=%d" % size_bytes):
        pytest.skip(f"a full disk needs a file system of its own: mount: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        detach = 2  # MNT_DETACH: whoever still has a file open keeps it
        libc.umount2(os.fsencode(path), detach)


def fill_up(path: Path) -> Path:
    """A file that takes every byte that is left."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return filler


def metric(cluster: DevCluster, node: int, name: str) -> float:
    """A gauge without labels."""
    with urllib.request.urlopen(f"http://{cluster.http(node)}/metrics", timeout=10) as answer:
        [line] = [line for line in answer.read().decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def flip(path: Path, position: int) -> None:
    """Another byte at `position`; a second time, the old one."""
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x5A]))


def internal_endpoint(cluster: DevCluster) -> tuple[str, int]:
    """Where other nodes reach node 1."""
    settings = (cluster.root / "node-1.properties").read_text()
    [(host, port)] = re.findall(r"^listeners=.*INTERNAL://([^,\s:]+):(\d+)", settings, re.MULTILINE)
    return host, int(port)


def unary_methods() -> list[str]:
    """Every method that nodes call on each other, streams excepted."""
    return [*(method.path for method in QUORUM_METHODS.values()), *(each.method.path for each in OPERATIONS)]


class Flow:
    """Sends to one partition with acks=all until it is stopped; what was acknowledged, and when."""

    def __init__(self, cluster: DevCluster, topic: str, partition: int) -> None:
        self.acked: list[bytes] = []
        self.times: list[float] = [time.monotonic()]
        self.refusals: list[Exception] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send, args=(cluster.bootstrap, topic, partition))
        self._thread.start()

    def _send(self, bootstrap: str, topic: str, partition: int) -> None:
        with Producer(bootstrap, linger_ms=0) as producer:
            number = 0
            while not self._stopped.is_set():
                number += 1
                value = b"%d:" % number + bytes(50_000)
                try:
                    producer.send(topic, value, partition=partition).result(150)
                except (KafkaError, ClientError) as error:
                    self.refusals.append(error)
                else:
                    self.acked.append(value)
                    self.times.append(time.monotonic())
                self._stopped.wait(0.02)

    def goes_on(self) -> None:
        """Returns when more was acknowledged."""
        enough = len(self.acked) + 20
        eventually(lambda: len(self.acked) > enough, 120)

    def stop(self) -> float:
        """The longest time without an ack."""
        self._stopped.set()
        self._thread.join()
        return max(later - sooner for sooner, later in pairwise([*self.times, time.monotonic()]))


def test_a_full_disk_moves_what_it_led_and_loses_nothing(tmp_path: Path) -> None:
    """Schedule 57: one of three nodes has no byte left, and is even killed so. What it leads moves to the others, whose
    acks do not wait for it either (they did for 30 s, until it counted as lagging; and it kept its leaderships until
    somebody made room). With room it is in sync again by itself, and every acked record is there."""
    with small_disk(tmp_path / "node-1", 32 << 20), DevCluster(tmp_path, nodes=3) as cluster:
        make_topic(cluster, "full", partitions=3, replication=3)
        flows = [Flow(cluster, "full", number) for number in range(3)]
        try:
            for flow in flows:
                flow.goes_on()
            pids = cluster.pids()
            filler = fill_up(tmp_path / "node-1")
            for number, flow in enumerate(flows):
                wait_isr(cluster, "full", {2, 3}, number)
                flow.goes_on()
        finally:
            gaps = [flow.stop() for flow in flows]
        assert max(gaps) < 10, gaps  # 0.05 to 0.3 s on a quiet machine
        assert not any(flow.refusals for flow in flows)
        assert cluster.pids() == pids
        assert metric(cluster, 1, "strandline_disk_full") == 1
        cluster.kill(1)
        cluster.start_node(1)
        filler.unlink()
        for number, flow in enumerate(flows):
            wait_isr(cluster, "full", {1, 2, 3}, number)
            send_all(cluster, "full", [b"after"], number)
            assert read_all(cluster, "full", number) == [*flow.acked, b"after"]
        assert metric(cluster, 1, "strandline_disk_full") == 0


def test_damage_in_the_middle_costs_one_copy(tmp_path: Path) -> None:
    """Row S78, schedule 81: one byte of a segment is another when a node comes back after kill -9: file and byte are in
    the log, the node serves the others, clients read every acked record from the other replicas. The damaged directory
    is set aside, the copy is fetched again by itself, and then the directory is removed."""
    with DevCluster(tmp_path, nodes=3, settings=QUICK) as cluster:
        for topic in ("hurt", "whole"):
            make_topic(cluster, topic, replication=3)
            send_all(cluster, topic, [b"%d" % number for number in range(100)], batch_size=100)
            wait_isr(cluster, topic, {1, 2, 3})
        victim = leader_of(cluster, "hurt")
        cluster.kill(victim)
        [segment] = Path(cluster.data_dir(victim), "hurt-0").glob("*.log")
        flip(segment, 1_000)
        cluster.start_node(victim)
        eventually(lambda: f"{segment} at byte" in Path(cluster.log_path(victim)).read_text())
        wait_isr(cluster, "whole", {1, 2, 3})
        send_all(cluster, "hurt", [b"100"])
        assert read_all(cluster, "hurt") == [b"%d" % number for number in range(101)]
        wait_isr(cluster, "hurt", {1, 2, 3})
        assert "a damaged log is set aside" in Path(cluster.log_path(victim)).read_text()
        eventually(lambda: not list(Path(cluster.data_dir(victim)).glob("*-rotten")))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """One node with a topic "kept": 120 records in several segments."""
    with DevCluster(tmp_path_factory.mktemp("single"), nodes=1) as cluster:
        make_topic(cluster, "kept", replication=1, segment_bytes="16384")
        for producer in range(3):
            send_all(cluster, "kept", [b"%d:%d:" % (producer, n) + bytes(500) for n in range(40)], batch_size=2_000)
        yield cluster


def kept(cluster: DevCluster) -> int:
    return len(read_all(cluster, "kept"))


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties",
    ],
)
def test_a_half_written_file_stops_the_start_with_a_sentence(single: DevCluster, name: str) -> None:
    """The node says which file, and what to do; it does not guess. The file restored, everything is there."""
    single.stop_node(1)
    path = Path(single.data_dir(1), name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    single.start_node(1, wait=False)
    assert eventually(lambda: single.exit_code(1)) == 1
    said = single.last_words(1)
    assert f"strandline: {path} at byte" in said
    assert "Traceback" not in said
    path.write_bytes(whole)
    single.start_node(1)
    assert kept(single) == 120


@pytest.mark.parametrize(
    "pattern",
    [
        ".kafka_cleanshutdown",
        ".boot-id",
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "offset-checkpoints-copy",
        "__cluster_metadata-0/quorum-state",
        "__cluster_metadata-0/recovery-point.properties",
        "quorum-promise",
        "kept-0/leader-epoch-checkpoint",
        "kept-0/*.index",
        "kept-0/*.timeindex",
        "kept-0/*.snapshot",
    ],
)
def test_a_half_written_file_that_can_be_rebuilt_costs_time_alone(single: DevCluster, pattern: str) -> None:
    """What says nothing that the batches do not say is made anew from them, and what is kept twice from the other."""
    single.stop_node(1)
    paths = sorted(Path(single.data_dir(1)).glob(pattern))
    assert paths
    for path in paths:
        os.truncate(path, path.stat().st_size // 2)
    single.start_node(1)
    assert kept(single) == 120


def test_a_half_written_layout_of_a_cluster_is_refused(tmp_path: Path) -> None:
    """What `strandline dev` keeps of ids and ports: not guessed anew, for the data behind it would seem gone."""
    (tmp_path / "cluster.json").write_text('{"cluster_id": "x", "nodes": [{"node_id": 1')
    with pytest.raises(ConfigError, match=r"cluster\.json.*--fresh begins anew"):
        DevCluster(tmp_path)


def test_damage_in_the_metadata_log_stops_the_start_with_a_sentence(single: DevCluster) -> None:
    """Rule E5: nothing of a voter's log is cut silently."""
    single.kill(1)
    [log] = Path(single.data_dir(1), "__cluster_metadata-0").glob("*.log")
    flip(log, 200)
    single.start_node(1, wait=False)
    assert eventually(lambda: single.exit_code(1)) == 1
    assert f"strandline: {log} at byte" in single.last_words(1)
    flip(log, 200)
    single.start_node(1)
    assert kept(single) == 120


def test_nonsense_between_nodes(single: DevCluster) -> None:
    """Random bytes on the port between nodes, bare and as the body of every method: refused; the node goes on."""
    pids = single.pids()
    host, port = internal_endpoint(single)
    rng = random.Random(78)
    for size in (1, 9, 1_000, 100_000):
        with socket.create_connection((host, port), 5) as connection, suppress(ConnectionError):
            connection.sendall(rng.randbytes(size))
    paths = [path for path in unary_methods() if not path.endswith("Ping")]
    assert len(paths) > 10
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for method in paths:
            for size in (1, 40, 4_000):
                with pytest.raises(grpc.RpcError):
                    channel.unary_unary(method)(rng.randbytes(size), timeout=10)
        for method in (STREAM_METHOD, methods.SESSION.path):
            for size in (1, 40, 4_000):
                with suppress(grpc.RpcError):
                    list(channel.stream_stream(method)(iter([rng.randbytes(size)]), timeout=10))
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            channel.unary_unary("/strandline.v1.Quorum/Nonsense")(b"", timeout=10)
    assert single.pids() == pids
    send_all(single, "kept", [b"after"])
    assert kept(single) == 121
