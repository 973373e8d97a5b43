"""`strandline log move` against a real node of two log directories (KIP-113)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.two_directories import directory_of, node_of_two_directories

from strandline.cli.main import main as program
from strandline.client import Consumer, NewTopic, Producer, TopicPartition
from strandline.client.admin import Admin


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its bootstrap address, and where its directories a and b are."""
    with node_of_two_directories(tmp_path) as bootstrap:
        yield bootstrap, tmp_path


def move(bootstrap: str, to: Path, *words: str) -> Result:
    return CliRunner().invoke(
        program, ["log", "move", "t", "0", "--broker", "1", "--to", str(to), "-b", bootstrap, *words]
    )


def test_a_replica_is_moved_there_and_back(node: tuple[str, Path]) -> None:
    bootstrap, root = node
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1, 1)])
    with Producer(bootstrap) as producer:
        for number in range(500):
            producer.send("t", b"%d" % number)
    here = directory_of(root, "t-0")
    there = "b" if here == "a" else "a"
    moved = move(bootstrap, root / there)
    assert (moved.exit_code, moved.stdout) == (0, f"t-0 on broker 1: it is in {root / there}\n")
    assert directory_of(root, "t-0") == there
    refused = move(bootstrap, root / "nowhere")
    assert refused.exit_code == 1
    what = "the broker has no such directory in log.dirs, or it is offline"
    assert re.search(f"{what}; its directories: {root}/a .* free.*, {root}/b .* free", refused.output)
    back = move(bootstrap, root / here, "--output", "json")
    assert json.loads(back.stdout) == {
        "topic": "t",
        "partition": 0,
        "broker": 1,
        "log_dir": str(root / here),
        "done": True,
    }
    with Consumer(bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        found: list[bytes | None] = []
        while len(found) < 500:
            found += [record.value for record in consumer.poll(1.0)]
    assert found == [b"%d" % number for number in range(500)]
