"""`strandline log move` against a real node of two log directories (KIP-113)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.ports import free_ports

from strandline.cli.main import main as program
from strandline.client import Consumer, NewTopic, Producer, TopicPartition
from strandline.client.admin import Admin

COMMAND = [sys.executable, "-m", "strandline.cli.main"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its bootstrap address, and where its directories a and b are."""
    client, internal = free_ports(2)
    settings = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},INTERNAL://127.0.0.1:{internal}",
        "log.dirs": f"{tmp_path}/a,{tmp_path}/b",
    }
    words = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    formatting = [*COMMAND, "format", "--initial-controllers", f"1@127.0.0.1:{internal}", *words]
    subprocess.run(formatting, check=True, capture_output=True)
    process = subprocess.Popen([*COMMAND, "node", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["PLAINTEXT"], tmp_path
    finally:
        process.terminate()
        process.communicate(timeout=20)


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
    [here] = [name for name in ("a", "b") if (root / name / "t-0").exists()]
    there = "b" if here == "a" else "a"
    moved = move(bootstrap, root / there)
    assert (moved.exit_code, moved.stdout) == (0, f"t-0 on broker 1: it is in {root / there}\n")
    assert [name for name in ("a", "b") if (root / name / "t-0").exists()] == [there]
    refused = move(bootstrap, root / "nowhere")
    assert refused.exit_code == 1
    assert (
        f"the broker has no such directory in log.dirs, or it is offline; its directories: {root}/a" in refused.output
    )
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
