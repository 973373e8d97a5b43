"""`strandline trace` against real brokers, and what it says where there is none."""

from __future__ import annotations

import itertools
import json
import re
import threading
from typing import Any

from click.testing import CliRunner
from tests.ports import free_port

from strandline.cli.main import main
from strandline.client import Admin, NewTopic, Producer


def test_the_stages_of_a_load(cluster: Any) -> None:
    """Records go to all partitions meanwhile: each leader shows every stage, its followers theirs, and the parts of a
    request are no longer than the whole."""
    nodes = [cluster.http(node_id) for node_id in sorted(cluster.pids())]
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("traced", 3, 3)])
    stop = threading.Event()

    def load() -> None:
        with Producer(cluster.bootstrap, linger_ms=0) as producer:
            for number in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
                producer.send("traced", b"x" * 100, partition=number % 3).result()

    loader = threading.Thread(target=load)
    loader.start()
    try:
        told = CliRunner().invoke(main, ["trace", "--seconds", "3", "-o", "json", *nodes])
        shown = CliRunner().invoke(main, ["trace", "--seconds", "1", "--requests", "5", *nodes])
    finally:
        stop.set()
        loader.join()
    assert told.exit_code == 0, told.output
    answers = json.loads(told.stdout)
    assert list(answers) == nodes
    led = [answer["leader"] for answer in answers.values() if answer["leader"]["requests"]]
    followed = [answer["follower"] for answer in answers.values() if answer["follower"]["requests"]]
    assert len(led) == 3
    assert len(followed) == 3
    for part in led:
        stages = part["stages_ms"]
        assert set(stages) == {"append", "wait for sync", "sync", "replicas", "commit", "answer", "total"}
        assert 0 < stages["commit"]["p50"] < stages["total"]["p50"] <= stages["total"]["max"]
        assert stages["total"]["slowest"] >= stages["total"]["p99"]
    for part in followed:
        assert set(part["stages_ms"]) == {"wait for sync", "sync", "total"}
    assert shown.exit_code == 0, shown.output
    assert re.search(r"as leader: [1-5] requests?, ms", shown.stdout), shown.stdout


def test_whoever_is_no_broker() -> None:
    """One sentence, with what to look at."""
    port = free_port()
    told = CliRunner().invoke(main, ["trace", f"127.0.0.1:{port}"])
    assert told.exit_code == 1
    assert f"http://127.0.0.1:{port}/trace cannot be asked" in told.output
    assert "HTTP listener of a broker?" in told.output
