"""What earlier builds wrote is read, led and served by this one, however they stopped (`directories/README.md`,
schedule 94)."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

from strandline.client import Admin, Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.cluster.node.dev_layout import STATE_FILE
from strandline.cluster.node.ports import HeldPorts
from strandline.controller.quorum.recovery_point import FILE_NAME as RECOVERY_POINT
from strandline.log.checkpoints import CLEAN_SHUTDOWN
from tests.acceptance.helpers import eventually

DIRECTORIES = Path(__file__).parent / "directories"
GROUP = "old"

FOR_EVER = {"log.retention.ms": "-1", "offsets.retention.minutes": "100000000"}
"""Records and offsets of an archive are as old as it is."""


@dataclass(frozen=True)
class Build:
    """What an archive holds.

    Attributes:
        ends: where each partition ends; all begin at 0.
        committed: the offsets of `GROUP`.
    """

    ends: Mapping[tuple[str, int], int]
    committed: Mapping[tuple[str, int], int]


BUILDS = {
    "6ff0c29": Build(
        {("plain", 0): 972, ("plain", 1): 16, ("plain", 2): 12, ("keyed", 0): 428, ("keyed", 1): 572},
        {("plain", 0): 472, ("plain", 1): 16, ("plain", 2): 12},
    ),
    "53dd7cb1": Build(
        {
            ("plain", 0): 10,
            ("plain", 1): 979,
            ("plain", 2): 11,
            ("keyed", 0): 496,
            ("keyed", 1): 504,
            ("short", 0): 0,
        },
        {("plain", 1): 500},
    ),
}


def unpacked(build: str, where: Path) -> Path:
    """The directory of an archive's cluster, on ports that are free now."""
    data = zstandard.ZstdDecompressor().decompressobj().decompress((DIRECTORIES / f"{build}.tar.zst").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(where, filter="data")
    path = where / "data" / STATE_FILE
    state = json.loads(path.read_text())
    ports = HeldPorts("127.0.0.1")
    for node in state["nodes"]:
        node["client_port"], node["internal_port"], node["http_port"] = ports.any(3)
    ports.release()
    path.write_text(json.dumps(state))
    return where / "data"


@contextmanager
def running(root: Path) -> Iterator[DevCluster]:
    with DevCluster(root, settings=FOR_EVER) as cluster:
        yield cluster


def all_in_sync(cluster: DevCluster) -> set[str]:
    """The topics, once every partition of each is led and all its replicas are in sync."""

    def settled() -> set[str]:
        with Admin(cluster.responsive) as admin:
            found = admin.describe_topics(list(admin.list_topics(include_internal=True)))
        for topic in found:
            for one in topic.partitions:
                assert one.leader is not None, (topic.name, one)
                assert set(one.isr) == set(one.replicas), (topic.name, one)
        return {topic.name for topic in found}

    return eventually(settled)


def read_all(cluster: DevCluster, ends: Mapping[tuple[str, int], int]) -> None:
    """Every record, each offset once and in order."""
    with Consumer(cluster.responsive) as consumer:
        consumer.assign(list(ends))
        consumer.seek_to_beginning()
        assert {(tp.topic, tp.partition): end for tp, end in consumer.end_offsets(list(ends)).items()} == dict(ends)
        seen: dict[tuple[str, int], list[int]] = {tp: [] for tp in ends}

        def complete() -> bool:
            for record in consumer.poll(timeout_s=1):
                assert record.value
                seen[record.topic, record.partition].append(record.offset)
            return all(len(seen[tp]) >= end for tp, end in ends.items())

        eventually(complete)
        assert seen == {tp: list(range(end)) for tp, end in ends.items()}


def as_after_a_kill(root: Path) -> None:
    """Each node stopped in the middle of its work: without what a stop in good order writes, and with room reserved
    behind its logs. The archive comes from another boot, so that a start takes it for a power cut."""
    marks = [*root.rglob(CLEAN_SHUTDOWN), *root.rglob(RECOVERY_POINT)]
    assert len(marks) == 6, marks
    for path in marks:
        path.unlink()
    for path in root.rglob("*.log"):
        with path.open("ab") as file:
            file.write(bytes(4096))


@pytest.mark.parametrize("stop", ["stopped", "killed"])
@pytest.mark.parametrize("name", BUILDS)
def test_what_an_earlier_build_wrote_is_led_read_and_served(name: str, stop: str, tmp_path: Path) -> None:
    """The first start, and the one after it: that first one leaves what this build writes beside what it found."""
    build, root = BUILDS[name], unpacked(name, tmp_path)
    if stop == "killed":
        as_after_a_kill(root)
    with running(root) as cluster:
        assert all_in_sync(cluster) >= {topic for topic, _ in build.ends}
        read_all(cluster, build.ends)
        with Admin(cluster.responsive) as admin:
            offsets = admin.list_group_offsets(GROUP)
        assert {(tp.topic, tp.partition): one.offset for tp, one in offsets.items()} == build.committed
        with Producer(cluster.responsive) as producer:
            for (topic, partition), end in build.ends.items():
                assert producer.send(topic, b"new", key=b"new", partition=partition).result(60).offset == end
    with running(root) as cluster:
        all_in_sync(cluster)
        read_all(cluster, {tp: end + 1 for tp, end in build.ends.items()})
