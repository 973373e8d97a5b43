"""The audit of a cluster: the topic `__audit` has every line that any broker has in its file (rule A20)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strandline.cli.main import main
from strandline.client import Admin, ConfigChange, ConfigResource
from strandline.cluster.node.config_values import read_file
from strandline.cluster.node.dev import DevCluster
from strandline.proto.audit import AUDIT_TOPIC
from tests.acceptance.helpers import eventually

pytestmark = pytest.mark.timeout(240)


def in_files(root: Path) -> dict[int, list[str]]:
    """The lines of each broker's changes: there are no others."""
    assert not [path for path in root.glob("*.attempts") if path.stat().st_size]
    return {int(path.stem): path.read_text().splitlines() for path in sorted(root.glob("*.log"))}


def in_topic(cluster: DevCluster) -> dict[int, list[str]]:
    """The lines of each broker, each once, in the order of their time."""
    words = ["audit", "tail", "-n", "10000", "-o", "json", "-b", cluster.responsive]
    words += ["--command-config", str(cluster.client_properties)]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 0, told.output
    found: dict[int, dict[str, None]] = {}
    for line in map(json.loads, told.stdout.splitlines()):
        found.setdefault(line.pop("broker"), {})[json.dumps(line)] = None
    return {broker: list(lines) for broker, lines in sorted(found.items())}


def test_the_topic_has_the_lines_of_every_broker(tmp_path: Path) -> None:
    """Of one that came after the topic was made and leads nothing of it; through a stop, a start and the death of a
    leader. Each broker's lines in their order; those that it gives to another over mutual TLS."""
    files = tmp_path / "audit"
    files.mkdir()
    paths = {number: {"audit.log.path": str(files / f"{number}.log")} for number in range(1, 5)}
    settings = {"audit.topic.enable": "true", "leader.imbalance.check.interval.seconds": "3600"}
    changes = 0
    with DevCluster(tmp_path / "data", secure=True, settings=settings, node_settings=paths) as cluster:
        client: dict[str, Any] = {
            key.replace(".", "_"): text for key, text in read_file(str(cluster.client_properties)).items()
        }

        def change_on(*brokers: int) -> None:
            nonlocal changes
            with Admin(cluster.responsive, **client) as admin:
                for broker in brokers:
                    changes += 1
                    longer = ConfigChange("log.retention.ms", str(3_600_000 + changes))
                    admin.alter_configs({ConfigResource("broker", str(broker)): [longer]})

        def all_there() -> bool:
            return in_topic(cluster) == in_files(files)

        change_on(1, 2, 3)
        eventually(all_there)
        with Admin(cluster.bootstrap, **client) as admin:
            [topic] = admin.describe_topics([AUDIT_TOPIC])
        assert len(topic.partitions) == 3
        cluster.add_broker()
        change_on(4, 1, 4)
        eventually(all_there)
        cluster.stop_node(1)
        change_on(2, 3, 4)
        cluster.start_node(1)
        change_on(1, 1)  # it leads nothing now
        eventually(all_there)
        cluster.kill(2)
        change_on(1, 3, 4)
        eventually(all_there)
        assert sum(len(lines) for lines in in_topic(cluster).values()) == changes
