"""Records go by age and size, on real nodes: retention.ms and retention.bytes, altered while the cluster runs."""

from __future__ import annotations

from pathlib import Path

from strandline.client import EARLIEST, Admin
from strandline.client.types import ConfigChange, ConfigResource
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK, eventually, make_topic, read_all, send_all

SETTINGS = QUICK | {"log.retention.check.interval.ms": "300"}
TOPIC = "brief"


def alter(cluster: DevCluster, **settings: str) -> None:
    changes = [ConfigChange(name.replace("_", "."), value) for name, value in settings.items()]
    with Admin(cluster.responsive) as admin:
        admin.alter_configs({ConfigResource("topic", TOPIC): changes})


def earliest(cluster: DevCluster) -> int:
    with Admin(cluster.responsive) as admin:
        [found] = admin.list_offsets({(TOPIC, 0): EARLIEST}).values()
    return found.offset


def bytes_on_disk(cluster: DevCluster) -> list[int]:
    """Of the partition's `.log` files, by node, as far as they are filled."""
    directories = [Path(cluster.data_dir(node)) / f"{TOPIC}-0" for node in cluster.node_ids]
    return [sum(filled(path) for path in each.glob("*.log")) for each in directories]


def filled(path: Path) -> int:
    try:
        return len(path.read_bytes().rstrip(b"\0"))
    except FileNotFoundError:  # it has just been deleted
        return 0


def test_age_and_size_take_records_from_every_disk() -> None:
    """Row S74: what is old goes, from a quiet topic too; offsets go on; a consumer reads what is left,
    also after kill -9 of all; size takes no more than what is too much."""
    with DevCluster(settings=SETTINGS) as cluster:
        make_topic(cluster, TOPIC)
        alter(cluster, file_delete_delay_ms="0")
        send_all(cluster, TOPIC, [b"%d" % number for number in range(10)])
        assert earliest(cluster) == 0
        alter(cluster, retention_ms="500")
        eventually(lambda: earliest(cluster) == 10)
        eventually(lambda: not any(bytes_on_disk(cluster)))
        alter(cluster, retention_ms="-1")
        send_all(cluster, TOPIC, [b"left"])
        for node in cluster.node_ids:
            cluster.kill(node)
        for node in cluster.node_ids:
            cluster.start_node(node, wait=False)
        cluster.wait_ready()
        eventually(lambda: read_all(cluster, TOPIC) == [b"left"])
        assert earliest(cluster) == 10

        alter(cluster, retention_bytes="3000", segment_bytes="1024")
        for number in range(40):
            send_all(cluster, TOPIC, [b"%d" % number + b"." * 200])
        eventually(lambda: all(3_000 <= size < 5_000 for size in bytes_on_disk(cluster)))
        assert read_all(cluster, TOPIC)[-1].startswith(b"39.")
